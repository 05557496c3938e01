// e^x as plain/dot.h has it, to the bit, and the sigmoid made of it.
#pragma once

namespace galley::kernels::cuda {

// x = n ln 2 + r with |r| <= ln(2) / 2, then the Taylor series of e^r to r^7.
__device__ __forceinline__ float exp_f32(float x) {
  constexpr float kLn2High = 0x1.62e4p-1F;
  constexpr float kLn2Low = static_cast<float>(0.69314718055994530942 - 0x1.62e4p-1);
  if (isnan(x)) return x;
  if (x > 100.0F) return INFINITY;
  if (x < -104.0F) return 0.0F;
  const float n = rintf(x * 1.44269504F);
  float r = fmaf(n, -kLn2High, x);
  r = fmaf(n, -kLn2Low, r);
  float series = 1.0F / 5040.0F;
  series = fmaf(series, r, 1.0F / 720.0F);
  series = fmaf(series, r, 1.0F / 120.0F);
  series = fmaf(series, r, 1.0F / 24.0F);
  series = fmaf(series, r, 1.0F / 6.0F);
  series = fmaf(series, r, 0.5F);
  return ldexpf(1.0F + fmaf(r * r, series, r), static_cast<int>(n));
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0F / (1.0F + exp_f32(-x)); }

}  // namespace galley::kernels::cuda
