// Attention and indexer inner loops with AVX-512 BF16 dots; orders are dot.h's.
//
// Scores: lanes are channels, one chain of dots over the width. Values: lanes are
// channels too, a dot takes two keys. Index scores: lanes are keys, which needs no
// folding; the sixteen records are transposed as they unpack.
#include <immintrin.h>

#include <array>
#include <bit>
#include <cstring>

#include "kernels/fast/codes.h"
#include "kernels/fast/codes_avx512.h"
#include "kernels/fast/dot.h"
#include "kernels/fast/fold_avx512.h"
#include "kernels/fast/quantise.h"
#include "kernels/fast/simd.h"
#include "kernels/number_formats.h"

namespace galley::kernels::GALLEY_ISA {
namespace {

// --- scores ------------------------------------------------------------------------

template <int H, int K>
GALLEY_INLINE void score_tile(const uint16_t* q, const uint16_t* keys, int64_t width, float* scores,
                              int64_t stride) {
  __m512 sum[H][K];
#pragma GCC unroll 16
  for (int i = 0; i < H * K; ++i) sum[i / K][i % K] = _mm512_setzero_ps();
  for (int64_t at = 0; at < width; at += 32) {
    __m512i k[K];
#pragma GCC unroll 4
    for (int j = 0; j < K; ++j) k[j] = _mm512_loadu_si512(keys + j * key_stride(width) + at);
#pragma GCC unroll 4
    for (int a = 0; a < H; ++a) {
      const __m512i v = _mm512_loadu_si512(q + a * width + at);
#pragma GCC unroll 4
      for (int j = 0; j < K; ++j) sum[a][j] = dot_pairs(sum[a][j], v, k[j]);
    }
  }
#pragma GCC unroll 4
  for (int a = 0; a < H; ++a) fold_and_store<K>(sum[a], scores + a * stride);
}

template <int K>
void score_keys(const uint16_t* q, int64_t heads, const uint16_t* keys, int64_t width,
                float* scores, int64_t stride) {
  int64_t a = 0;
  for (; a + 4 <= heads; a += 4) {
    score_tile<4, K>(q + a * width, keys, width, scores + a * stride, stride);
  }
  for (; a < heads; ++a) score_tile<1, K>(q + a * width, keys, width, scores + a * stride, stride);
}

// --- values ------------------------------------------------------------------------

// H heads, 32 channels.
template <int H>
GALLEY_INLINE void value_tile(const uint16_t* p, int64_t p_stride, const uint16_t* values,
                              int64_t key_count, int64_t width, float* out) {
  __m512 low[H];
  __m512 high[H];
#pragma GCC unroll 8
  for (int a = 0; a < H; ++a) low[a] = high[a] = _mm512_setzero_ps();
  const int64_t stride = key_stride(width);
  for (int64_t j = 0; j < key_count; j += 2) {
    const __m512i first = _mm512_loadu_si512(values + j * stride);
    const __m512i second = _mm512_loadu_si512(values + (j + 1) * stride);
    const __m512i l = _mm512_unpacklo_epi16(first, second);
    const __m512i h = _mm512_unpackhi_epi16(first, second);
#pragma GCC unroll 8
    for (int a = 0; a < H; ++a) {
      int32_t pair;
      std::memcpy(&pair, p + a * p_stride + j, sizeof(pair));
      const __m512i both = _mm512_set1_epi32(pair);
      low[a] = dot_pairs(low[a], l, both);
      high[a] = dot_pairs(high[a], h, both);
    }
  }
  // unpack left channels 8 b + 0..3 in block b of `low`, 8 b + 4..7 in `high`.
  const __m512i order0 = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i order1 =
      _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
#pragma GCC unroll 8
  for (int a = 0; a < H; ++a) {
    _mm512_storeu_ps(out + a * width, _mm512_permutex2var_ps(low[a], order0, high[a]));
    _mm512_storeu_ps(out + a * width + 16, _mm512_permutex2var_ps(low[a], order1, high[a]));
  }
}

// --- indexer -----------------------------------------------------------------------

// pairs[c] = channels 2 c and 2 c + 1 of sixteen keys, one key a lane.
GALLEY_INLINE void transpose_keys(const uint8_t* const* records, int64_t width, __m512i* pairs) {
  const __m512i table = load_table(kTables.fp4);
  for (int64_t at = 0; at < width / 2; at += 16) {
    // Four words of every key: rows[i] holds those of keys i, 4 + i, 8 + i, 12 + i.
    __m512i rows[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const auto words = [&](int key) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(records[key] + at));
      };
      __m512i row = _mm512_castsi128_si512(words(i));
      row = _mm512_inserti32x4(row, words(4 + i), 1);
      row = _mm512_inserti32x4(row, words(8 + i), 2);
      rows[i] = _mm512_inserti32x4(row, words(12 + i), 3);
    }
    const __m512i a = _mm512_unpacklo_epi32(rows[0], rows[1]);
    const __m512i b = _mm512_unpackhi_epi32(rows[0], rows[1]);
    const __m512i c = _mm512_unpacklo_epi32(rows[2], rows[3]);
    const __m512i d = _mm512_unpackhi_epi32(rows[2], rows[3]);
    const __m512i word[4] = {_mm512_unpacklo_epi64(a, c), _mm512_unpackhi_epi64(a, c),
                             _mm512_unpacklo_epi64(b, d), _mm512_unpackhi_epi64(b, d)};
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      __m512i bytes = word[i];
#pragma GCC unroll 4
      for (int n = 0; n < 4; ++n) {
        // Low nibble to the lane's low half, high nibble to its high half; vpermw reads
        // five bits and the table repeats after four.
        const __m512i nibbles =
            _mm512_mask_blend_epi16(0xAAAAAAAA, bytes, _mm512_slli_epi32(bytes, 12));
        pairs[at + 4 * i + n] = _mm512_permutexvar_epi16(nibbles, table);
        bytes = _mm512_srli_epi32(bytes, 8);
      }
    }
  }
}

// Adds H heads' share to `total`.
template <int H>
GALLEY_INLINE __m512 add_heads(const __m512i* pairs, const __m512* scales, const uint16_t* q,
                               const float* w, int64_t width, __m512 total) {
  __m512 sum[H];
#pragma GCC unroll 8
  for (int a = 0; a < H; ++a) sum[a] = _mm512_setzero_ps();
  for (int64_t g = 0; g < width / 32; ++g) {
    __m512 t[H];
#pragma GCC unroll 8
    for (int a = 0; a < H; ++a) t[a] = _mm512_setzero_ps();
#pragma GCC unroll 16
    for (int c = 0; c < 16; ++c) {
      const __m512i k = pairs[16 * g + c];
#pragma GCC unroll 8
      for (int a = 0; a < H; ++a) {
        int32_t pair;
        std::memcpy(&pair, q + a * width + 32 * g + 2 * c, sizeof(pair));
        t[a] = dot_pairs(t[a], k, _mm512_set1_epi32(pair));
      }
    }
#pragma GCC unroll 8
    for (int a = 0; a < H; ++a) sum[a] = _mm512_fmadd_ps(t[a], scales[g], sum[a]);
  }
#pragma GCC unroll 8
  for (int a = 0; a < H; ++a) {
    // max(0, sum) hands on NaN as its second operand.
    const __m512 positive = _mm512_max_ps(_mm512_setzero_ps(), sum[a]);
    total = _mm512_add_ps(total, _mm512_mul_ps(positive, _mm512_set1_ps(w[a])));
  }
  return total;
}

// --- records -----------------------------------------------------------------------

constexpr std::array<float, 256> kE4m3 = [] {
  std::array<float, 256> values{};
  for (unsigned code = 0; code < 256; ++code) {
    const uint32_t magnitude = bf16_of_e4m3(code & 127U);
    values[code] = std::bit_cast<float>((magnitude | ((code & 128U) << 8)) << 16);
  }
  return values;
}();

// 64 E4M3 codes to bf16 in order: `low` the first 32, `high` the rest.
GALLEY_INLINE void unpack_in_order(__m512i codes, const Fp8Table& t, __m512i& low, __m512i& high) {
  const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  const __m512i c = _mm512_permutexvar_epi64(order, codes);
  const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
  const __m512i l = _mm512_permutex2var_epi8(t.low0, c, t.low1);
  const __m512i h =
      _mm512_ternarylogic_epi32(_mm512_permutex2var_epi8(t.high0, c, t.high1), c, sign, 0xF8);
  low = _mm512_unpacklo_epi8(l, h);
  high = _mm512_unpackhi_epi8(l, h);
}

// bf16 values times 2^(code - 127) by adding to exponents: for codes that keep every
// E4M3 value normal. Zeros and NaNs stay.
GALLEY_INLINE __m512i scale_exponents(__m512i v, uint8_t code) {
  const __m512i doubled = _mm512_slli_epi16(v, 1);
  const __mmask32 finite = _mm512_cmplt_epu16_mask(_mm512_sub_epi16(doubled, _mm512_set1_epi16(1)),
                                                   _mm512_set1_epi16(static_cast<short>(0xFEFF)));
  return _mm512_mask_add_epi16(v, finite, v,
                               _mm512_set1_epi16(static_cast<short>((code - 127) * 128)));
}
constexpr uint8_t kExponentScaleMin = 10;
constexpr uint8_t kExponentScaleMax = 246;

}  // namespace

void read_window_record(const uint8_t* record, int64_t width, Operand* x) {
  const uint8_t* scales = record + width;
  const Fp8Table table = load_fp8_table();
  for (int64_t at = 0; at < width; at += 64) {
    const int64_t left = width - at;  // 32 or more
    const __m512i codes = _mm512_maskz_loadu_epi8(first_bits(left), record + at);
    __m512i group[2];
    unpack_in_order(codes, table, group[0], group[1]);
    for (int64_t g = 0; g < 2 && 32 * g < left; ++g) {
      const uint8_t scale = scales[at / 32 + g];
      uint16_t* to = x + at + 32 * g;
      if (scale >= kExponentScaleMin && scale <= kExponentScaleMax) {
        _mm512_storeu_si512(to, scale_exponents(group[g], scale));
      } else {  // products that may leave the normal range
        for (int64_t i = 0; i < 32; i += kLanes) {
          const VecF value = decode_e4m3(load_bytes(record + at + 32 * g + i));
          hn::StoreU(upper_halves(hn::Mul(value, set(e8m0_to_f32(scale)))), U16(), to + i);
        }
      }
    }
  }
}

void read_global_record(const uint8_t* record, int64_t width, Operand* x) {
  const uint8_t* scales = record + width / 2;
  const __m512 magnitudes = _mm512_setr_ps(0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F, -0.0F,
                                           -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F);
  const __m512i shift = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
  // Upper halves of two vectors of f32, in order.
  const __m512i odd_words = [] {
    alignas(64) uint16_t order[32];
    for (int i = 0; i < 32; ++i) order[i] = static_cast<uint16_t>(2 * i + 1);
    return _mm512_load_si512(order);
  }();
  for (int64_t at = 0; at < width; at += 32) {
    __m512i v[2];
#pragma GCC unroll 2
    for (int g = 0; g < 2; ++g) {
      int32_t words[2];
      std::memcpy(words, record + at / 2 + 8 * g, sizeof(words));
      const __m512i both = _mm512_mask_set1_epi32(_mm512_set1_epi32(words[0]), 0xFF00, words[1]);
      const __m512 value = _mm512_permutexvar_ps(_mm512_srlv_epi32(both, shift), magnitudes);
      v[g] = _mm512_castps_si512(_mm512_mul_ps(value, _mm512_set1_ps(kE4m3[scales[at / 16 + g]])));
    }
    _mm512_storeu_si512(x + at, _mm512_permutex2var_epi16(v[0], odd_words, v[1]));
  }
}

void attention_scores(const Operand* q, int64_t heads, const Operand* keys, int64_t key_count,
                      int64_t width, float* scores, int64_t stride) {
  int64_t j = 0;
  for (; j + 4 <= key_count; j += 4) {
    score_keys<4>(q, heads, keys + j * key_stride(width), width, scores + j, stride);
  }
  for (; j < key_count; ++j) {
    score_keys<1>(q, heads, keys + j * key_stride(width), width, scores + j, stride);
  }
}

void attention_values(const Operand* p, int64_t p_stride, int64_t heads, const Operand* values,
                      int64_t key_count, int64_t width, float* out) {
  for (int64_t i = 0; i < width; i += 32) {
    int64_t a = 0;
    for (; a + 8 <= heads; a += 8) {
      value_tile<8>(p + a * p_stride, p_stride, values + i, key_count, width, out + a * width + i);
    }
    for (; a + 2 <= heads; a += 2) {
      value_tile<2>(p + a * p_stride, p_stride, values + i, key_count, width, out + a * width + i);
    }
    for (; a < heads; ++a) {
      value_tile<1>(p + a * p_stride, p_stride, values + i, key_count, width, out + a * width + i);
    }
  }
}

void index_scores(const uint8_t* const* records, const IndexQuery* queries, int64_t query_count,
                  int64_t heads, int64_t width) {
  __m512i pairs[kIndexWidthMax / 2];
  __m512 scales[kIndexWidthMax / 32];
  transpose_keys(records, width, pairs);
  for (int64_t g = 0; g < width / 32; ++g) {
    alignas(16) uint8_t of_key[kIndexBlock];
    for (int64_t j = 0; j < kIndexBlock; ++j) of_key[j] = records[j][width / 2 + g];
    scales[g] = decode_scales(_mm_load_si128(reinterpret_cast<const __m128i*>(of_key)));
  }
  for (int64_t i = 0; i < query_count; ++i) {
    const uint16_t* q = queries[i].q;
    const float* w = queries[i].w;
    __m512 total = _mm512_setzero_ps();
    int64_t a = 0;
    for (; a + 8 <= heads; a += 8) {
      total = add_heads<8>(pairs, scales, q + a * width, w + a, width, total);
    }
    for (; a + 4 <= heads; a += 4) {
      total = add_heads<4>(pairs, scales, q + a * width, w + a, width, total);
    }
    for (; a < heads; ++a) {
      total = add_heads<1>(pairs, scales, q + a * width, w + a, width, total);
    }
    _mm512_storeu_ps(queries[i].scores, total);
  }
}

}  // namespace galley::kernels::GALLEY_ISA
