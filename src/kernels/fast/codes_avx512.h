// Unpacking of stored codes to bf16 by table look-ups within registers.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/fast/dot.h"
#include "kernels/fast/simd.h"

namespace galley::kernels::GALLEY_ISA {

constexpr int64_t kVectors = 4;  // of 32 bf16 in a chunk

// --- tables ------------------------------------------------------------------

struct Tables {
  // bf16 bits of each E2M1 code, twice: vpermw reads five index bits, a code has four.
  alignas(64) uint16_t fp4[32];
  // Upper and lower byte of the bf16 of each E4M3 code without its sign.
  alignas(64) uint8_t fp8_high[128];
  alignas(64) uint8_t fp8_low[128];
  // Natural group order to fp4 order: word 8 n + j is channel 4 j + n.
  alignas(64) uint16_t fp4_order[32];
  // Lane l of chunk j of four takes scale 4 j + l / 4.
  alignas(64) uint32_t spread_scale[4][16];
  // Left rotations that bring byte l / 4 of lane l to an f32's exponent.
  alignas(64) uint32_t rotate_scale[16];
};

constexpr uint16_t bf16_of_e4m3(unsigned code) {
  const unsigned exponent = code >> 3;
  const unsigned mantissa = code & 7U;
  if (code == 127) return 0x7FC0;
  if (exponent != 0) return static_cast<uint16_t>(((exponent + 120) << 7) | (mantissa << 4));
  if (mantissa == 0) return 0;
  // mantissa * 2^-9 normalised.
  unsigned shift = 0;
  while (((mantissa << shift) & 8U) == 0) ++shift;
  return static_cast<uint16_t>(((121 - shift) << 7) | (((mantissa << shift) & 7U) << 4));
}

constexpr Tables make_tables() {
  Tables t{};
  constexpr uint16_t kMagnitude[8] = {0, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0};
  for (unsigned i = 0; i < 32; ++i) {
    t.fp4[i] = static_cast<uint16_t>(kMagnitude[i & 7U] | ((i & 8U) << 12));
    t.fp4_order[8 * (i % 4) + i / 4] = static_cast<uint16_t>(i);
  }
  for (unsigned i = 0; i < 128; ++i) {
    t.fp8_high[i] = static_cast<uint8_t>(bf16_of_e4m3(i) >> 8);
    t.fp8_low[i] = static_cast<uint8_t>(bf16_of_e4m3(i) & 255U);
  }
  for (unsigned l = 0; l < 16; ++l) {
    for (unsigned j = 0; j < 4; ++j) t.spread_scale[j][l] = 4 * j + l / 4;
    t.rotate_scale[l] = (23 + 32 - 8 * (l / 4)) % 32;
  }
  return t;
}

inline constexpr Tables kTables = make_tables();

GALLEY_INLINE __m512i load_table(const void* p) { return _mm512_load_si512(p); }

// The bits of (1 << count) - 1 for count clamped to [0, 64].
GALLEY_INLINE uint64_t first_bits(int64_t count) {
  if (count <= 0) return 0;
  return count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
}

GALLEY_INLINE __m512 dot_pairs(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

// 16 UE8M0 bytes as f32: 0 is 2^-127, 255 is NaN.
GALLEY_INLINE __m512 decode_scales(__m128i bytes) {
  const __m512i b = _mm512_cvtepu8_epi32(bytes);
  const __m512i shifted = _mm512_slli_epi32(b, 23);
  const __mmask16 ends = _mm512_cmpeq_epi32_mask(
      _mm512_and_si512(_mm512_add_epi32(b, _mm512_set1_epi32(1)), _mm512_set1_epi32(0xFE)),
      _mm512_setzero_si512());  // b = 0 or 255
  return _mm512_castsi512_ps(
      _mm512_mask_or_epi32(shifted, ends, shifted, _mm512_set1_epi32(0x400000)));
}

// Scale bytes of `count` rows, `blocks` each, to one vector a chunk.
inline void spread_scales(const uint8_t* scale, int64_t blocks, int64_t count, float* out) {
  const int64_t chunks = (blocks + 3) / 4;
  for (int64_t c = 0; c < count; ++c) {
    for (int64_t first = 0; first < chunks; first += 4) {
      const auto some = static_cast<__mmask16>(first_bits(blocks - 4 * first));
      const __m512 scales =
          decode_scales(_mm_maskz_loadu_epi8(some, scale + c * blocks + 4 * first));
      for (int64_t chunk = first; chunk < first + 4 && chunk < chunks; ++chunk) {
        const __m512i spread = load_table(kTables.spread_scale[chunk - first]);
        _mm512_store_ps(out + (c * chunks + chunk) * 16, _mm512_permutexvar_ps(spread, scales));
      }
    }
  }
}

// --- unpacking a chunk ---------------------------------------------------------

struct Chunk {
  __m512i v[kVectors];
};

GALLEY_INLINE Chunk unpack_fp4(__m512i raw, __m512i table) {
  return {{_mm512_permutexvar_epi16(raw, table),
           _mm512_permutexvar_epi16(_mm512_srli_epi16(raw, 4), table),
           _mm512_permutexvar_epi16(_mm512_srli_epi16(raw, 8), table),
           _mm512_permutexvar_epi16(_mm512_srli_epi16(raw, 12), table)}};
}

struct Fp8Table {
  __m512i high0, high1, low0, low1;
};

GALLEY_INLINE Fp8Table load_fp8_table() {
  return {load_table(kTables.fp8_high), load_table(kTables.fp8_high + 64),
          load_table(kTables.fp8_low), load_table(kTables.fp8_low + 64)};
}

// Bytes of group g to 128-bit block g of every vector.
GALLEY_INLINE Chunk unpack_fp8(__m512i first, __m512i second, const Fp8Table& t) {
  const __m512i a = _mm512_shuffle_i64x2(first, second, 0x88);
  const __m512i b = _mm512_shuffle_i64x2(first, second, 0xDD);
  const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
  const __m512i a_low = _mm512_permutex2var_epi8(t.low0, a, t.low1);
  const __m512i b_low = _mm512_permutex2var_epi8(t.low0, b, t.low1);
  // high | (code & sign)
  const __m512i a_high =
      _mm512_ternarylogic_epi32(_mm512_permutex2var_epi8(t.high0, a, t.high1), a, sign, 0xF8);
  const __m512i b_high =
      _mm512_ternarylogic_epi32(_mm512_permutex2var_epi8(t.high0, b, t.high1), b, sign, 0xF8);
  return {{_mm512_unpacklo_epi8(a_low, a_high), _mm512_unpackhi_epi8(a_low, a_high),
           _mm512_unpacklo_epi8(b_low, b_high), _mm512_unpackhi_epi8(b_low, b_high)}};
}

}  // namespace galley::kernels::GALLEY_ISA
