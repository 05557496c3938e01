// A few rows of activations against weights unpacked in registers, C outputs at once.
//
// Floor: one pass over the weights' bytes up to three rows, beyond that the dots. What
// limits it (Zen 4): at one row the units that look codes up, shared with the dots (fp4: 14
// instructions of 512 bits for 64 bytes, at best 7 cycles); from four rows on the dots, with
// one multiply-add by the scale for every four, and the two-register look-ups of fp8, which
// take part of the dots' unit as well. Memory's time hides behind them, see Ahead.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/fast/codes_avx512.h"
#include "kernels/fast/few_rows.h"
#include "kernels/fast/fold_avx512.h"

namespace galley::kernels::GALLEY_ISA {
namespace {

// Outputs whose lanes are carried from one span of K to the next.
constexpr int64_t kTileOutputs = 16;

// Chunks [begin, end) of `chunks`; lanes wait in `carry` between two such spans.
struct Span {
  int64_t begin;
  int64_t end;
  int64_t chunks;
  float* carry;  // [R][C][16]
};

// Weights are asked into the second cache in the order in which memory holds them, as far
// ahead as a tile is long, whatever the order of the sums: each chunk that is multiplied asks
// for as many bytes as it has. The hardware follows lines within a page only, and not from
// row to row. Measured on Zen 4 with 5120 channels: four rows of fp8 from memory 11.7 -> 17
// GB/s a core, the speed they have from cache.
struct Ahead {
  const char* at;
};

// --- weights by format -----------------------------------------------------------

// C outputs from the first on. raw(): a chunk as stored; unpack(): as bf16; scale(): a
// chunk's scales by lane. kWhole: all 128 channels of the chunk exist.

struct Fp4Rows {
  static constexpr bool kScaled = true;
  static constexpr int64_t kChunkBytes = 64;
  using Raw = __m512i;

  const uint8_t* w;
  const uint8_t* scales;
  int64_t row_bytes;
  int64_t blocks;
  __m512i table = load_table(kTables.fp4);
  __m512i rotation = load_table(kTables.rotate_scale);

  template <bool kWhole>
  GALLEY_INLINE Raw raw(int c, int64_t chunk) const {
    const uint8_t* at = w + c * row_bytes + 64 * chunk;
    if constexpr (kWhole) return _mm512_loadu_si512(at);
    return _mm512_maskz_loadu_epi8(first_bits(row_bytes - 64 * chunk), at);
  }
  GALLEY_INLINE Chunk unpack(const Raw& raw) const { return unpack_fp4(raw, table); }
  // A plain scale's byte is its exponent: four of them, rotated into place lane by lane, off
  // the look-ups' unit.
  template <bool kWhole>
  GALLEY_INLINE __m512 scale(int c, int64_t chunk) const {
    const uint8_t* at = scales + c * blocks + 4 * chunk;
    uint32_t four = 0;
    std::memcpy(&four, at, kWhole ? 4 : static_cast<size_t>(blocks - 4 * chunk));
    return _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_rolv_epi32(_mm512_set1_epi32(static_cast<int32_t>(four)), rotation),
                         _mm512_set1_epi32(0x7F800000)));
  }
};

struct Fp8Rows {
  static constexpr bool kScaled = true;
  static constexpr int64_t kChunkBytes = 128;
  struct Raw {
    __m512i first, second;
  };

  const uint8_t* w;
  int64_t k;
  const float* scales;  // one vector a chunk, of the tile these rows lie in
  Fp8Table table = load_fp8_table();

  template <bool kWhole>
  GALLEY_INLINE Raw raw(int c, int64_t chunk) const {
    const uint8_t* at = w + c * k + kChunk * chunk;
    if constexpr (kWhole) return {_mm512_loadu_si512(at), _mm512_loadu_si512(at + 64)};
    const int64_t left = k - kChunk * chunk;
    return {_mm512_maskz_loadu_epi8(first_bits(left), at),
            _mm512_maskz_loadu_epi8(first_bits(left - 64), at + 64)};
  }
  GALLEY_INLINE Chunk unpack(const Raw& raw) const {
    return unpack_fp8(raw.first, raw.second, table);
  }
  template <bool kWhole>
  GALLEY_INLINE __m512 scale(int, int64_t chunk) const {
    return _mm512_load_ps(scales + 16 * chunk);
  }
};

struct Bf16Rows {
  static constexpr bool kScaled = false;
  static constexpr int64_t kChunkBytes = 256;
  using Raw = Chunk;

  const uint16_t* w;
  int64_t k;

  template <bool kWhole>
  GALLEY_INLINE Raw raw(int c, int64_t chunk) const {
    const uint16_t* at = w + c * k + kChunk * chunk;
    const int64_t left = k - kChunk * chunk;
    Chunk loaded;
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) {
      loaded.v[n] = kWhole ? _mm512_loadu_si512(at + 32 * n)
                           : _mm512_maskz_loadu_epi16(
                                 static_cast<__mmask32>(first_bits(left - 32 * n)), at + 32 * n);
    }
    return loaded;
  }
  GALLEY_INLINE Chunk unpack(const Raw& raw) const { return raw; }
};

// --- one span of C outputs ---------------------------------------------------------

// Rows that chain their dots side by side: a dot takes six cycles, so C times as many
// chains are under way. More than four leave too few registers.
template <int R>
constexpr int kSideBySide = R <= 4 ? R : 2;

template <int R, int C, class Rows>
struct Sums {
  __m512 sum[R][C];

  GALLEY_INLINE void start(const Span& span) {
#pragma GCC unroll 16
    for (int i = 0; i < R * C; ++i) {
      sum[i / C][i % C] =
          span.begin == 0 ? _mm512_setzero_ps() : _mm512_load_ps(span.carry + 16 * i);
    }
  }

  GALLEY_INLINE void finish(const Span& span, const RowsOfX& rows) const {
    if (span.end == span.chunks) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) fold_and_store<C>(sum[r], rows.sums + r * rows.stride);
      return;
    }
#pragma GCC unroll 16
    for (int i = 0; i < R * C; ++i) _mm512_store_ps(span.carry + 16 * i, sum[i / C][i % C]);
  }

  // Rows [first, first + G) of a chunk: one load of x serves all C outputs.
  template <int G>
  GALLEY_INLINE void add_rows(const Chunk (&w)[C], const __m512 (&scale)[C],
                              const uint16_t* const* x, int first) {
    __m512 t[G][C];
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) {
#pragma GCC unroll 4
      for (int r = 0; r < G; ++r) {
        const __m512i xv = _mm512_loadu_si512(x[first + r] + 32 * n);
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) {
          t[r][c] = dot_pairs(n == 0 ? _mm512_setzero_ps() : t[r][c], w[c].v[n], xv);
        }
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < G; ++r) {
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        __m512& to = sum[first + r][c];
        to = Rows::kScaled ? _mm512_fmadd_ps(t[r][c], scale[c], to) : _mm512_add_ps(to, t[r][c]);
      }
    }
  }

  template <bool kWhole>
  GALLEY_INLINE void add(const Rows& rows, int64_t chunk, const uint16_t* const* x,
                         const char* ahead) {
    Chunk w[C];
    __m512 scale[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
#pragma GCC unroll 4
      for (int64_t line = 0; line < Rows::kChunkBytes; line += 64) {
        _mm_prefetch(ahead + c * Rows::kChunkBytes + line, _MM_HINT_T1);
      }
      w[c] = rows.unpack(rows.template raw<kWhole>(c, chunk));
      if constexpr (Rows::kScaled) scale[c] = rows.template scale<kWhole>(c, chunk);
    }
    const uint16_t* at[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) at[r] = x[r] + chunk * kChunk;
    constexpr int G = kSideBySide<R>;
#pragma GCC unroll 4
    for (int first = 0; first + G <= R; first += G) add_rows<G>(w, scale, at, first);
    if constexpr (R % G != 0) add_rows<R % G>(w, scale, at, R - R % G);
  }
};

template <int R, int C, class Rows>
GALLEY_INLINE void add_span(const Rows& rows, int64_t k, const Span& span, const RowsOfX& out,
                            Ahead& ahead) {
  const uint16_t* x[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) x[r] = out.x[r];
  Sums<R, C, Rows> sums;
  sums.start(span);
  const char* at = ahead.at;
  int64_t chunk = span.begin;
  for (const int64_t whole = std::min(span.end, k / kChunk); chunk < whole; ++chunk) {
    sums.template add<true>(rows, chunk, x, at);
    at += C * Rows::kChunkBytes;
  }
  if (chunk < span.end) {
    sums.template add<false>(rows, chunk, x, at);
    at += C * Rows::kChunkBytes;
  }
  ahead.at = at;
  sums.finish(span, out);
}

// --- tiles ---------------------------------------------------------------------------

// Outputs [0, count) of a tile; `at(o)` gives the weights from output o on.
template <int R, int C, class At>
GALLEY_INLINE void add_tile(int64_t count, int64_t k, Span span, const RowsOfX& out, Ahead& ahead,
                            At&& at) {
  float* carry = span.carry;
  for (int64_t o = 0; o < count; o += C) {
    span.carry = carry + o * R * 16;
    add_span<R, C>(at(o), k, span, {out.x, out.sums + o, out.stride}, ahead);
  }
}

template <int R>
void rows_of(const WeightView& weight, int64_t begin, int64_t count, const RowsOfX& rows,
             fast::Scratch& scratch) {
  constexpr int C = R == 1 ? kFewOutputs : 2;
  const int64_t k = weight.in;
  const int64_t blocks = (k + 31) / 32;
  const int64_t chunks = (k + kChunk - 1) / kChunk;
  // Spans of K so short that R rows of x stay in the first cache.
  const int64_t span_chunks = R <= 2 || chunks <= 12 ? chunks : 8;
  const int64_t row_bytes = k * (weight.format == WeightFormat::kBf16 ? 2 : 1) /
                            (weight.format == WeightFormat::kFp4Row32 ? 2 : 1);
  const auto* bytes = static_cast<const uint8_t*>(weight.data);
  // Two pages and more keep memory busy; a tile that is visited span by span is whole in cache.
  const int64_t distance = span_chunks == chunks ? 20480 : kTileOutputs * row_bytes;
  float* scales = scratch.get<float>(kDotScale, chunks * 16);
  float* carry = scratch.get<float>(kDotPanel, kTileOutputs * R * 16);
  for (int64_t first = begin; first < begin + count;) {
    // Tiles begin at multiples of their size: none crosses two rows of fp8's scales.
    const int64_t end = std::min(begin + count, (first / kTileOutputs + 1) * kTileOutputs);
    const int64_t outputs = end - first;
    const uint8_t* w = bytes + first * row_bytes;
    const RowsOfX out = {rows.x, rows.sums + (first - begin), rows.stride};
    Ahead ahead = {reinterpret_cast<const char*>(w) + distance};
    if (weight.format == WeightFormat::kFp8Tile32) {
      spread_scales(weight.scale + first / 32 * blocks, blocks, 1, scales);
    }
    for (int64_t chunk = 0; chunk < chunks; chunk += span_chunks) {
      const Span span = {chunk, std::min(chunks, chunk + span_chunks), chunks, carry};
      if (weight.format == WeightFormat::kFp8Tile32) {
        add_tile<R, C>(outputs, k, span, out, ahead, [&](int64_t o) {
          return Fp8Rows{w + o * k, k, scales};
        });
      } else if (weight.format == WeightFormat::kBf16) {
        add_tile<R, C>(outputs, k, span, out, ahead, [&](int64_t o) {
          return Bf16Rows{reinterpret_cast<const uint16_t*>(w) + o * k, k};
        });
      } else {
        add_tile<R, C>(outputs, k, span, out, ahead, [&](int64_t o) {
          return Fp4Rows{w + o * row_bytes, weight.scale + (first + o) * blocks, row_bytes, blocks};
        });
      }
    }
    first = end;
  }
}

}  // namespace

bool plain_scales(const WeightView& weight, int64_t begin, int64_t count) {
  if (weight.format != WeightFormat::kFp4Row32) return true;
  const int64_t blocks = (weight.in + 31) / 32;
  const uint8_t* scales = weight.scale + begin * blocks;
  __mmask64 ends = 0;
  for (int64_t i = 0; i < count * blocks; i += 64) {
    const __mmask64 some = first_bits(count * blocks - i);
    const __m512i next = _mm512_add_epi8(_mm512_maskz_loadu_epi8(some, scales + i),
                                         _mm512_set1_epi8(1));  // 255 -> 0, 0 -> 1
    ends |= _mm512_mask_testn_epi8_mask(some, next, _mm512_set1_epi8(static_cast<char>(0xFE)));
  }
  return ends == 0;
}

void few_rows(const WeightView& weight, int64_t begin, int64_t count, const Operand* const* x,
              int64_t rows, float* sums, int64_t sum_stride, fast::Scratch& scratch) {
  static_assert(kFewRows == 8);
  DCHECK(count % kFewOutputs == 0);
  const RowsOfX out = {x, sums, sum_stride};
  switch (rows) {
    case 1:
      return rows_of<1>(weight, begin, count, out, scratch);
    case 2:
      return rows_of<2>(weight, begin, count, out, scratch);
    case 3:
      return rows_of<3>(weight, begin, count, out, scratch);
    case 4:
      return rows_of<4>(weight, begin, count, out, scratch);
    case 5:
      return rows_of<5>(weight, begin, count, out, scratch);
    case 6:
      return rows_of<6>(weight, begin, count, out, scratch);
    case 7:
      return rows_of<7>(weight, begin, count, out, scratch);
    default:
      return rows_of<8>(weight, begin, count, out, scratch);
  }
}

}  // namespace galley::kernels::GALLEY_ISA
