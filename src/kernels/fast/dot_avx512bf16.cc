// AVX-512 BF16 dot products: 16 f32 lanes, vdpbf16ps, 32 products an instruction.
//
// A chunk of 128 channels is four vectors of 32 bf16; lane l of all four belongs to
// the 32-channel group l / 4, so one f32 vector carries the chunk's scales.
// Floor: one pass over the weights' bytes for up to three rows; for many rows the
// bf16 dot rate. What limits it: at one row the unpacking (fp4: 13 instructions per
// 64 bytes, fp8: 19 per 128); at many rows one multiply-add by the scale for every
// four dots.
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "kernels/fast/dot.h"
#include "kernels/fast/fold_avx512.h"
#include "kernels/fast/quantise.h"
#include "kernels/fast/simd.h"

namespace galley::kernels::GALLEY_ISA {
namespace {

// Rows of x up to which weights are unpacked in registers, once per call.
constexpr int64_t kFusedRows = 3;
constexpr int64_t kPanelOutputs = 16;
constexpr int64_t kVectors = 4;  // of a chunk

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
  for (unsigned j = 0; j < 4; ++j) {
    for (unsigned l = 0; l < 16; ++l) t.spread_scale[j][l] = 4 * j + l / 4;
  }
  return t;
}

constexpr Tables kTables = make_tables();

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

// --- a few rows: weights unpacked in registers -----------------------------------

// The lanes of one chunk against one row of x.
GALLEY_INLINE __m512 chunk_dot(const Chunk& w, const uint16_t* x) {
  __m512 t = dot_pairs(_mm512_setzero_ps(), w.v[0], _mm512_loadu_si512(x));
  t = dot_pairs(t, w.v[1], _mm512_loadu_si512(x + 32));
  t = dot_pairs(t, w.v[2], _mm512_loadu_si512(x + 64));
  return dot_pairs(t, w.v[3], _mm512_loadu_si512(x + 96));
}

struct RowsOfX {
  const uint16_t* const* x;
  float* sums;  // [row * stride + output]
  int64_t stride;
};

template <int R, int C>
void fused_fp4(const uint8_t* w, const uint8_t* scale, int64_t k, const RowsOfX& rows) {
  const int64_t row_bytes = k / 2;
  const int64_t blocks = (k + 31) / 32;
  const int64_t chunks = (k + kChunk - 1) / kChunk;
  const __m512i table = load_table(kTables.fp4);
  __m512 sum[R][C];
#pragma GCC unroll 16
  for (int i = 0; i < R * C; ++i) sum[i / C][i % C] = _mm512_setzero_ps();
  for (int64_t first = 0; first < chunks; first += 4) {
    __m512 scales[C];
    const auto some = static_cast<__mmask16>(first_bits(blocks - 4 * first));
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      scales[c] = decode_scales(_mm_maskz_loadu_epi8(some, scale + c * blocks + 4 * first));
    }
    const int64_t end = std::min(first + 4, chunks);
    for (int64_t chunk = first; chunk < end; ++chunk) {
      const __m512i spread = load_table(kTables.spread_scale[chunk - first]);
      const uint64_t present = first_bits(row_bytes - 64 * chunk);
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) {
        const uint8_t* at = w + c * row_bytes + 64 * chunk;
        // The block of rows after this one: the hardware follows lines, not rows.
        _mm_prefetch(at + C * row_bytes, _MM_HINT_T0);
        const Chunk unpacked = unpack_fp4(_mm512_maskz_loadu_epi8(present, at), table);
        const __m512 s = _mm512_permutexvar_ps(spread, scales[c]);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          sum[r][c] =
              _mm512_fmadd_ps(chunk_dot(unpacked, rows.x[r] + chunk * kChunk), s, sum[r][c]);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) fold_and_store<C>(sum[r], rows.sums + r * rows.stride);
}

// `scales`: one vector a chunk, of the tile these rows lie in.
template <int R, int C>
void fused_fp8(const uint8_t* w, const float* scales, int64_t k, const RowsOfX& rows) {
  const int64_t chunks = (k + kChunk - 1) / kChunk;
  const Fp8Table table = load_fp8_table();
  __m512 sum[R][C];
#pragma GCC unroll 16
  for (int i = 0; i < R * C; ++i) sum[i / C][i % C] = _mm512_setzero_ps();
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const __m512 s = _mm512_load_ps(scales + 16 * chunk);
    const uint64_t first = first_bits(k - kChunk * chunk);
    const uint64_t second = first_bits(k - kChunk * chunk - 64);
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      const uint8_t* at = w + c * k + kChunk * chunk;
      _mm_prefetch(at + C * k, _MM_HINT_T0);
      _mm_prefetch(at + C * k + 64, _MM_HINT_T0);
      const Chunk unpacked = unpack_fp8(_mm512_maskz_loadu_epi8(first, at),
                                        _mm512_maskz_loadu_epi8(second, at + 64), table);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        sum[r][c] = _mm512_fmadd_ps(chunk_dot(unpacked, rows.x[r] + chunk * kChunk), s, sum[r][c]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) fold_and_store<C>(sum[r], rows.sums + r * rows.stride);
}

template <int R, int C>
void fused_bf16(const uint16_t* w, int64_t k, const RowsOfX& rows) {
  const int64_t chunks = (k + kChunk - 1) / kChunk;
  __m512 sum[R][C];
#pragma GCC unroll 16
  for (int i = 0; i < R * C; ++i) sum[i / C][i % C] = _mm512_setzero_ps();
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t left = k - kChunk * chunk;
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      const uint16_t* at = w + c * k + kChunk * chunk;
      Chunk loaded;
#pragma GCC unroll 4
      for (int n = 0; n < kVectors; ++n) {
        _mm_prefetch(reinterpret_cast<const char*>(at + C * k + 32 * n), _MM_HINT_T0);
        loaded.v[n] = _mm512_maskz_loadu_epi16(static_cast<__mmask32>(first_bits(left - 32 * n)),
                                               at + 32 * n);
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        sum[r][c] = _mm512_add_ps(sum[r][c], chunk_dot(loaded, rows.x[r] + chunk * kChunk));
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) fold_and_store<C>(sum[r], rows.sums + r * rows.stride);
}

// --- many rows: a panel of weights as bf16, register tiles over it -----------------

// C weight rows (each [chunks][128] bf16, `w_stride` apart) against R rows of x.
template <int R, int C, bool kScaled>
GALLEY_INLINE void tile(const uint16_t* w, int64_t w_stride, const float* scales,
                        int64_t scale_stride, int64_t chunks, const RowsOfX& rows) {
  __m512 sum[R][C];
#pragma GCC unroll 16
  for (int i = 0; i < R * C; ++i) sum[i / C][i % C] = _mm512_setzero_ps();
  const uint16_t* x[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) x[r] = rows.x[r];
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    __m512 t[R][C];
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) {
      const int64_t at = chunk * kChunk + 32 * n;
      __m512i wv[C];
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) wv[c] = _mm512_loadu_si512(w + c * w_stride + at);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const __m512i xv = _mm512_loadu_si512(x[r] + at);
#pragma GCC unroll 8
        for (int c = 0; c < C; ++c) {
          t[r][c] = dot_pairs(n == 0 ? _mm512_setzero_ps() : t[r][c], wv[c], xv);
        }
      }
    }
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      if constexpr (kScaled) {
        const __m512 s = _mm512_loadu_ps(scales + c * scale_stride + 16 * chunk);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) sum[r][c] = _mm512_fmadd_ps(t[r][c], s, sum[r][c]);
      } else {
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) sum[r][c] = _mm512_add_ps(sum[r][c], t[r][c]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) fold_and_store<C>(sum[r], rows.sums + r * rows.stride);
}

struct Panel {
  const uint16_t* w = nullptr;
  int64_t stride = 0;
  const float* scales = nullptr;
  int64_t scale_stride = 0;
  int64_t count = 0;
  int64_t chunks = 0;
};

template <int R, bool kScaled>
void panel_rows(const Panel& p, const RowsOfX& rows) {
  int64_t c = 0;
  RowsOfX at = rows;
  for (; c + 4 <= p.count; c += 4) {
    at.sums = rows.sums + c;
    tile<R, 4, kScaled>(p.w + c * p.stride, p.stride, p.scales + c * p.scale_stride, p.scale_stride,
                        p.chunks, at);
  }
  for (; c < p.count; ++c) {
    at.sums = rows.sums + c;
    tile<R, 1, kScaled>(p.w + c * p.stride, p.stride, p.scales + c * p.scale_stride, p.scale_stride,
                        p.chunks, at);
  }
}

template <bool kScaled>
void multiply_panel(const Panel& panel, const uint16_t* const* x, int64_t row_count, float* sums,
                    int64_t stride) {
  int64_t r = 0;
  for (; r + 3 <= row_count; r += 3) {
    panel_rows<3, kScaled>(panel, {x + r, sums + r * stride, stride});
  }
  if (row_count - r == 2) panel_rows<2, kScaled>(panel, {x + r, sums + r * stride, stride});
  if (row_count - r == 1) panel_rows<1, kScaled>(panel, {x + r, sums + r * stride, stride});
}

GALLEY_INLINE void store_chunk(const Chunk& chunk, uint16_t* out) {
#pragma GCC unroll 4
  for (int n = 0; n < kVectors; ++n) _mm512_store_si512(out + 32 * n, chunk.v[n]);
}

void unpack_panel_fp4(const uint8_t* w, int64_t k, int64_t count, uint16_t* panel) {
  const int64_t chunks = (k + kChunk - 1) / kChunk;
  const __m512i table = load_table(kTables.fp4);
  for (int64_t c = 0; c < count; ++c) {
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const uint8_t* at = w + c * (k / 2) + 64 * chunk;
      const __m512i raw = _mm512_maskz_loadu_epi8(first_bits(k / 2 - 64 * chunk), at);
      store_chunk(unpack_fp4(raw, table), panel + (c * chunks + chunk) * kChunk);
    }
  }
}

void unpack_panel_fp8(const uint8_t* w, int64_t k, int64_t count, uint16_t* panel) {
  const int64_t chunks = (k + kChunk - 1) / kChunk;
  const Fp8Table table = load_fp8_table();
  for (int64_t c = 0; c < count; ++c) {
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const uint8_t* at = w + c * k + kChunk * chunk;
      const int64_t left = k - kChunk * chunk;
      const __m512i first = _mm512_maskz_loadu_epi8(first_bits(left), at);
      const __m512i second = _mm512_maskz_loadu_epi8(first_bits(left - 64), at + 64);
      store_chunk(unpack_fp8(first, second, table), panel + (c * chunks + chunk) * kChunk);
    }
  }
}

void unpack_panel_bf16(const uint16_t* w, int64_t k, int64_t count, uint16_t* panel) {
  const int64_t padded = operand_size(k);
  for (int64_t c = 0; c < count; ++c) {
    std::memcpy(panel + c * padded, w + c * k, static_cast<size_t>(k) * 2);
    std::memset(panel + c * padded + k, 0, static_cast<size_t>(padded - k) * 2);
  }
}

// Scale bytes of `count` rows, `blocks` each, to one vector a chunk.
void spread_scales(const uint8_t* scale, int64_t blocks, int64_t count, float* out) {
  const int64_t chunks = (blocks + 3) / 4;
  for (int64_t c = 0; c < count; ++c) {
    for (int64_t first = 0; first < chunks; first += 4) {
      const auto some = static_cast<__mmask16>(first_bits(blocks - 4 * first));
      const __m512 scales =
          decode_scales(_mm_maskz_loadu_epi8(some, scale + c * blocks + 4 * first));
      const int64_t end = std::min(first + 4, chunks);
      for (int64_t chunk = first; chunk < end; ++chunk) {
        const __m512i spread = load_table(kTables.spread_scale[chunk - first]);
        _mm512_store_ps(out + (c * chunks + chunk) * 16, _mm512_permutexvar_ps(spread, scales));
      }
    }
  }
}

// --- which kernel ------------------------------------------------------------------

// f(integral constant C, first output) over `count` outputs.
template <int C, class Body>
GALLEY_INLINE void for_outputs(int64_t count, Body&& body) {
  int64_t o = 0;
  for (; o + C <= count; o += C) body(std::integral_constant<int, C>{}, o);
  for (; o < count; ++o) body(std::integral_constant<int, 1>{}, o);
}

template <int R>
void fused(const WeightView& weight, int64_t begin, int64_t count, const RowsOfX& rows,
           fast::Scratch& scratch) {
  constexpr int C = R == 1 ? 4 : 2;
  const int64_t k = weight.in;
  const int64_t blocks = (k + 31) / 32;
  const auto* bytes = static_cast<const uint8_t*>(weight.data);
  RowsOfX at = rows;
  if (weight.format == WeightFormat::kFp4Row32) {
    for_outputs<C>(count, [&](auto c, int64_t o) {
      at.sums = rows.sums + o;
      fused_fp4<R, decltype(c)::value>(bytes + (begin + o) * (k / 2),
                                       weight.scale + (begin + o) * blocks, k, at);
    });
  } else if (weight.format == WeightFormat::kBf16) {
    for_outputs<C>(count, [&](auto c, int64_t o) {
      at.sums = rows.sums + o;
      fused_bf16<R, decltype(c)::value>(static_cast<const uint16_t*>(weight.data) + (begin + o) * k,
                                        k, at);
    });
  } else {
    float* scales = scratch.get<float>(kDotScale, (blocks + 3) / 4 * 16);
    for (int64_t first = begin; first < begin + count;) {
      const int64_t end = std::min(begin + count, (first / 32 + 1) * 32);
      spread_scales(weight.scale + first / 32 * blocks, blocks, 1, scales);
      for_outputs<C>(end - first, [&](auto c, int64_t o) {
        at.sums = rows.sums + (first - begin) + o;
        fused_fp8<R, decltype(c)::value>(bytes + (first + o) * k, scales, k, at);
      });
      first = end;
    }
  }
}

void many_rows(const WeightView& weight, int64_t begin, int64_t count, const uint16_t* const* x,
               int64_t row_count, float* sums, int64_t stride, fast::Scratch& scratch) {
  const int64_t k = weight.in;
  const int64_t blocks = (k + 31) / 32;
  const int64_t chunks = (k + kChunk - 1) / kChunk;
  const auto* bytes = static_cast<const uint8_t*>(weight.data);
  uint16_t* unpacked = scratch.get<uint16_t>(kDotPanel, kPanelOutputs * chunks * kChunk);
  float* scales = scratch.get<float>(kDotScale, kPanelOutputs * chunks * 16);
  for (int64_t o = 0; o < count;) {
    const int64_t first = begin + o;
    Panel panel;
    panel.count = std::min(kPanelOutputs, count - o);
    panel.chunks = chunks;
    panel.w = unpacked;
    panel.stride = chunks * kChunk;
    panel.scales = scales;
    panel.scale_stride = 0;
    bool scaled = true;
    if (weight.format == WeightFormat::kFp4Row32) {
      unpack_panel_fp4(bytes + first * (k / 2), k, panel.count, unpacked);
      spread_scales(weight.scale + first * blocks, blocks, panel.count, scales);
      panel.scale_stride = chunks * 16;
    } else if (weight.format == WeightFormat::kFp8Tile32) {
      panel.count = std::min(panel.count, (first / 32 + 1) * 32 - first);
      unpack_panel_fp8(bytes + first * k, k, panel.count, unpacked);
      spread_scales(weight.scale + first / 32 * blocks, blocks, 1, scales);
    } else {
      scaled = false;
      const auto* w = static_cast<const uint16_t*>(weight.data) + first * k;
      if (k % kChunk == 0) {
        panel.w = w;
      } else {
        unpack_panel_bf16(w, k, panel.count, unpacked);
      }
    }
    if (scaled) {
      multiply_panel<true>(panel, x, row_count, sums + o, stride);
    } else {
      multiply_panel<false>(panel, x, row_count, sums + o, stride);
    }
    o += panel.count;
  }
}

// F32 weights: f32 products of the widened operand.
void f32_rows(const WeightView& weight, int64_t begin, int64_t count, const uint16_t* const* x,
              int64_t row_count, float* sums, int64_t stride) {
  const auto* w = static_cast<const float*>(weight.data) + begin * weight.in;
  for (int64_t o = 0; o < count; ++o) {
    const float* row = w + o * weight.in;
    for (int64_t r = 0; r < row_count; ++r) {
      const auto* xr = reinterpret_cast<const Bf16*>(x[r]);
      sums[r * stride + o] = sum_terms(weight.in, [&](int64_t i, int64_t n) {
        return hn::Mul(load(row + i, n), load(xr + i, n));
      });
    }
  }
}

}  // namespace

void dot(const WeightView& weight, int64_t begin, int64_t count, const Operand* const* x,
         int64_t rows, float* sums, int64_t sum_stride, fast::Scratch& scratch) {
  if (count <= 0 || rows <= 0) return;
  if (weight.format == WeightFormat::kF32) {
    f32_rows(weight, begin, count, x, rows, sums, sum_stride);
    return;
  }
  const RowsOfX all = {x, sums, sum_stride};
  if (rows == 1) return fused<1>(weight, begin, count, all, scratch);
  if (rows == 2) return fused<2>(weight, begin, count, all, scratch);
  if (rows == kFusedRows) return fused<3>(weight, begin, count, all, scratch);
  many_rows(weight, begin, count, x, rows, sums, sum_stride, scratch);
}

// --- activations ---------------------------------------------------------------------

namespace {

// Four natural groups of 32 (one vector each) to the chunk's four vectors.
GALLEY_INLINE Chunk transpose_blocks(__m512i g0, __m512i g1, __m512i g2, __m512i g3) {
  const __m512i a = _mm512_shuffle_i64x2(g0, g1, 0x44);  // g0 b0 b1, g1 b0 b1
  const __m512i b = _mm512_shuffle_i64x2(g2, g3, 0x44);
  const __m512i c = _mm512_shuffle_i64x2(g0, g1, 0xEE);  // g0 b2 b3, g1 b2 b3
  const __m512i d = _mm512_shuffle_i64x2(g2, g3, 0xEE);
  return {{_mm512_shuffle_i64x2(a, b, 0x88), _mm512_shuffle_i64x2(a, b, 0xDD),
           _mm512_shuffle_i64x2(c, d, 0x88), _mm512_shuffle_i64x2(c, d, 0xDD)}};
}

}  // namespace

void pack_operand(const Bf16* x, int64_t k, bool quantise, Layout layout, Operand* operand) {
  const int64_t padded = operand_size(k);
  if (quantise) {
    simulate_q8(x, k, reinterpret_cast<Bf16*>(operand));
  } else {
    std::memcpy(operand, x, static_cast<size_t>(k) * sizeof(Bf16));
  }
  std::memset(operand + k, 0, static_cast<size_t>(padded - k) * sizeof(Operand));
  if (layout == Layout::kNatural) return;
  const __m512i order = load_table(kTables.fp4_order);
  for (int64_t at = 0; at < padded; at += kChunk) {
    __m512i g[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      g[i] = _mm512_loadu_si512(operand + at + 32 * i);
      if (layout == Layout::kFp4) g[i] = _mm512_permutexvar_epi16(order, g[i]);
    }
    const Chunk chunk = transpose_blocks(g[0], g[1], g[2], g[3]);
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) _mm512_storeu_si512(operand + at + 32 * n, chunk.v[n]);
  }
}

}  // namespace galley::kernels::GALLEY_ISA
