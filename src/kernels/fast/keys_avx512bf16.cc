// Attention and indexer inner loops with AVX-512 BF16 dots; orders are dot.h's.
//
// Scores: lanes are channels, one chain of dots over the width. Values: lanes are
// channels too, a dot takes two keys. Index scores: lanes are keys, which needs no
// folding; the sixteen records are transposed as they unpack.
#include <immintrin.h>

#include <array>
#include <cstring>

#include "kernels/fast/dot.h"
#include "kernels/fast/fold_avx512.h"
#include "kernels/fast/simd.h"
#include "kernels/number_formats.h"

namespace galley::kernels::GALLEY_ISA {
namespace {

GALLEY_INLINE __m512 dot_pairs(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

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

constexpr std::array<uint16_t, 32> kFp4 = [] {
  constexpr uint16_t kMagnitude[8] = {0, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0};
  std::array<uint16_t, 32> t{};
  for (unsigned i = 0; i < 32; ++i) {
    t[i] = static_cast<uint16_t>(kMagnitude[i & 7U] | ((i & 8U) << 12));
  }
  return t;
}();

// pairs[c] = channels 2 c and 2 c + 1 of sixteen keys, one key a lane.
GALLEY_INLINE void transpose_keys(const uint8_t* const* records, int64_t width, __m512i* pairs) {
  const __m512i table = _mm512_loadu_si512(kFp4.data());
  alignas(64) uint32_t words[kIndexWidthMax / 8][kIndexBlock];
  for (int64_t j = 0; j < kIndexBlock; ++j) {
    for (int64_t i = 0; i < width / 8; ++i) std::memcpy(&words[i][j], records[j] + 4 * i, 4);
  }
  for (int64_t i = 0; i < width / 8; ++i) {
    __m512i bytes = _mm512_load_si512(words[i]);
#pragma GCC unroll 4
    for (int b = 0; b < 4; ++b) {
      // Low nibble to the lane's low half, high nibble to its high half; vpermw reads five
      // bits and the table repeats after four.
      const __m512i nibbles =
          _mm512_mask_blend_epi16(0xAAAAAAAA, bytes, _mm512_slli_epi32(bytes, 12));
      pairs[4 * i + b] = _mm512_permutexvar_epi16(nibbles, table);
      bytes = _mm512_srli_epi32(bytes, 8);
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

}  // namespace

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

void index_scores(const uint8_t* const* records, const Operand* q, const float* w, int64_t heads,
                  int64_t width, float* scores) {
  __m512i pairs[kIndexWidthMax / 2];
  __m512 scales[kIndexWidthMax / 32];
  transpose_keys(records, width, pairs);
  for (int64_t g = 0; g < width / 32; ++g) {
    alignas(64) float of_key[kIndexBlock];
    for (int64_t j = 0; j < kIndexBlock; ++j) of_key[j] = e8m0_to_f32(records[j][width / 2 + g]);
    scales[g] = _mm512_load_ps(of_key);
  }
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
  _mm512_storeu_ps(scores, total);
}

}  // namespace galley::kernels::GALLEY_ISA
