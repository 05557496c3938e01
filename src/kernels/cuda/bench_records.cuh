// Random cache records and queries for the benchmarks of attention and indexer.
#pragma once

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cuda/bench_device.cuh"
#include "kernels/tensor.h"

namespace galley::kernels::cuda {

// `codes` bytes of any code (masked), then scales from `scale` on.
struct RecordCodes {
  int64_t bytes;
  int64_t codes;
  uint32_t scale;
  uint32_t scale_spread;  // a mask
  uint32_t code_mask;     // keeps E4M3 codes from being NaN
};

inline __global__ void fill_records(uint8_t* data, int64_t count, RecordCodes codes) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    const uint32_t random = bench_hash(static_cast<uint64_t>(i), 11);
    data[i] = static_cast<uint8_t>(i % codes.bytes < codes.codes
                                       ? random & codes.code_mask
                                       : codes.scale + (random & codes.scale_spread));
  }
}

inline __global__ void fill_queries(Bf16* data, int64_t count) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    const uint32_t random = bench_hash(static_cast<uint64_t>(i), 5);
    const float value =
        (static_cast<float>(random & 0xFFFF) + static_cast<float>(random >> 16)) / 32768.0F - 2.0F;
    data[i].bits = static_cast<uint16_t>(__float_as_uint(value) >> 16);
  }
}

inline Result<BenchBuffer> uploaded(const void* data, size_t bytes) {
  BenchBuffer buffer = TRY(BenchBuffer::create(static_cast<int64_t>(bytes) + 16));
  TRY(check_cuda(cudaMemcpy(buffer.as<void>(), data, bytes, cudaMemcpyHostToDevice), "upload"));
  return Result<BenchBuffer>(std::move(buffer));
}

inline std::vector<int32_t> shuffled_pages(int64_t pages, std::mt19937& random) {
  std::vector<int32_t> table(static_cast<size_t>(pages));
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), random);
  return table;
}

}  // namespace galley::kernels::cuda
