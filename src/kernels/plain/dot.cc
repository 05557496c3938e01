#include "kernels/plain/dot.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace galley::kernels::plain {
namespace {

// The bodies are compiled twice: with the fused instruction, and calling the C library's, which
// gives the same bits slowly.
#define GALLEY_ALWAYS_INLINE inline __attribute__((always_inline))

GALLEY_ALWAYS_INLINE float dot_body(const float* a, const float* b, int64_t count) {
  float total = 0.0F;
  for (int64_t begin = 0; begin < count; begin += kChainTerms) {
    const int64_t end = std::min(count, begin + kChainTerms);
    float chain = 0.0F;
    for (int64_t i = begin; i < end; ++i) chain = __builtin_fmaf(a[i], b[i], chain);
    total += chain;
  }
  return total;
}

GALLEY_ALWAYS_INLINE void dot_columns_body(const float* x, const float* w, int64_t count,
                                           int64_t chain_terms, float* sums) {
  float total[kColumns] = {};
  for (int64_t begin = 0; begin < count; begin += chain_terms) {
    const int64_t end = std::min(count, begin + chain_terms);
    float chain[kColumns] = {};
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t o = 0; o < kColumns; ++o) {
        chain[o] = __builtin_fmaf(x[i], w[i * kColumns + o], chain[o]);
      }
    }
    for (int64_t o = 0; o < kColumns; ++o) total[o] += chain[o];
  }
  std::copy_n(total, kColumns, sums);
}

#ifdef __x86_64__
#define GALLEY_FUSED __attribute__((target("avx2,fma")))
GALLEY_FUSED float dot_fused(const float* a, const float* b, int64_t count) {
  return dot_body(a, b, count);
}
GALLEY_FUSED void dot_columns_fused(const float* x, const float* w, int64_t count,
                                    int64_t chain_terms, float* sums) {
  dot_columns_body(x, w, count, chain_terms, sums);
}
bool has_fused() {
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return has;
}
#endif

}  // namespace

float dot(const float* a, const float* b, int64_t count) {
#ifdef __x86_64__
  if (has_fused()) return dot_fused(a, b, count);
#endif
  return dot_body(a, b, count);
}

void dot_columns(const float* x, const float* w, int64_t count, int64_t chain_terms, float* sums) {
#ifdef __x86_64__
  if (has_fused()) {
    dot_columns_fused(x, w, count, chain_terms, sums);
    return;
  }
#endif
  dot_columns_body(x, w, count, chain_terms, sums);
}

float sum_of_products(const float* a, const float* b, int64_t count) {
  constexpr int64_t kLanes = 8;
  constexpr int64_t kParts = 4;
  float part[kParts][kLanes] = {};
  const int64_t vectors = count / kLanes;
  const int64_t whole = vectors - vectors % kParts;
  for (int64_t v = 0; v < vectors; ++v) {
    const int64_t p = v < whole ? v % kParts : 0;
    for (int64_t l = 0; l < kLanes; ++l) part[p][l] += a[v * kLanes + l] * b[v * kLanes + l];
  }
  for (int64_t p = 1; p < kParts; ++p) {
    for (int64_t l = 0; l < kLanes; ++l) part[0][l] += part[p][l];
  }
  float total = 0.0F;
  for (int64_t i = vectors * kLanes; i < count; ++i) total += a[i] * b[i];
  for (int64_t l = 0; l < kLanes; ++l) total += part[0][l];
  return total;
}

// x = n ln 2 + r with |r| <= ln(2) / 2, then the Taylor series of e^r to r^7.
float exp_f32(float x) {
  constexpr float kLog2OfE = 1.44269504F;
  // ln 2 in two parts; the first has 14 bits, so that n times it is exact.
  constexpr float kLn2High = 0x1.62e4p-1F;
  constexpr float kLn2Low = static_cast<float>(0.69314718055994530942 - 0x1.62e4p-1);
  if (std::isnan(x)) return x;
  if (x > 100.0F) return std::numeric_limits<float>::infinity();
  if (x < -104.0F) return 0.0F;  // below half the smallest subnormal
  const float n = std::rint(x * kLog2OfE);
  float r = std::fma(n, -kLn2High, x);
  r = std::fma(n, -kLn2Low, r);
  float series = 1.0F / 5040.0F;
  series = std::fma(series, r, 1.0F / 720.0F);
  series = std::fma(series, r, 1.0F / 120.0F);
  series = std::fma(series, r, 1.0F / 24.0F);
  series = std::fma(series, r, 1.0F / 6.0F);
  series = std::fma(series, r, 0.5F);
  return std::ldexp(1.0F + std::fma(r * r, series, r), static_cast<int>(n));
}

}  // namespace galley::kernels::plain
