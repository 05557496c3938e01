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

#include "kernels/fast/codes.h"
#include "kernels/fast/dot.h"
#include "kernels/fast/quantise.h"
#include "kernels/fast/simd.h"
#include "kernels/number_formats.h"

namespace galley::kernels::GALLEY_ISA {
namespace {

constexpr int64_t kGroup = 32;
constexpr int64_t kPanelOutputs = 8;
constexpr int64_t kSteps = kGroup / kLanes;  // vectors in a group

// One group of 32 channels of a weight row, `left` of them present, as f32.
GALLEY_INLINE void unpack_fp4(const uint8_t* w, int64_t left, VecF (&v)[kSteps]) {
  if (left >= kGroup) {
    unpack_e2m1(w, v);
    return;
  }
  uint8_t rest[kGroup / 2] = {};
  std::memcpy(rest, w, static_cast<size_t>(left / 2));
  unpack_e2m1(rest, v);
}

GALLEY_INLINE void unpack_fp8(const uint8_t* w, int64_t left, VecF (&v)[kSteps]) {
  uint8_t rest[kGroup] = {};
  if (left < kGroup) {
    std::memcpy(rest, w, static_cast<size_t>(left));
    w = rest;
  }
#pragma GCC unroll 8
  for (int64_t n = 0; n < kSteps; ++n) v[n] = decode_e4m3(load_bytes(w + n * kLanes));
}

template <class T>
GALLEY_INLINE void unpack_wide(const T* w, int64_t left, VecF (&v)[kSteps]) {
#pragma GCC unroll 8
  for (int64_t n = 0; n < kSteps; ++n) {
    const int64_t some = left - n * kLanes;
    v[n] = some > 0 ? load(w + n * kLanes, some) : zero();
  }
}

// Calls body(unpack, scale): unpack(row, group, v) for a weight row, and the row's scale
// bytes, null where there are none.
template <class Body>
GALLEY_INLINE void with_format(const WeightView& weight, Body&& body) {
  const int64_t k = weight.in;
  const int64_t groups = (k + kGroup - 1) / kGroup;
  const auto* bytes = static_cast<const uint8_t*>(weight.data);
  switch (weight.format) {
    case WeightFormat::kFp4Row32:
      return body(
          [=](int64_t row, int64_t g, VecF(&v)[kSteps]) __attribute__((always_inline)) {
            unpack_fp4(bytes + row * (k / 2) + g * kGroup / 2, k - g * kGroup, v);
          },
          [=](int64_t row) { return weight.scale + row * groups; });
    case WeightFormat::kFp8Tile32:
      return body(
          [=](int64_t row, int64_t g, VecF(&v)[kSteps]) __attribute__((always_inline)) {
            unpack_fp8(bytes + row * k + g * kGroup, k - g * kGroup, v);
          },
          [=](int64_t row) { return weight.scale + row / 32 * groups; });
    case WeightFormat::kBf16:
      return body(
          [=](int64_t row, int64_t g, VecF(&v)[kSteps]) __attribute__((always_inline)) {
            unpack_wide(static_cast<const Bf16*>(weight.data) + row * k + g * kGroup,
                        k - g * kGroup, v);
          },
          [](int64_t) { return static_cast<const uint8_t*>(nullptr); });
    case WeightFormat::kF32:
      return body(
          [=](int64_t row, int64_t g, VecF(&v)[kSteps]) __attribute__((always_inline)) {
            unpack_wide(static_cast<const float*>(weight.data) + row * k + g * kGroup,
                        k - g * kGroup, v);
          },
          [](int64_t) { return static_cast<const uint8_t*>(nullptr); });
  }
}

GALLEY_INLINE float scale_at(const uint8_t* scale, int64_t group) {
  return scale == nullptr ? 1.0F : decode_e8m0(scale[group]);
}

// One or two rows of x: weights go from unpacking straight into the products.
template <int R>
void few_rows(const WeightView& weight, int64_t begin, int64_t count, const float* const* x,
              float* sums, int64_t stride) {
  const int64_t groups = (weight.in + kGroup - 1) / kGroup;
  with_format(weight, [&](auto&& unpack, auto&& scale_of) {
    for (int64_t o = 0; o < count; ++o) {
      const uint8_t* scale = scale_of(begin + o);
      VecF sum[R];
#pragma GCC unroll 2
      for (int r = 0; r < R; ++r) sum[r] = zero();
      for (int64_t g = 0; g < groups; ++g) {
        VecF w[kSteps];
        unpack(begin + o, g, w);
        const VecF s = set(scale_at(scale, g));
#pragma GCC unroll 2
        for (int r = 0; r < R; ++r) {
          VecF t = zero();
#pragma GCC unroll 8
          for (int64_t n = 0; n < kSteps; ++n) {
            t = hn::MulAdd(w[n], load(x[r] + g * kGroup + n * kLanes), t);
          }
          sum[r] = hn::MulAdd(t, s, sum[r]);
        }
      }
#pragma GCC unroll 2
      for (int r = 0; r < R; ++r) sums[r * stride + o] = sum_lanes(sum[r]);
    }
  });
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
  if (count <= 0 || rows <= 0) return;
  if (rows == 1) return few_rows<1>(weight, begin, count, x, sums, sum_stride);
  if (rows == 2) return few_rows<2>(weight, begin, count, x, sums, sum_stride);
  const int64_t groups = (weight.in + kGroup - 1) / kGroup;
  const int64_t padded = groups * kGroup;
  float* panel = scratch.get<float>(kDotPanel, kPanelOutputs * padded);
  float* scales = scratch.get<float>(kDotScale, kPanelOutputs * groups);
  for (int64_t o = 0; o < count; o += kPanelOutputs) {
    const int64_t outputs = std::min(kPanelOutputs, count - o);
    with_format(weight, [&](auto&& unpack, auto&& scale_of) {
      for (int64_t c = 0; c < outputs; ++c) {
        const uint8_t* scale = scale_of(begin + o + c);
        for (int64_t g = 0; g < groups; ++g) {
          VecF w[kSteps];
          unpack(begin + o + c, g, w);
#pragma GCC unroll 8
          for (int64_t n = 0; n < kSteps; ++n) {
            store(w[n], panel + c * padded + g * kGroup + n * kLanes);
          }
          scales[c * groups + g] = scale_at(scale, g);
        }
      }
    });
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
