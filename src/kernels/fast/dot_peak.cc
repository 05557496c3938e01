// Dots on registers alone, for the measured peak (kernels/bandwidth.h): twelve
// independent chains, more than latency times rate on any machine of either set.
#include "kernels/fast/isa_ops.h"
#include "kernels/fast/simd.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace galley::kernels::GALLEY_ISA {

int64_t dot_rounds(int64_t rounds) {
  constexpr int kChains = 12;
  VecF sum[kChains];
#pragma GCC unroll 12
  for (VecF& one : sum) one = zero();
#if defined(__AVX512BF16__)
  constexpr int64_t kOperations = 2 * 32;
  __m512i a = _mm512_set1_epi16(0x3C00);
  for (int64_t i = 0; i < rounds; ++i) {
    asm volatile("" : "+v"(a));  // the operand may have changed: no round can be left out
#pragma GCC unroll 12
    for (VecF& one : sum) one.raw = _mm512_dpbf16_ps(one.raw, (__m512bh)a, (__m512bh)a);
  }
#else
  constexpr int64_t kOperations = 2 * kLanes;
  VecF a = set(0.0078125F);
  for (int64_t i = 0; i < rounds; ++i) {
    asm volatile("" : "+x"(a.raw));
#pragma GCC unroll 12
    for (VecF& one : sum) one = hn::MulAdd(a, a, one);
  }
#endif
  VecF all = sum[0];
  for (int i = 1; i < kChains; ++i) all = hn::Add(all, sum[i]);
  const float kept = sum_lanes(all);
  asm volatile("" : : "m"(kept));
  return rounds * kChains * kOperations;
}

}  // namespace galley::kernels::GALLEY_ISA
