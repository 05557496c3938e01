// Dots on registers alone, for the measured peak (kernels/bandwidth.h): twelve
// independent chains, at least latency times rate on the machines of either set.
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
  for (int i = 0; i < kChains; ++i) sum[i] = set(static_cast<float>(i));  // no two chains alike
#if defined(__AVX512BF16__)
  constexpr int64_t kOperations = 2 * 32;
  const __m512i a = _mm512_set1_epi16(0x3C00);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) {
      sum[i].raw = _mm512_dpbf16_ps(sum[i].raw, (__m512bh)a, (__m512bh)a);
    }
  }
#else
  constexpr int64_t kOperations = 2 * kLanes;
  const VecF a = set(0.0078125F);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sum[i] = hn::MulAdd(a, a, sum[i]);
  }
#endif
  VecF all = sum[0];
#pragma GCC unroll 12
  for (int i = 1; i < kChains; ++i) all = hn::Add(all, sum[i]);
  const float kept = sum_lanes(all);
  asm volatile("" : : "m"(kept));
  return rounds * kChains * kOperations;
}

}  // namespace galley::kernels::GALLEY_ISA
