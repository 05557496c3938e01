#include "kernels/cuda/device_memory.h"

#include <cuda_runtime_api.h>

#include <string>
#include <utility>

namespace galley::kernels::cuda {
namespace {

class DeviceMemory final : public Memory {
 public:
  DeviceMemory(Stream stream, std::function<void()> flush)
      : stream_(stream), flush_(std::move(flush)) {}

  bool is_host() const override { return false; }

  int64_t free_bytes() const override {
    size_t free = 0;
    size_t total = 0;
    return cudaMemGetInfo(&free, &total) == cudaSuccess ? static_cast<int64_t>(free) : 0;
  }

  Result<void*> allocate(int64_t bytes, const char* what) override {
    void* memory = nullptr;
    const cudaError_t code = cudaMalloc(&memory, static_cast<size_t>(bytes));
    return checked(code, memory, bytes, what, "device");
  }
  void release(void* memory, int64_t /*bytes*/) override { cudaFree(memory); }

  Result<void*> allocate_host(int64_t bytes, const char* what) override {
    void* memory = nullptr;
    const cudaError_t code = cudaMallocHost(&memory, static_cast<size_t>(bytes));
    return checked(code, memory, bytes, what, "pinned host");
  }
  void release_host(void* memory, int64_t /*bytes*/) override { cudaFreeHost(memory); }

  // An error stays with the context, where finish() finds it.
  void write(void* to, const void* from_host, int64_t bytes) override {
    transfer(to, from_host, bytes, cudaMemcpyHostToDevice);
  }
  void read(void* to_host, const void* from, int64_t bytes) override {
    transfer(to_host, from, bytes, cudaMemcpyDeviceToHost);
  }

 private:
  static Result<void*> checked(cudaError_t code, void* memory, int64_t bytes, const char* what,
                               const char* kind) {
    if (code == cudaSuccess) return memory;
    cudaGetLastError();  // not sticky: the program can ask for less
    return Error{ErrorCode::kExhausted, "CUDA: cannot take " + std::to_string(bytes) +
                                            " bytes of " + kind + " memory for " + what + ": " +
                                            cudaGetErrorString(code)};
  }

  void transfer(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind) {
    if (bytes == 0) return;
    flush_();
    cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, stream_);
    cudaStreamSynchronize(stream_);
  }

  Stream stream_;
  std::function<void()> flush_;
};

}  // namespace

std::unique_ptr<Memory> make_device_memory(Stream stream, std::function<void()> flush) {
  return std::make_unique<DeviceMemory>(stream, std::move(flush));
}

}  // namespace galley::kernels::cuda
