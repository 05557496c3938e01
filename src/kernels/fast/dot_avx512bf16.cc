// AVX-512 BF16 dot products: 16 f32 lanes, vdpbf16ps, 32 products an instruction.
//
// A chunk of 128 channels is four vectors of 32 bf16; lane l of all four belongs to
// the 32-channel group l / 4, so one f32 vector carries the chunk's scales.
// Many rows here: weights are unpacked into a panel, in the order of few_rows.h's sums.
// Floor: the bf16 dot rate. What limits it: one multiply-add by the scale for every four
// dots, and the panel's unpacking at a dozen rows.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/fast/codes_avx512.h"
#include "kernels/fast/dot.h"
#include "kernels/fast/few_rows.h"
#include "kernels/fast/fold_avx512.h"
#include "kernels/fast/quantise.h"
#include "kernels/fast/simd.h"

namespace galley::kernels::GALLEY_ISA {
namespace {

constexpr int64_t kPanelOutputs = 16;

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
  const bool long_rows = weight.in >= 1024;
  // Up to eight rows in registers, fp4 of long rows up to twice eight; panels pay sooner
  // for short rows, whose folding they share better.
  const int64_t few_max = !long_rows                                 ? 5
                          : weight.format == WeightFormat::kFp4Row32 ? 2 * kFewRows
                                                                     : kFewRows;
  if (rows > few_max || !plain_scales(weight, begin, count)) {
    many_rows(weight, begin, count, x, rows, sums, sum_stride, scratch);
    return;
  }
  // Outputs before and after those that come in groups go through a panel.
  const int64_t before = std::min(count, (kFewOutputs - begin % kFewOutputs) % kFewOutputs);
  const int64_t grouped = (count - before) / kFewOutputs * kFewOutputs;
  many_rows(weight, begin, before, x, rows, sums, sum_stride, scratch);
  many_rows(weight, begin + before + grouped, count - before - grouped, x, rows,
            sums + before + grouped, sum_stride, scratch);
  begin += before;
  sums += before;
  const int64_t half = rows <= kFewRows ? rows : (rows + 1) / 2;
  for (int64_t r = 0; r < rows; r += half) {
    few_rows(weight, begin, grouped, x + r, std::min(half, rows - r), sums + r * sum_stride,
             sum_stride, scratch);
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
