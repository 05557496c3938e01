// What the kernel benchmarks share: device buffers, random contents, times of graphs of calls.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace galley::kernels::cuda {

inline Result<void> check_cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  return Error{ErrorCode::kUnsupported, std::string(what) + ": " + cudaGetErrorString(error)};
}

// Device memory of a benchmark; empty when there was none left.
class BenchBuffer {
 public:
  BenchBuffer() = default;
  static Result<BenchBuffer> create(int64_t bytes) {
    BenchBuffer buffer;
    TRY(check_cuda(cudaMalloc(&buffer.data_, static_cast<size_t>(bytes)), "benchmark memory"));
    buffer.bytes_ = bytes;
    return Result<BenchBuffer>(std::move(buffer));
  }
  ~BenchBuffer() { cudaFree(data_); }
  BenchBuffer(const BenchBuffer&) = delete;
  BenchBuffer(BenchBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  BenchBuffer& operator=(BenchBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  int64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

// Microseconds of one of `calls` calls in a graph: the median of `replays`. call(i, stream).
template <class Call>
Result<double> graph_time_us(int calls, int replays, const Call& call) {
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  TRY(check_cuda(cudaStreamCreate(&stream), "benchmark stream"));
  call(0, stream);
  TRY(check_cuda(cudaStreamSynchronize(stream), "benchmark's first call"));
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  for (int i = 0; i < calls; ++i) call(i, stream);
  TRY(check_cuda(cudaStreamEndCapture(stream, &graph), "benchmark capture"));
  TRY(check_cuda(cudaGraphInstantiate(&executable, graph, 0), "benchmark graph"));
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  cudaGraphLaunch(executable, stream);
  std::vector<double> times;
  for (int i = 0; i < replays; ++i) {
    float ms = 0.0F;
    cudaEventRecord(begin, stream);
    cudaGraphLaunch(executable, stream);
    cudaEventRecord(end, stream);
    TRY(check_cuda(cudaEventSynchronize(end), "benchmark replay"));
    cudaEventElapsedTime(&ms, begin, end);
    times.push_back(1e3 * static_cast<double>(ms) / calls);
  }
  std::sort(times.begin(), times.end());
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaStreamDestroy(stream);
  return times[times.size() / 2];
}

__device__ __forceinline__ uint32_t bench_hash(uint64_t i, uint32_t seed) {
  uint32_t h = static_cast<uint32_t>(i) * 2654435761U ^ static_cast<uint32_t>(i >> 32) ^ seed;
  h = (h ^ (h >> 16)) * 0x7feb352dU;
  h = (h ^ (h >> 15)) * 0x846ca68bU;
  return h ^ (h >> 16);
}

}  // namespace galley::kernels::cuda
