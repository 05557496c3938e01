// Dot products by f32 multiply-add on Highway vectors, for instruction sets without
// bf16 dots (AVX2 now). Weights unpack to f32 panels, operands are f32.
//
// Order: groups of 32 channels; inside a group each lane chains its products from
// zero; lanes times the group's scale are added to the running lanes, which fold by
// halves at the end. Floor: f32 multiply-add rate, four bytes a weight from cache.
// What limits it: unpacking at one row, loads of f32 operands at many.
#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/fast/dot.h"
#include "kernels/fast/quantise.h"
#include "kernels/fast/simd.h"
#include "kernels/number_formats.h"

namespace galley::kernels::GALLEY_ISA {
namespace {

constexpr int64_t kGroup = 32;
constexpr int64_t kPanelOutputs = 8;
constexpr int64_t kSteps = kGroup / kLanes;  // vectors in a group

// A UE8M0 byte as f32.
GALLEY_INLINE float scale_of(const uint8_t* scale, int64_t group) {
  return e8m0_to_f32(scale[group]);
}

GALLEY_INLINE void unpack_fp4_row(const uint8_t* w, int64_t k, float* out) {
  for (int64_t at = 0; at < k; at += kGroup) {
    const int64_t count = std::min(kGroup, k - at);
    HWY_ALIGN uint8_t codes[kGroup] = {};
    for (int64_t i = 0; i < count / 2; ++i) {
      codes[2 * i] = w[at / 2 + i] & 15U;
      codes[2 * i + 1] = w[at / 2 + i] >> 4;
    }
    for (int64_t i = 0; i < kGroup; i += kLanes) {
      const VecU code = hn::PromoteTo(kU32, hn::Load(U8(), codes + i));
      const VecU magnitude = hn::And(code, hn::Set(kU32, 7));
      // Codes 0 and 1 have no hidden bit: read them as 1 and 1.5, take 1 away.
      const auto small = hn::Lt(magnitude, hn::Set(kU32, 2));
      const VecU bias = hn::IfThenElse(small, hn::Set(kU32, 127U << 23), hn::Set(kU32, 126U << 23));
      const VecF value = hn::Sub(hn::BitCast(kF32, hn::Add(hn::ShiftLeft<22>(magnitude), bias)),
                                 hn::IfThenElseZero(hn::RebindMask(kF32, small), set(1.0F)));
      const VecU sign = hn::ShiftLeft<28>(hn::And(code, hn::Set(kU32, 8)));
      store(hn::BitCast(kF32, hn::Or(hn::BitCast(kU32, value), sign)), out + at + i);
    }
  }
}

GALLEY_INLINE void unpack_fp8_row(const uint8_t* w, int64_t k, float* out) {
  for (int64_t at = 0; at < k; at += kLanes) {
    HWY_ALIGN uint8_t codes[kLanes] = {};
    std::memcpy(codes, w + at, static_cast<size_t>(std::min(kLanes, k - at)));
    const VecU code = hn::PromoteTo(kU32, hn::Load(U8(), codes));
    const VecU magnitude = hn::And(code, hn::Set(kU32, 0x7FU));
    const auto small = hn::Lt(magnitude, hn::Set(kU32, 8));
    const VecU bias = hn::IfThenElse(small, hn::Set(kU32, 121U << 23), hn::Set(kU32, 120U << 23));
    const VecF value = hn::Sub(hn::BitCast(kF32, hn::Add(hn::ShiftLeft<20>(magnitude), bias)),
                               hn::IfThenElseZero(hn::RebindMask(kF32, small), set(0x1p-6F)));
    const auto nan = hn::Eq(magnitude, hn::Set(kU32, 0x7FU));
    const VecU bits = hn::IfThenElse(nan, hn::Set(kU32, 0x7FC00000U), hn::BitCast(kU32, value));
    const VecU sign = hn::ShiftLeft<24>(hn::And(code, hn::Set(kU32, 0x80U)));
    store(hn::BitCast(kF32, hn::Or(bits, sign)), out + at);
  }
}

// R rows of x against C weight rows, each [groups][32] f32.
template <int R, int C>
GALLEY_INLINE void tile(const float* w, int64_t w_stride, const float* scales, int64_t scale_stride,
                        int64_t groups, const float* const* x, float* sums, int64_t stride) {
  VecF sum[R][C];
#pragma GCC unroll 16
  for (int i = 0; i < R * C; ++i) sum[i / C][i % C] = zero();
  for (int64_t g = 0; g < groups; ++g) {
    VecF t[R][C];
#pragma GCC unroll 16
    for (int i = 0; i < R * C; ++i) t[i / C][i % C] = zero();
#pragma GCC unroll 8
    for (int64_t n = 0; n < kSteps; ++n) {
      const int64_t at = g * kGroup + n * kLanes;
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        const VecF wv = load(w + c * w_stride + at);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) t[r][c] = hn::MulAdd(wv, load(x[r] + at), t[r][c]);
      }
    }
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      const VecF s = set(scales[c * scale_stride + g]);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) sum[r][c] = hn::MulAdd(t[r][c], s, sum[r][c]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) sums[r * stride + c] = sum_lanes(sum[r][c]);
  }
}

template <int R>
void panel_rows(const float* w, int64_t w_stride, const float* scales, int64_t groups,
                int64_t count, const float* const* x, float* sums, int64_t stride) {
  int64_t c = 0;
  for (; c + 2 <= count; c += 2) {
    tile<R, 2>(w + c * w_stride, w_stride, scales + c * groups, groups, groups, x, sums + c,
               stride);
  }
  if (c < count) {
    tile<R, 1>(w + c * w_stride, w_stride, scales + c * groups, groups, groups, x, sums + c,
               stride);
  }
}

}  // namespace

void pack_operand(const Bf16* x, int64_t k, bool quantise, Layout layout, Operand* operand) {
  (void)layout;
  const int64_t padded = operand_size(k);
  std::memset(operand + k, 0, static_cast<size_t>(padded - k) * sizeof(Operand));
  if (!quantise) {
    for_lanes(k, [&](int64_t i, int64_t n) { store(load(x + i, n), operand + i, n); });
    return;
  }
  for (int64_t at = 0; at < k; at += kGroup) {
    const int64_t count = std::min(kGroup, k - at);
    Bf16 group[kGroup];
    simulate_q8(x + at, count, group);
    for_lanes(count, [&](int64_t i, int64_t n) { store(load(group + i, n), operand + at + i, n); });
  }
}

void dot(const WeightView& weight, int64_t begin, int64_t count, const Operand* const* x,
         int64_t rows, float* sums, int64_t sum_stride, fast::Scratch& scratch) {
  const int64_t k = weight.in;
  const int64_t groups = (k + kGroup - 1) / kGroup;
  const int64_t padded = groups * kGroup;
  float* panel = scratch.get<float>(kDotPanel, kPanelOutputs * padded);
  float* scales = scratch.get<float>(kDotScale, kPanelOutputs * groups);
  const auto* bytes = static_cast<const uint8_t*>(weight.data);
  for (int64_t o = 0; o < count; o += kPanelOutputs) {
    const int64_t outputs = std::min(kPanelOutputs, count - o);
    for (int64_t c = 0; c < outputs; ++c) {
      const int64_t row = begin + o + c;
      float* to = panel + c * padded;
      const uint8_t* scale = nullptr;
      std::memset(to + padded - kGroup, 0, kGroup * sizeof(float));
      switch (weight.format) {
        case WeightFormat::kFp4Row32:
          unpack_fp4_row(bytes + row * (k / 2), k, to);
          scale = weight.scale + row * groups;
          break;
        case WeightFormat::kFp8Tile32:
          unpack_fp8_row(bytes + row * k, k, to);
          scale = weight.scale + row / 32 * groups;
          break;
        case WeightFormat::kBf16: {
          const auto* w = static_cast<const Bf16*>(weight.data) + row * k;
          for_lanes(k, [&](int64_t i, int64_t n) { store(load(w + i, n), to + i, n); });
          break;
        }
        case WeightFormat::kF32:
          std::memcpy(to, static_cast<const float*>(weight.data) + row * k,
                      static_cast<size_t>(k) * sizeof(float));
          break;
      }
      for (int64_t g = 0; g < groups; ++g) {
        scales[c * groups + g] = scale == nullptr ? 1.0F : scale_of(scale, g);
      }
    }
    int64_t r = 0;
    for (; r + 2 <= rows; r += 2) {
      panel_rows<2>(panel, padded, scales, groups, outputs, x + r, sums + r * sum_stride + o,
                    sum_stride);
    }
    if (r < rows) {
      panel_rows<1>(panel, padded, scales, groups, outputs, x + r, sums + r * sum_stride + o,
                    sum_stride);
    }
  }
}

}  // namespace galley::kernels::GALLEY_ISA
