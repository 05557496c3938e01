// Choice of experts from the gate's logits (spec/model.md 5): one warp a row, each
// choice a maximum over the warp with ties to the lower id.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/numbers.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kEachMax = 16;  // experts a lane

// log1p in double: exp's f32 result carries all its bits into it, as on the CPU.
__device__ __forceinline__ float softplus(float x) {
  if (x > 20.0F) return x;
  return static_cast<float>(log1p(static_cast<double>(expf(x))));
}

__global__ void route_kernel(Rows<const float> logits, const float* const* bias_of_row,
                             RouterOptions options, Rows<int32_t> experts, Rows<float> weights,
                             float* margin) {
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (row >= logits.rows) return;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const auto count = static_cast<int32_t>(logits.cols);
  const float* bias = bias_of_row[row];
  const float none = -INFINITY;
  float p[kEachMax];
  float biased[kEachMax];
#pragma unroll
  for (int e = 0; e < kEachMax; ++e) {
    const int32_t id = e * 32 + lane;
    p[e] = 0.0F;
    biased[e] = none;
    if (id < count) {
      p[e] = sqrtf(softplus(row_at(logits, row)[id] / options.gate_temperature));
      biased[e] = p[e] + bias[id];
      if (isnan(biased[e])) biased[e] = none;
    }
  }
  uint32_t taken = 0;  // bit e: this lane's e-th expert was chosen
  int32_t my_id = 0;   // lane c holds the c-th best
  float my_p = 0.0F;
  float sum = 0.0F;
  float last = 0.0F;
  for (int32_t choice = 0; choice <= options.top_k; ++choice) {
    float best = none;
    int32_t best_id = count;  // an empty lane loses every tie
    float best_p = 0.0F;
#pragma unroll
    for (int e = 0; e < kEachMax; ++e) {
      const int32_t id = e * 32 + lane;
      if (id >= count || (taken >> e & 1U) != 0) continue;
      if (best_id == count || biased[e] > best) {
        best = biased[e];
        best_id = id;
        best_p = p[e];
      }
    }
    for (int offset = 16; offset > 0; offset /= 2) {
      const float other = __shfl_xor_sync(0xFFFFFFFFU, best, offset);
      const int32_t other_id = __shfl_xor_sync(0xFFFFFFFFU, best_id, offset);
      const float other_p = __shfl_xor_sync(0xFFFFFFFFU, best_p, offset);
      const bool better = other_id < count && (best_id == count || other > best ||
                                               (other == best && other_id < best_id));
      if (better) {
        best = other;
        best_id = other_id;
        best_p = other_p;
      }
    }
    if (choice == options.top_k) {
      const float gap = best_id < count ? last - best : INFINITY;
      if (margin != nullptr && lane == 0) margin[row] = gap;
      break;
    }
    sum += best_p;  // best first, as the reference adds them
    last = best;
    if (lane == choice) {
      my_id = best_id;
      my_p = best_p;
    }
    if (best_id % 32 == lane) taken |= 1U << (best_id / 32);
  }
  int32_t rank = 0;
  for (int32_t other = 0; other < options.top_k; ++other) {
    rank += __shfl_sync(0xFFFFFFFFU, my_id, other) < my_id ? 1 : 0;
  }
  if (lane < options.top_k) {
    row_at(experts, row)[rank] = my_id;
    row_at(weights, row)[rank] = my_p / (sum + 1e-20F) * options.scale;
  }
}

}  // namespace

void launch_route(Rows<const float> logits, const float* const* bias_of_row,
                  const RouterOptions& options, Rows<int32_t> experts, Rows<float> weights,
                  float* margin, Stream stream) {
  if (logits.rows == 0) return;
  static_assert(kRouteExpertsMax == 32 * kEachMax && kRouteChoicesMax == 32, "a lane a choice");
  route_kernel<<<static_cast<unsigned>((logits.rows + kWarps - 1) / kWarps), 32 * kWarps, 0,
                 stream>>>(logits, bias_of_row, options, experts, weights, margin);
}

}  // namespace galley::kernels::cuda
