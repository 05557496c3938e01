// RMS norm: floor = a row read and written once; the row stays in registers between the two.
#include "kernels/cuda/norm.cuh"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/row.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int kRowsOfWarps = 4;

template <bool kWhole>
__global__ void rms_norm_kernel(Rows<const Bf16> x, const Bf16* weight, float eps, Rows<Bf16> y) {
  await_earlier();
  __shared__ float scratch[kWarp];
  const int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (row >= x.rows) return;  // with several rows a block, a row is one warp and meets no barrier
  norm_row<kWhole>(row_of(x, row), x.cols, weight, eps, row_of(y, row), threadIdx.x, blockDim.x,
                   [&](float sum) { return block_sum(sum, scratch); });
}

}  // namespace

void rms_norm(Stream stream, Rows<const Bf16> x, const Bf16* weight, float eps, Rows<Bf16> y) {
  CHECK(x.cols <= kNormWidthMax && x.cols == y.cols);
  if (x.rows == 0) return;
  const int threads = row_threads(x.cols, kNormVectors);
  const int rows = threads == kWarp ? kRowsOfWarps : 1;
  const dim3 block(threads, rows);
  const auto grid = static_cast<unsigned>(divide_up(x.rows, rows));
  if (is_whole(x) && is_whole(y) && is_whole(weight, x.cols)) {
    launch_kernel(rms_norm_kernel<true>, {grid, block}, stream, x, weight, eps, y);
  } else {
    launch_kernel(rms_norm_kernel<false>, {grid, block}, stream, x, weight, eps, y);
  }
}

}  // namespace galley::kernels::cuda
