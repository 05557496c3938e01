// RMS_w of one row (spec/model.md 0), shared by every file that norms.
#pragma once

#include <cmath>

#include "kernels/fast/simd.h"

namespace galley::kernels::GALLEY_ISA {

// rsqrt(mean(x^2) + eps) of n values.
template <class T>
GALLEY_INLINE float inverse_rms(const T* x, int64_t n, float eps) {
  const float sum = sum_terms(n, [&](int64_t i, int64_t count) {
    const VecF v = load(x + i, count);
    return hn::Mul(v, v);
  });
  return 1.0F / std::sqrt(sum / static_cast<float>(n) + eps);
}

// y may be x.
GALLEY_INLINE void rms_norm_row(const Bf16* x, const Bf16* weight, int64_t n, float eps, Bf16* y) {
  const VecF inverse = set(inverse_rms(x, n, eps));
  for_lanes(n, [&](int64_t i, int64_t count) {
    store(hn::Mul(hn::Mul(load(x + i, count), inverse), load(weight + i, count)), y + i, count);
  });
}

}  // namespace galley::kernels::GALLEY_ISA
