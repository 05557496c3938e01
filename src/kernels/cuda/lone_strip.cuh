// Outputs of a product of one row by one warp, for narrow inputs: with the bits of
// product_tile.cuh. Weights are unpacked to operands apart from the product, before the wait where
// they are known by then; the row is one column of the tensor cores' second operand, the other
// seven are zeros.
#pragma once

#include "kernels/cuda/lone_row.h"
#include "kernels/cuda/product_tile.cuh"

namespace galley::kernels::cuda {

__host__ __device__ constexpr int tile_blocks(int64_t cols) {
  return static_cast<int>((cols + kTileK - 1) / kTileK);
}
constexpr int kInputBlocks = tile_blocks(kLoneHiddenMax);
constexpr int kLatentBlocks = tile_blocks(kLoneLatentMax);

// work.operator()<kFormat>() with the format as a constant.
template <class Work>
__device__ __forceinline__ void with_format(WeightFormat format, const Work& work) {
  switch (format) {
    case WeightFormat::kFp8Tile32:
      return work.template operator()<WeightFormat::kFp8Tile32>();
    case WeightFormat::kFp4Row32:
      return work.template operator()<WeightFormat::kFp4Row32>();
    default:
      return work.template operator()<WeightFormat::kBf16>();
  }
}

// 16 outputs of a product as operands, for kBlocks blocks of K.
// Without kBoth the lower eight outputs are zeros: a warp then has eight.
template <int kBlocks, bool kBoth = true>
struct StripOperands {
  uint32_t upper[kBlocks][8];
  uint32_t lower[kBlocks][8];

  // The two rows of weights of a lane, of two matrices or one; of K, blocks from `first` on.
  template <WeightFormat kFormat>
  __device__ __forceinline__ void load(const WeightView& of_upper, int64_t o_upper,
                                       const WeightView& of_lower, int64_t o_lower, int first = 0) {
    StoredWeights<kFormat> stored_upper[kBlocks];
    StoredWeights<kFormat> stored_lower[kBlocks];
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const int64_t k = (first + block) * kTileK + 16 * (threadIdx.x % 4);
      if (k >= of_upper.in) continue;
      if (o_upper < of_upper.out) stored_upper[block].load(of_upper, o_upper, k);
      if (kBoth && o_lower < of_lower.out) stored_lower[block].load(of_lower, o_lower, k);
    }
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      stored_upper[block].decode(upper[block]);
      if constexpr (kBoth) {
        stored_lower[block].decode(lower[block]);
      } else {
#pragma unroll
        for (uint32_t& pair : lower[block]) pair = 0;
      }
    }
    pin();
  }
  // Unpacked here, not where the product wants them: the compiler moves what it can behind a wait.
  __device__ __forceinline__ void pin() {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      pin_here(upper[block]);
      if constexpr (kBoth) pin_here(lower[block]);
    }
  }
  // Of 16 outputs from `output` on.
  __device__ __forceinline__ void load_strip(const WeightView& weight, int64_t output) {
    const int64_t o = output + threadIdx.x % 32 / 4;
    with_format(weight.format,
                [&]<WeightFormat kFormat>() { load<kFormat>(weight, o, weight, o + 8); });
  }

  // Of one output a quarter of a warp's lanes, the upper ones alone.
  __device__ __forceinline__ void load_outputs(const WeightView& weight, int64_t output) {
    with_format(weight.format,
                [&]<WeightFormat kFormat>() { load<kFormat>(weight, output, weight, output); });
  }

  // Of the row `x`: sums[0] of the upper output, sums[2] of the lower one, in lanes 0, 4, ...
  __device__ __forceinline__ void multiply(const Bf16* x, int64_t cols, float (&sums)[4]) const {
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[e] = 0.0F;
    add(x, cols, 0, sums);
  }
  // The same, added to sums; K from block `first` on.
  __device__ __forceinline__ void add(const Bf16* x, int64_t cols, int first,
                                      float (&sums)[4]) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      if ((first + block) * kTileK >= cols) break;
      const int k = (first + block) * kTileK + 16 * lane;
      uint4 low = {};
      uint4 high = {};
      if (lane < 4 && k < cols) {
        const auto* from = reinterpret_cast<const uint4*>(x + k);
        low = from[0];
        high = from[1];
      }
      const uint32_t b[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const uint32_t a[4] = {upper[block][2 * j], lower[block][2 * j], upper[block][2 * j + 1],
                               lower[block][2 * j + 1]};
        multiply_add(sums, a, b[2 * j], b[2 * j + 1]);
      }
    }
  }

  // A block of K to shared memory, and from there by another warp.
  __device__ __forceinline__ void put(int block, uint4 (&to)[4][32]) const {
    const uint32_t(&u)[8] = upper[block];
    const uint32_t(&l)[8] = lower[block];
    const int lane = static_cast<int>(threadIdx.x % 32);
    to[0][lane] = {u[0], u[1], u[2], u[3]};
    to[1][lane] = {u[4], u[5], u[6], u[7]};
    to[2][lane] = {l[0], l[1], l[2], l[3]};
    to[3][lane] = {l[4], l[5], l[6], l[7]};
  }
  __device__ __forceinline__ void get(int block, const uint4 (&from)[4][32]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 four = from[i][threadIdx.x % 32];
      uint32_t(&to)[8] = i < 2 ? upper[block] : lower[block];
      to[i % 2 * 4] = four.x;
      to[i % 2 * 4 + 1] = four.y;
      to[i % 2 * 4 + 2] = four.z;
      to[i % 2 * 4 + 3] = four.w;
    }
  }
};

// store(output, sum) of a strip's sums, where they are.
template <class Store>
__device__ __forceinline__ void each_lone_sum(int64_t output, int64_t out, const float (&sums)[4],
                                              const Store& store) {
  if (threadIdx.x % 4 != 0) return;
  const int64_t o = output + threadIdx.x % 32 / 4;
  if (o < out) store(o, sums[0]);
  if (o + 8 < out) store(o + 8, sums[2]);
}
}  // namespace galley::kernels::cuda
