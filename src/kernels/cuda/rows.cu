// Rows that move within device memory, any number in one launch. Bound by bytes.
#include "kernels/cuda/copy_row.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ordered_launch.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int kThreads = 128;

// One block a copy.
__global__ void copy_kernel(const RowCopy* copies) {
  await_earlier();
  copy_row<kThreads>(copies[blockIdx.x]);
}

}  // namespace

void launch_copy(const RowCopy* copies, int64_t count, Stream stream) {
  if (count == 0) return;
  launch_kernel(copy_kernel, {static_cast<unsigned>(count), kThreads}, stream, copies);
}

}  // namespace galley::kernels::cuda
