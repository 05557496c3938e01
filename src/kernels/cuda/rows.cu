// Rows that move within device memory, any number in one launch. Bound by bytes.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ordered_launch.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int kThreads = 128;

// One block a copy. 16-byte steps where both ends allow, else single bytes.
__global__ void copy_kernel(const RowCopy* copies) {
  await_earlier();
  const RowCopy one = copies[blockIdx.x];
  const auto from = reinterpret_cast<uintptr_t>(one.from);
  const auto to = reinterpret_cast<uintptr_t>(one.to);
  int64_t done = 0;
  if (((from | to) & 15U) == 0) {
    const int64_t vectors = one.bytes / 16;
    for (int64_t i = threadIdx.x; i < vectors; i += kThreads) {
      static_cast<uint4*>(one.to)[i] = static_cast<const uint4*>(one.from)[i];
    }
    done = vectors * 16;
  } else if (((from | to) & 3U) == 0) {
    const int64_t words = one.bytes / 4;
    for (int64_t i = threadIdx.x; i < words; i += kThreads) {
      static_cast<uint32_t*>(one.to)[i] = static_cast<const uint32_t*>(one.from)[i];
    }
    done = words * 4;
  }
  for (int64_t i = done + threadIdx.x; i < one.bytes; i += kThreads) {
    static_cast<uint8_t*>(one.to)[i] = static_cast<const uint8_t*>(one.from)[i];
  }
}

}  // namespace

void launch_copy(const RowCopy* copies, int64_t count, Stream stream) {
  if (count == 0) return;
  launch_kernel(copy_kernel, {static_cast<unsigned>(count), kThreads}, stream, copies);
}

}  // namespace galley::kernels::cuda
