// Sums over the sixteen lanes of one to four accumulators: lane l takes lane l + 8,
// then + 4, + 2, + 1, whatever their number.
#pragma once

#include <immintrin.h>

#include "kernels/fast/simd.h"

namespace galley::kernels::GALLEY_ISA {

// Sums of a, b, c, d: lanes l + 8, then + 4, + 2, + 1.
GALLEY_INLINE __m128 fold4(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab =
      _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
  const __m512 cd =
      _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xEE));
  __m512 s = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
  s = _mm512_add_ps(s, _mm512_permute_ps(s, 0x4E));
  s = _mm512_add_ps(s, _mm512_permute_ps(s, 0xB1));
  return _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, s));
}

template <int C>
GALLEY_INLINE void fold_and_store(const __m512* sum, float* out) {
  const __m512 z = _mm512_setzero_ps();
  const __m128 folded = fold4(sum[0], C > 1 ? sum[C > 1 ? 1 : 0] : z,
                              C > 2 ? sum[C > 2 ? 2 : 0] : z, C > 3 ? sum[C > 3 ? 3 : 0] : z);
  if constexpr (C == 4) {
    _mm_storeu_ps(out, folded);
  } else {
    _mm_mask_storeu_ps(out, static_cast<__mmask8>((1 << C) - 1), folded);
  }
}

}  // namespace galley::kernels::GALLEY_ISA
