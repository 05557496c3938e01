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
    const VecF scale = set(decode_e8m0(scales[at / 32]));
    store(hn::Mul(decode_e4m3(load_bytes(record + at)), scale), x + at);
  }
}

void read_global_record(const uint8_t* record, int64_t width, Operand* x) {
  const uint8_t* scales = record + width / 2;
  for (int64_t at = 0; at < width; at += 32) {
    const VecF low = set(e4m3_to_f32(scales[at / 16]));
    const VecF high = set(e4m3_to_f32(scales[at / 16 + 1]));
    unpack_e2m1(record + at / 2, x + at, low, high);
  }
}

void attention_scores(const Operand* q, int64_t heads, const Operand* keys, int64_t key_count,
                      int64_t width, float* scores, int64_t stride) {
  int64_t j = 0;
  for (; j + 4 <= key_count; j += 4) {
    score_keys<4>(q, heads, keys + j * key_stride(width), width, scores + j, stride);
  }
  for (int64_t left = key_count % 4; left > 0; --left, ++j) {
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

void index_scores(const uint8_t* const* records, const IndexQuery* queries, int64_t query_count,
                  int64_t heads, int64_t width) {
  HWY_ALIGN float keys[kIndexBlock * key_stride(kIndexWidthMax)];
  for (int64_t j = 0; j < kIndexBlock; ++j) {
    float* key = keys + j * key_stride(width);
    for (int64_t g = 0; g < width / 32; ++g) {
      const VecF scale = set(decode_e8m0(records[j][width / 2 + g]));
      unpack_e2m1(records[j] + 16 * g, key + 32 * g, scale, scale);
    }
  }
  constexpr int64_t kHeads = 8;
  for (int64_t i = 0; i < query_count; ++i) {
    HWY_ALIGN float products[kHeads * kIndexBlock];
    HWY_ALIGN float total[kIndexBlock] = {};
    for (int64_t first = 0; first < heads; first += kHeads) {
      const int64_t some = std::min(kHeads, heads - first);
      attention_scores(queries[i].q + first * width, some, keys, kIndexBlock, width, products,
                       kIndexBlock);
      for (int64_t a = 0; a < some; ++a) {
        const VecF w = set(queries[i].w[first + a]);
        for (int64_t lane = 0; lane < kIndexBlock; lane += kLanes) {
          // Max hands on NaN as its second operand.
          const VecF positive = hn::Max(zero(), load(products + a * kIndexBlock + lane));
          store(hn::Add(load(total + lane), hn::Mul(positive, w)), total + lane);
        }
      }
    }
    std::memcpy(queries[i].scores, total, sizeof(total));
  }
}

}  // namespace galley::kernels::GALLEY_ISA
