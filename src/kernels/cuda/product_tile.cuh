// 16 outputs x 8 kTiles rows of y = W x by one warp, on the bf16 tensor cores.
//
// Every stored weight times its power-of-two scale is exact in bf16, and so is a
// Q8-quantised input in simulated form: the product is the specification's up to
// the order of its f32 sums. That order is K in blocks of 64, within a block four
// m16n8k16 over the k that lane quarters hold (16 consecutive each, 4 of them per
// instruction): fixed by K alone, whatever the rows. Operands go from memory to
// registers without a stop: a lane reads 16 consecutive weights of one output and
// the same 16 inputs of one row, so no layout is needed anywhere.
#pragma once

#include <cstdint>

#include "kernels/cuda/mma_bf16.cuh"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/row.cuh"
#include "kernels/tensor.h"

namespace galley::kernels::cuda {

constexpr int kTileOutputs = 16;
constexpr int kTileK = 64;

__host__ __device__ __forceinline__ int64_t strips_of(const WeightView& weight) {
  return (weight.out + kTileOutputs - 1) / kTileOutputs;
}

// Four codes of E2M1, the first in the lowest bits of `codes`, times the power of two that is both
// halves of `factor`, as two pairs of bf16. The bytes of the magnitudes' bf16 are looked up; signs
// are put above them. One rounding, as of a product in f32 (a scale's code 0 makes subnormals).
__device__ __forceinline__ void scaled_e2m1(uint32_t codes, uint32_t factor, uint32_t& first,
                                            uint32_t& second) {
  const uint32_t magnitudes = codes & 0x7777U;
  // 0, 0.5, 1, 1.5, 2, 3, 4, 6 are 0000, 3F00, 3F80, 3FC0, 4000, 4040, 4080, 40C0.
  const uint32_t lower = __byte_perm(0xC0800000U, 0xC0804000U, magnitudes);
  const uint32_t upper = __byte_perm(0x3F3F3F00U, 0x40404040U, magnitudes);
  const uint32_t spread = __byte_perm(codes, 0, 0x1100);  // codes 0 1 0 1, 2 3 2 3
  const uint32_t signs = (spread << 4 & 0x00800080U) | (spread & 0x80008000U);
  const uint32_t signed_upper = upper | signs;
  const auto scaled = [factor](uint32_t pair) {
    uint32_t result;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(pair), "r"(factor));
    return result;
  };
  first = scaled(__byte_perm(lower, signed_upper, 0x5140));
  second = scaled(__byte_perm(lower, signed_upper, 0x7362));
}

// Weights [k, k + 16) of one output as stored: what is loaded, apart from what is computed of it,
// so that several loads are under way at once. in % 16 == 0.
template <WeightFormat kFormat>
struct StoredWeights {
  uint4 low = {};
  uint4 high = {};
  float scale = 0.0F;

  __device__ __forceinline__ void load(const WeightView& weight, int64_t o, int64_t k) {
    const auto* bytes = static_cast<const uint8_t*>(weight.data);
    const int64_t blocks = (weight.in + 31) / 32;
    if constexpr (kFormat == WeightFormat::kFp8Tile32) {
      low = *reinterpret_cast<const uint4*>(bytes + o * weight.in + k);
      scale = e8m0_value(weight.scale[o / 32 * blocks + k / 32]);
    } else if constexpr (kFormat == WeightFormat::kFp4Row32) {
      const uint2 raw = *reinterpret_cast<const uint2*>(bytes + o * (weight.in / 2) + k / 2);
      low.x = raw.x;
      low.y = raw.y;
      scale = e8m0_value(weight.scale[o * blocks + k / 32]);
    } else {
      const auto* from = reinterpret_cast<const uint4*>(bytes + 2 * (o * weight.in + k));
      low = from[0];
      high = from[1];
    }
  }

  // As 8 pairs of bf16.
  __device__ __forceinline__ void decode(uint32_t (&pairs)[8]) const {
    if constexpr (kFormat == WeightFormat::kFp8Tile32) {
      const uint32_t words[4] = {low.x, low.y, low.z, low.w};
#pragma unroll
      for (int w = 0; w < 4; ++w) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const auto two = static_cast<__nv_fp8x2_storage_t>(words[w] >> (16 * half));
          const __half2 wide(__nv_cvt_fp8x2_to_halfraw2(two, __NV_E4M3));
          const float2 value = __half22float2(wide);
          pairs[2 * w + half] = pack_bf16(value.x * scale, value.y * scale);
        }
      }
    } else if constexpr (kFormat == WeightFormat::kFp4Row32) {
      const uint32_t factor = pack_bf16(scale, scale);
#pragma unroll
      for (int four = 0; four < 4; ++four) {
        const uint32_t codes = (four < 2 ? low.x : low.y) >> (16 * (four % 2));
        scaled_e2m1(codes, factor, pairs[2 * four], pairs[2 * four + 1]);
      }
    } else {
      const uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int p = 0; p < 8; ++p) pairs[p] = words[p];
    }
  }
};

// Their values are made before what follows: what is only arithmetic the compiler may otherwise do
// where it is used, behind a wait whose time it should have passed.
template <int kCount>
__device__ __forceinline__ void pin_here(uint32_t (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(values[i]));
}

// 16 consecutive inputs of a row in simulated Q8, where a group of 32 is two neighbouring lanes'.
// The bits of pack_input_kernel: dividing by a power of two is multiplying by its inverse.
__device__ __forceinline__ void quantise_inputs(uint4 (&raw)[2]) {
  uint32_t words[8] = {raw[0].x, raw[0].y, raw[0].z, raw[0].w,
                       raw[1].x, raw[1].y, raw[1].z, raw[1].w};
  float amax = 0.0F;
#pragma unroll
  for (int p = 0; p < 8; ++p) {
    amax = fmaxf(amax, fabsf(__uint_as_float(words[p] << 16)));
    amax = fmaxf(amax, fabsf(__uint_as_float(words[p] & 0xFFFF0000U)));
  }
  amax = fmaxf(amax, __shfl_xor_sync(0xFFFFFFFFU, amax, 1));
  const uint8_t code = q8_scale(amax);
  const float scale = e8m0_value(code);
  const float inverse = e8m0_value(static_cast<uint8_t>(254 - code));
#pragma unroll
  for (int p = 0; p < 8; ++p) {
    const float2 value = {__uint_as_float(words[p] << 16) * inverse,
                          __uint_as_float(words[p] & 0xFFFF0000U) * inverse};
    const auto two = __nv_cvt_float2_to_fp8x2(value, __NV_SATFINITE, __NV_E4M3);
    const float2 back = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(two, __NV_E4M3)));
    words[p] = pack_bf16(back.x * scale, back.y * scale);
  }
  raw[0] = {words[0], words[1], words[2], words[3]};
  raw[1] = {words[4], words[5], words[6], words[7]};
}

// With `quantise`, of the same value in all lanes, inputs are raw and Q8 of them is multiplied.
// ready() is called once, when the first weights are asked for and before any input is read.
// sums[t] is the accumulator of rows [8 t, 8 t + 8): element (output g or g + 8, row 2 q or
// 2 q + 1) with g = lane / 4 and q = lane % 4, in the order of the instruction. x_row(t) is this
// lane's input row 8 t + g, or null where there is none.
//
// K from `begin` (a multiple of 64) to `end`, kAhead blocks of it asked for at once.
template <WeightFormat kFormat, int kTiles, int kAhead, class XRow, class Ready>
__device__ __forceinline__ void product_range(const WeightView& weight, int64_t first_output,
                                              int64_t begin, int64_t end, const XRow& x_row,
                                              bool quantise, const Ready& ready,
                                              float (&sums)[kTiles][4]) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int g = lane / 4;
  const int q = lane % 4;
  const int64_t upper = first_output + g;
  const int64_t lower = upper + 8;
  const Bf16* x[kTiles];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    x[t] = x_row(t);
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[t][e] = 0.0F;
  }
  for (int64_t first = begin; first < end; first += kAhead * kTileK) {
    StoredWeights<kFormat> stored_upper[kAhead];
    StoredWeights<kFormat> stored_lower[kAhead];
    uint4 inputs[kAhead][kTiles][2] = {};
#pragma unroll
    for (int ahead = 0; ahead < kAhead; ++ahead) {
      const int64_t k = first + ahead * kTileK + 16 * q;
      if (k >= end) continue;
      if (upper < weight.out) stored_upper[ahead].load(weight, upper, k);
      if (lower < weight.out) stored_lower[ahead].load(weight, lower, k);
    }
    if (first == begin) ready();
#pragma unroll
    for (int ahead = 0; ahead < kAhead; ++ahead) {
      const int64_t k = first + ahead * kTileK + 16 * q;
      if (k >= end) continue;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        if (x[t] == nullptr) continue;
        const auto* from = reinterpret_cast<const uint4*>(x[t] + k);
        inputs[ahead][t][0] = from[0];
        inputs[ahead][t][1] = from[1];
      }
    }
#pragma unroll
    for (int ahead = 0; ahead < kAhead; ++ahead) {
      if (first + ahead * kTileK >= end) break;
      uint32_t a_upper[8];
      uint32_t a_lower[8];
      stored_upper[ahead].decode(a_upper);
      stored_lower[ahead].decode(a_lower);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        if (quantise) quantise_inputs(inputs[ahead][t]);
        const uint4 low = inputs[ahead][t][0];
        const uint4 high = inputs[ahead][t][1];
        const uint32_t b[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const uint32_t a[4] = {a_upper[2 * j], a_lower[2 * j], a_upper[2 * j + 1],
                                 a_lower[2 * j + 1]};
          multiply_add(sums[t], a, b[2 * j], b[2 * j + 1]);
        }
      }
    }
  }
}

// All of K. Few rows wait for memory, not for the multiplier: four blocks are then asked for at
// once.
template <WeightFormat kFormat, int kTiles, class XRow, class Ready>
__device__ __forceinline__ void product_tile(const WeightView& weight, int64_t first_output,
                                             const XRow& x_row, bool quantise, const Ready& ready,
                                             float (&sums)[kTiles][4]) {
  product_range<kFormat, kTiles, kTiles == 1 ? 4 : 1>(weight, first_output, 0, weight.in, x_row,
                                                      quantise, ready, sums);
}

// Calls store(output, row in the tile, sum) for the elements this lane holds.
template <int kTiles, class Store>
__device__ __forceinline__ void each_sum(int64_t first_output, const float (&sums)[kTiles][4],
                                         const Store& store) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t output = first_output + lane / 4;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      store(output + 8 * (e / 2), 8 * t + 2 * (lane % 4) + e % 2, sums[t][e]);
    }
  }
}

}  // namespace galley::kernels::cuda
