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
#include <cstring>

#include "base/check.h"
#include "kernels/fast/codes_avx512.h"
#include "kernels/fast/dot.h"
#include "kernels/fast/fold_avx512.h"
#include "kernels/fast/quantise.h"
#include "kernels/fast/simd.h"

namespace galley::kernels::GALLEY_ISA {
namespace {

// Rows of x that share weights unpacked in registers.
constexpr int64_t kFusedRows = 8;
constexpr int64_t kPanelOutputs = 16;

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

// Chunks [begin, end) of `chunks`; lanes wait in `carry` between two such spans.
struct Span {
  int64_t begin;
  int64_t end;
  int64_t chunks;
  float* carry;  // [R][C][16]
};

template <int R, int C>
GALLEY_INLINE void start_sums(__m512 (&sum)[R][C], const Span& span) {
#pragma GCC unroll 32
  for (int i = 0; i < R * C; ++i) {
    sum[i / C][i % C] = span.begin == 0 ? _mm512_setzero_ps() : _mm512_load_ps(span.carry + 16 * i);
  }
}

template <int R, int C>
GALLEY_INLINE void finish_sums(const __m512 (&sum)[R][C], const Span& span, const RowsOfX& rows) {
  if (span.end == span.chunks) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) fold_and_store<C>(sum[r], rows.sums + r * rows.stride);
    return;
  }
#pragma GCC unroll 32
  for (int i = 0; i < R * C; ++i) _mm512_store_ps(span.carry + 16 * i, sum[i / C][i % C]);
}

// Weights are asked into the second cache well ahead: the hardware follows lines within a
// page, not from row to row, and the first cache has too few misses in flight for memory's
// latency. Few rows stream straight through memory; more take spans, row after row.
// Measured on Zen 4 with 5120 channels, one thread: 14.5 -> 21 GB/s (fp8), 11.8 -> 15 (fp4).
template <int R, int C>
GALLEY_INLINE void prefetch_weights(const void* at, int64_t row_bytes) {
  constexpr int64_t kStreamAhead = 20480;
  _mm_prefetch(static_cast<const char*>(at) + (R <= 2 ? kStreamAhead : C * row_bytes), _MM_HINT_T1);
}

// Adds one chunk of C weight rows; kWhole: all of its 128 channels exist.
template <int R, int C, bool kWhole>
GALLEY_INLINE void add_fp4(__m512 (&sum)[R][C], const uint8_t* w, int64_t row_bytes, int64_t chunk,
                           const __m512 (&scales)[C], __m512i spread, __m512i table,
                           const uint16_t* const* x) {
  Chunk unpacked[C];
  __m512 s[C];
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
    const uint8_t* at = w + c * row_bytes + 64 * chunk;
    prefetch_weights<R, C>(at, row_bytes);
    const __m512i raw = kWhole ? _mm512_loadu_si512(at)
                               : _mm512_maskz_loadu_epi8(first_bits(row_bytes - 64 * chunk), at);
    unpacked[c] = unpack_fp4(raw, table);
    s[c] = _mm512_permutexvar_ps(spread, scales[c]);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      sum[r][c] = _mm512_fmadd_ps(chunk_dot(unpacked[c], x[r] + chunk * kChunk), s[c], sum[r][c]);
    }
  }
}

template <int R, int C>
GALLEY_INLINE void fused_fp4(const uint8_t* w, const uint8_t* scale, int64_t k, const Span& span,
                             const RowsOfX& rows) {
  const int64_t row_bytes = k / 2;
  const int64_t blocks = (k + 31) / 32;
  const __m512i table = load_table(kTables.fp4);
  const uint16_t* x[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) x[r] = rows.x[r];
  __m512 sum[R][C];
  start_sums<R, C>(sum, span);
  int64_t first = span.begin;  // a multiple of 4
  for (; first + 4 <= span.end && (first + 4) * kChunk <= k; first += 4) {
    __m512 scales[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      scales[c] = decode_scales(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(scale + c * blocks + 4 * first)));
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      add_fp4<R, C, true>(sum, w, row_bytes, first + j, scales, load_table(kTables.spread_scale[j]),
                          table, x);
    }
  }
  if (first < span.end) {
    __m512 scales[C];
    const auto some = static_cast<__mmask16>(first_bits(blocks - 4 * first));
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      scales[c] = decode_scales(_mm_maskz_loadu_epi8(some, scale + c * blocks + 4 * first));
    }
    for (int64_t chunk = first; chunk < span.end; ++chunk) {
      const __m512i spread = load_table(kTables.spread_scale[chunk - first]);
      if ((chunk + 1) * kChunk <= k) {
        add_fp4<R, C, true>(sum, w, row_bytes, chunk, scales, spread, table, x);
      } else {
        add_fp4<R, C, false>(sum, w, row_bytes, chunk, scales, spread, table, x);
      }
    }
  }
  finish_sums<R, C>(sum, span, rows);
}

template <int R, int C, bool kWhole>
GALLEY_INLINE void add_fp8(__m512 (&sum)[R][C], const uint8_t* w, int64_t k, int64_t chunk,
                           const float* scales, const Fp8Table& table, const uint16_t* const* x) {
  const __m512 s = _mm512_load_ps(scales + 16 * chunk);
  Chunk unpacked[C];
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) {
    const uint8_t* at = w + c * k + kChunk * chunk;
    prefetch_weights<R, C>(at, k);
    prefetch_weights<R, C>(at + 64, k);
    if constexpr (kWhole) {
      unpacked[c] = unpack_fp8(_mm512_loadu_si512(at), _mm512_loadu_si512(at + 64), table);
    } else {
      const int64_t left = k - kChunk * chunk;
      unpacked[c] = unpack_fp8(_mm512_maskz_loadu_epi8(first_bits(left), at),
                               _mm512_maskz_loadu_epi8(first_bits(left - 64), at + 64), table);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      sum[r][c] = _mm512_fmadd_ps(chunk_dot(unpacked[c], x[r] + chunk * kChunk), s, sum[r][c]);
    }
  }
}

// `scales`: one vector a chunk, of the tile these rows lie in.
template <int R, int C>
GALLEY_INLINE void fused_fp8(const uint8_t* w, const float* scales, int64_t k, const Span& span,
                             const RowsOfX& rows) {
  const Fp8Table table = load_fp8_table();
  const uint16_t* x[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) x[r] = rows.x[r];
  __m512 sum[R][C];
  start_sums<R, C>(sum, span);
  int64_t chunk = span.begin;
  for (; chunk < span.end && (chunk + 1) * kChunk <= k; ++chunk) {
    add_fp8<R, C, true>(sum, w, k, chunk, scales, table, x);
  }
  for (; chunk < span.end; ++chunk) add_fp8<R, C, false>(sum, w, k, chunk, scales, table, x);
  finish_sums<R, C>(sum, span, rows);
}

template <int R, int C>
GALLEY_INLINE void fused_bf16(const uint16_t* w, int64_t k, const Span& span, const RowsOfX& rows) {
  __m512 sum[R][C];
  start_sums<R, C>(sum, span);
  for (int64_t chunk = span.begin; chunk < span.end; ++chunk) {
    const int64_t left = k - kChunk * chunk;
    Chunk loaded[C];
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      const uint16_t* at = w + c * k + kChunk * chunk;
#pragma GCC unroll 4
      for (int n = 0; n < kVectors; ++n) {
        _mm_prefetch(reinterpret_cast<const char*>(at + C * k + 32 * n), _MM_HINT_T1);
        loaded[c].v[n] = _mm512_maskz_loadu_epi16(static_cast<__mmask32>(first_bits(left - 32 * n)),
                                                  at + 32 * n);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int c = 0; c < C; ++c) {
        sum[r][c] = _mm512_add_ps(sum[r][c], chunk_dot(loaded[c], rows.x[r] + chunk * kChunk));
      }
    }
  }
  finish_sums<R, C>(sum, span, rows);
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
  for (; r + 3 <= row_count && row_count - r != 4; r += 3) {
    panel_rows<3, kScaled>(panel, {x + r, sums + r * stride, stride});
  }
  for (; r + 2 <= row_count; r += 2) {  // four left make two twos: a lone row is dear
    panel_rows<2, kScaled>(panel, {x + r, sums + r * stride, stride});
  }
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

// Outputs whose lanes are carried from one span of K to the next.
constexpr int64_t kCarriedOutputs = 32;

template <int R>
void fused(const WeightView& weight, int64_t begin, int64_t count, const RowsOfX& rows,
           fast::Scratch& scratch) {
  constexpr int C = R == 1 ? 4 : 2;
  const int64_t k = weight.in;
  const int64_t blocks = (k + 31) / 32;
  const int64_t chunks = (k + kChunk - 1) / kChunk;
  // Spans of K so short that R rows of x stay in the first cache.
  const int64_t span_chunks = R <= 2 || chunks <= 12 ? chunks : 8;
  const auto* bytes = static_cast<const uint8_t*>(weight.data);
  float* scales = scratch.get<float>(kDotScale, chunks * 16);
  float* carry = scratch.get<float>(kDotPanel, kCarriedOutputs * R * 16);
  for (int64_t first = begin; first < begin + count;) {
    const int64_t end = std::min(begin + count, (first / kCarriedOutputs + 1) * kCarriedOutputs);
    if (weight.format == WeightFormat::kFp8Tile32) {
      spread_scales(weight.scale + first / 32 * blocks, blocks, 1, scales);
    }
    for (int64_t chunk = 0; chunk < chunks; chunk += span_chunks) {
      const Span whole = {chunk, std::min(chunks, chunk + span_chunks), chunks, carry};
      const RowsOfX out = {rows.x, rows.sums + (first - begin), rows.stride};
      const int64_t outputs = end - first;
      if (weight.format == WeightFormat::kFp4Row32) {
        for_outputs<C>(outputs, [&](auto c, int64_t o) {
          const Span span = {whole.begin, whole.end, chunks, carry + o * R * 16};
          fused_fp4<R, decltype(c)::value>(bytes + (first + o) * (k / 2),
                                           weight.scale + (first + o) * blocks, k, span,
                                           {out.x, out.sums + o, out.stride});
        });
      } else if (weight.format == WeightFormat::kFp8Tile32) {
        for_outputs<C>(outputs, [&](auto c, int64_t o) {
          const Span span = {whole.begin, whole.end, chunks, carry + o * R * 16};
          fused_fp8<R, decltype(c)::value>(bytes + (first + o) * k, scales, k, span,
                                           {out.x, out.sums + o, out.stride});
        });
      } else {
        for_outputs<C>(outputs, [&](auto c, int64_t o) {
          const Span span = {whole.begin, whole.end, chunks, carry + o * R * 16};
          fused_bf16<R, decltype(c)::value>(
              static_cast<const uint16_t*>(weight.data) + (first + o) * k, k, span,
              {out.x, out.sums + o, out.stride});
        });
      }
    }
    first = end;
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

void few_rows(const WeightView& weight, int64_t begin, int64_t count, const RowsOfX& rows,
              int64_t row_count, fast::Scratch& scratch) {
  static_assert(kFusedRows == 8);
  switch (row_count) {
    case 1:
      return fused<1>(weight, begin, count, rows, scratch);
    case 2:
      return fused<2>(weight, begin, count, rows, scratch);
    case 3:
      return fused<3>(weight, begin, count, rows, scratch);
    case 4:
      return fused<4>(weight, begin, count, rows, scratch);
    case 5:
      return fused<5>(weight, begin, count, rows, scratch);
    case 6:
      return fused<6>(weight, begin, count, rows, scratch);
    case 7:
      return fused<7>(weight, begin, count, rows, scratch);
    default:
      return fused<8>(weight, begin, count, rows, scratch);
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
  const bool long_rows = weight.in >= 1024;
  // Up to eight rows in registers, fp4 of long rows up to twice eight; panels pay sooner
  // for short rows, whose folding they share better.
  const int64_t fused_max = !long_rows                                 ? 5
                            : weight.format == WeightFormat::kFp4Row32 ? 2 * kFusedRows
                                                                       : kFusedRows;
  if (rows > fused_max) {
    many_rows(weight, begin, count, x, rows, sums, sum_stride, scratch);
    return;
  }
  const int64_t half = rows <= kFusedRows ? rows : (rows + 1) / 2;
  for (int64_t r = 0; r < rows; r += half) {
    few_rows(weight, begin, count, {x + r, sums + r * sum_stride, sum_stride},
             std::min(half, rows - r), scratch);
  }
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
