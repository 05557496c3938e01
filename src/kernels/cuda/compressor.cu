// A warp has a group. Floor: its members' kv and gate read once, a latent written. The softmax of a
// channel has the bits of plain/; the norm's sum has its own order.
#include <limits>

#include "kernels/cuda/compressor.h"
#include "kernels/cuda/exponential.cuh"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/row.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int kWarps = 4;

// The members' shares are computed again where they are used, so that any ratio needs the same
// registers; where the ratio is known (kRatio, else 0) the compiler keeps them.
template <int kRatio, bool kWhole>
__device__ __forceinline__ Float8 weighted(Rows<const float> kv, Rows<const float> gate,
                                           int64_t first, int32_t any_ratio, int64_t vector) {
  const int32_t ratio = kRatio != 0 ? kRatio : any_ratio;
  Float8 most = load8_f32<kWhole>(row_of(gate, first), vector, gate.cols);
#pragma unroll
  for (int32_t m = 1; m < ratio; ++m) {
    const Float8 b = load8_f32<kWhole>(row_of(gate, first + m), vector, gate.cols);
    for (int e = 0; e < 8; ++e) most.v[e] = fmaxf(most.v[e], b.v[e]);
  }
  Float8 sum = {};
#pragma unroll
  for (int32_t m = 0; m < ratio; ++m) {
    const Float8 b = load8_f32<kWhole>(row_of(gate, first + m), vector, gate.cols);
    for (int e = 0; e < 8; ++e) sum.v[e] += exp_f32(b.v[e] - most.v[e]);
  }
  Float8 z = {};
#pragma unroll
  for (int32_t m = 0; m < ratio; ++m) {
    const Float8 a = load8_f32<kWhole>(row_of(kv, first + m), vector, kv.cols);
    const Float8 b = load8_f32<kWhole>(row_of(gate, first + m), vector, gate.cols);
    for (int e = 0; e < 8; ++e) z.v[e] += a.v[e] * (exp_f32(b.v[e] - most.v[e]) / sum.v[e]);
  }
  return z;
}

template <int kVectors, int kRatio, bool kWhole>
__global__ void __launch_bounds__(kWarps* kWarp)
    compress_kernel(Rows<const float> kv, Rows<const float> gate, int32_t ratio,
                    const Bf16* norm_weight, float eps, Rows<Bf16> latent) {
  await_earlier();
  const int64_t group = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (group >= latent.rows) return;
  const int lane = threadIdx.x % kWarp;
  uint4 raw[kVectors] = {};
  float squares = 0.0F;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int64_t vector = lane + i * kWarp;
    if (vector * 8 < latent.cols) {
      Float8 z = weighted<kRatio, kWhole>(kv, gate, group * ratio, ratio, vector);
      for (int e = 0; e < 8; ++e) {
        if (vector * 8 + e >= latent.cols) z.v[e] = 0.0F;
      }
      raw[i] = narrow8(z);
    }
    squares += square_sum(widen8(raw[i]));
  }
  const float inverse = inverse_rms(warp_sum(squares), latent.cols, eps);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int64_t vector = lane + i * kWarp;
    const Float8 w = widen8(load8<kWhole>(norm_weight, vector, latent.cols));
    Float8 value = widen8(raw[i]);
    for (int e = 0; e < 8; ++e) value.v[e] = value.v[e] * inverse * w.v[e];
    store8<kWhole>(row_of(latent, group), vector, latent.cols, narrow8(value));
  }
}

}  // namespace

void compress(Stream stream, Rows<const float> kv, Rows<const float> gate, int32_t ratio,
              const Bf16* norm_weight, float eps, Rows<Bf16> latent) {
  CHECK(latent.cols <= kLatentWidthMax && kv.cols == latent.cols && gate.cols == latent.cols);
  if (latent.rows == 0) return;
  const auto grid = static_cast<unsigned>(divide_up(latent.rows, kWarps));
  const bool whole =
      is_whole(kv) && is_whole(gate) && is_whole(latent) && is_whole(norm_weight, latent.cols);
  const auto launch = [&](auto kernel) {
    launch_kernel(kernel, {grid, kWarps * kWarp}, stream, kv, gate, ratio, norm_weight, eps,
                  latent);
  };
  if (!whole) {
    launch(compress_kernel<kLatentWidthMax / 8 / kWarp, 0, false>);
  } else if (latent.cols <= 512 && ratio == 2) {
    launch(compress_kernel<2, 2, true>);
  } else {
    launch(compress_kernel<kLatentWidthMax / 8 / kWarp, 0, true>);
  }
}

}  // namespace galley::kernels::cuda
