// What a logit weighs in a draw, and which rows are drawn from how.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/drawn_token.h"

namespace galley::kernels::cuda {

constexpr float kTemperatureMin = 1e-5F;  // below: the best token

// exp((logit - peak) * scale) with the bits of engine/logit_math; 0 below exp(-87).
__device__ __forceinline__ float weight(float logit, float peak, float scale) {
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  const float x = (logit - peak) * (scale * 1.44269504F);
  if (!(x > -125.5F)) return 0.0F;
  const float shifted = x + kRound;
  const float r = x - (shifted - kRound);
  const float r2 = r * r;
  const float low = r * 0.693147F + 1.0F;
  const float middle = r * 0.055507336F + 0.24022242F;
  const float high = r * 0.0013264727F + 0.009671513F;
  const float p = low + r2 * (middle + r2 * high);
  return __uint_as_float(__float_as_uint(p) + (__float_as_uint(shifted) << 23));
}

__device__ __forceinline__ bool draws(const DrawRequest& request) {
  return request.temperature >= kTemperatureMin;
}

}  // namespace galley::kernels::cuda
