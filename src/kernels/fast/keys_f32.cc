// Attention and indexer inner loops by f32 multiply-add on Highway vectors; orders are
// dot.h's.
#include <algorithm>
#include <cstring>

#include "kernels/fast/codes.h"
#include "kernels/fast/dot.h"
#include "kernels/fast/quantise.h"
#include "kernels/fast/simd.h"
#include "kernels/number_formats.h"

namespace galley::kernels::GALLEY_ISA {
namespace {

template <int H, int K>
GALLEY_INLINE void score_tile(const float* q, const float* keys, int64_t width, float* scores,
                              int64_t stride) {
  VecF sum[H][K];
#pragma GCC unroll 8
  for (int i = 0; i < H * K; ++i) sum[i / K][i % K] = zero();
  for (int64_t at = 0; at < width; at += kLanes) {
    VecF k[K];
#pragma GCC unroll 4
    for (int j = 0; j < K; ++j) k[j] = load(keys + j * key_stride(width) + at);
#pragma GCC unroll 4
    for (int a = 0; a < H; ++a) {
      const VecF v = load(q + a * width + at);
#pragma GCC unroll 4
      for (int j = 0; j < K; ++j) sum[a][j] = hn::MulAdd(v, k[j], sum[a][j]);
    }
  }
#pragma GCC unroll 4
  for (int a = 0; a < H; ++a) {
#pragma GCC unroll 4
    for (int j = 0; j < K; ++j) scores[a * stride + j] = sum_lanes(sum[a][j]);
  }
}

template <int K>
void score_keys(const float* q, int64_t heads, const float* keys, int64_t width, float* scores,
                int64_t stride) {
  int64_t a = 0;
  for (; a + 2 <= heads; a += 2) {
    score_tile<2, K>(q + a * width, keys, width, scores + a * stride, stride);
  }
  if (a < heads) score_tile<1, K>(q + a * width, keys, width, scores + a * stride, stride);
}

template <int H>
GALLEY_INLINE void value_tile(const float* p, int64_t p_stride, const float* values,
                              int64_t key_count, int64_t width, float* out) {
  VecF low[H];
  VecF high[H];
#pragma GCC unroll 4
  for (int a = 0; a < H; ++a) low[a] = high[a] = zero();
  for (int64_t j = 0; j < key_count; ++j) {
    const VecF l = load(values + j * key_stride(width));
    const VecF h = load(values + j * key_stride(width) + kLanes);
#pragma GCC unroll 4
    for (int a = 0; a < H; ++a) {
      const VecF weight = set(p[a * p_stride + j]);
      low[a] = hn::MulAdd(weight, l, low[a]);
      high[a] = hn::MulAdd(weight, h, high[a]);
    }
  }
#pragma GCC unroll 4
  for (int a = 0; a < H; ++a) {
    store(low[a], out + a * width);
    store(high[a], out + a * width + kLanes);
  }
}

}  // namespace

void read_window_record(const uint8_t* record, int64_t width, Operand* x) {
  const uint8_t* scales = record + width;
  for (int64_t at = 0; at < width; at += kLanes) {
    const VecF scale = set(e8m0_to_f32(scales[at / 32]));
    store(hn::Mul(decode_e4m3(load_bytes(record + at)), scale), x + at);
  }
}

void read_global_record(const uint8_t* record, int64_t width, Operand* x) {
  const uint8_t* scales = record + width / 2;
  HWY_ALIGN uint8_t codes[16];
  for (int64_t at = 0; at < width; at += 16) {
    const VecF scale = set(e4m3_to_f32(scales[at / 16]));
    for (int64_t i = 0; i < 8; ++i) {
      const uint8_t pair = record[at / 2 + i];
      codes[2 * i] = pair & 15U;
      codes[2 * i + 1] = pair >> 4;
    }
    for (int64_t i = 0; i < 16; i += kLanes) {
      const VecU code = load_bytes(codes + i);
      const VecF magnitude = e2m1_magnitude(hn::And(code, hn::Set(kU32, 7)));
      const VecU sign = hn::ShiftLeft<28>(hn::And(code, hn::Set(kU32, 8)));
      const VecF value = hn::BitCast(kF32, hn::Or(hn::BitCast(kU32, magnitude), sign));
      store(hn::Mul(value, scale), x + at + i);
    }
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
  for (int64_t i = 0; i < width; i += 2 * kLanes) {
    int64_t a = 0;
    for (; a + 4 <= heads; a += 4) {
      value_tile<4>(p + a * p_stride, p_stride, values + i, key_count, width, out + a * width + i);
    }
    for (; a < heads; ++a) {
      value_tile<1>(p + a * p_stride, p_stride, values + i, key_count, width, out + a * width + i);
    }
  }
}

void index_scores(const uint8_t* const* records, const Operand* q, const float* w, int64_t heads,
                  int64_t width, float* scores) {
  // Channels by keys: one key a lane.
  HWY_ALIGN float keys[kIndexWidthMax][kIndexBlock];
  HWY_ALIGN float scales[kIndexWidthMax / 32][kIndexBlock];
  for (int64_t j = 0; j < kIndexBlock; ++j) {
    for (int64_t i = 0; i < width / 2; ++i) {
      keys[2 * i][j] = e2m1_to_f32(records[j][i] & 15U);
      keys[2 * i + 1][j] = e2m1_to_f32(records[j][i] >> 4);
    }
    for (int64_t g = 0; g < width / 32; ++g) scales[g][j] = e8m0_to_f32(records[j][width / 2 + g]);
  }
  for (int64_t lane = 0; lane < kIndexBlock; lane += kLanes) {
    VecF total = zero();
    for (int64_t a = 0; a < heads; ++a) {
      VecF sum = zero();
      for (int64_t g = 0; g < width / 32; ++g) {
        VecF t = zero();
        for (int64_t c = 32 * g; c < 32 * g + 32; ++c) {
          t = hn::MulAdd(load(keys[c] + lane), set(q[a * width + c]), t);
        }
        sum = hn::MulAdd(t, load(scales[g] + lane), sum);
      }
      total = hn::Add(total, hn::Mul(hn::Max(zero(), sum), set(w[a])));
    }
    store(total, scores + lane);
  }
}

}  // namespace galley::kernels::GALLEY_ISA
