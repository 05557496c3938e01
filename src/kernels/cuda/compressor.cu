// A warp has a group; of few groups a block, two channels a thread, since a warp's exponentials and
// divisions one after the other are all of their time. Floor: the members' kv and gate read once, a
// latent written. The softmax of a channel has the bits of plain/; the norm's sum has its own
// order, which is a warp's in both forms.
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

// As wide as it has threads, for whole rows.
constexpr int kBlockThreads = 256;
constexpr int kBlockWidth = 2 * kBlockThreads;
constexpr int64_t kBlockGroupsMax = 512;  // of a step that decodes

template <int kRatio>
__global__ void __launch_bounds__(kBlockThreads)
    compress_block_kernel(Rows<const float> kv, Rows<const float> gate, const Bf16* norm_weight,
                          float eps, Rows<Bf16> latent) {
  __shared__ uint4 latents[kBlockWidth / 8];
  const auto channels = static_cast<int64_t>(threadIdx.x) * 2;
  const bool inside = channels < latent.cols;
  const int64_t group = blockIdx.x;
  await_earlier();
  uint32_t raw = 0;
  if (inside) {
    float2 a[kRatio];
    float2 b[kRatio];
#pragma unroll
    for (int32_t m = 0; m < kRatio; ++m) {
      b[m] = *reinterpret_cast<const float2*>(row_of(gate, group * kRatio + m) + channels);
      a[m] = *reinterpret_cast<const float2*>(row_of(kv, group * kRatio + m) + channels);
    }
    const auto weigh = [&](auto channel) {
      float most = channel(b[0]);
#pragma unroll
      for (int32_t m = 1; m < kRatio; ++m) most = fmaxf(most, channel(b[m]));
      float share[kRatio];
      float sum = 0.0F;
#pragma unroll
      for (int32_t m = 0; m < kRatio; ++m) {
        share[m] = exp_f32(channel(b[m]) - most);
        sum += share[m];
      }
      float z = 0.0F;
#pragma unroll
      for (int32_t m = 0; m < kRatio; ++m) z += channel(a[m]) * (share[m] / sum);
      return z;
    };
    raw = pack_bf16(weigh([](float2 pair) { return pair.x; }),
                    weigh([](float2 pair) { return pair.y; }));
  }
  reinterpret_cast<uint32_t*>(latents)[threadIdx.x] = raw;
  __syncthreads();
  float squares = 0.0F;
#pragma unroll
  for (int i = 0; i < kBlockWidth / 8 / kWarp; ++i) {
    squares += square_sum(widen8(latents[threadIdx.x % kWarp + i * kWarp]));
  }
  const float inverse = inverse_rms(warp_sum(squares), latent.cols, eps);
  if (!inside) return;
  const uint32_t weight = *reinterpret_cast<const uint32_t*>(norm_weight + channels);
  *reinterpret_cast<uint32_t*>(row_of(latent, group) + channels) = pack_bf16(
      low_half(raw) * inverse * low_half(weight), high_half(raw) * inverse * high_half(weight));
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
  if (whole && latent.cols <= kBlockWidth && ratio == 2 && latent.rows <= kBlockGroupsMax) {
    launch_kernel(compress_block_kernel<2>, {static_cast<unsigned>(latent.rows), kBlockThreads},
                  stream, kv, gate, norm_weight, eps, latent);
  } else if (!whole) {
    launch(compress_kernel<kLatentWidthMax / 8 / kWarp, 0, false>);
  } else if (latent.cols <= 512 && ratio == 2) {
    launch(compress_kernel<2, 2, true>);
  } else {
    launch(compress_kernel<kLatentWidthMax / 8 / kWarp, 0, true>);
  }
}

}  // namespace galley::kernels::cuda
