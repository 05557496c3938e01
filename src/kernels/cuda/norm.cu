// RMS norm: floor = a row read and written once; the row stays in registers between the two.
#include "kernels/cuda/norm.h"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/row.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int kVectors = 4;  // a thread's share of a row
constexpr int kRowsOfWarps = 4;

template <bool kWhole>
__global__ void rms_norm_kernel(Rows<const Bf16> x, const Bf16* weight, float eps, Rows<Bf16> y) {
  await_earlier();
  __shared__ float scratch[kWarp];
  const int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (row >= x.rows) return;  // with several rows a block, a row is one warp and meets no barrier
  uint4 raw[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    raw[i] = load8<kWhole>(row_of(x, row), threadIdx.x + i * blockDim.x, x.cols);
  }
  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) sum += square_sum(widen8(raw[i]));
  const float inverse = inverse_rms(block_sum(sum, scratch), x.cols, eps);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int64_t vector = threadIdx.x + i * blockDim.x;
    const Float8 w = widen8(load8<kWhole>(weight, vector, x.cols));
    Float8 value = widen8(raw[i]);
    for (int e = 0; e < 8; ++e) value.v[e] = value.v[e] * inverse * w.v[e];
    store8<kWhole>(row_of(y, row), vector, y.cols, narrow8(value));
  }
}

}  // namespace

void rms_norm(Stream stream, Rows<const Bf16> x, const Bf16* weight, float eps, Rows<Bf16> y) {
  CHECK(x.cols <= kNormWidthMax && x.cols == y.cols);
  if (x.rows == 0) return;
  const int threads = row_threads(x.cols, kVectors);
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
