// Q8 of a row's 128 by the lanes that have its values anyway, so that who makes a row also makes
// what a folded product reads of it. The bits of quantise_tiles.cuh.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "kernels/cuda/input_tiles.h"
#include "kernels/cuda/row.cuh"

namespace galley::kernels::cuda {

struct TileCodes {
  uint2 codes;  // of this lane's 8 values
  float scale;  // of the 128
};

// Of a group of 32, by the four neighbouring lanes that have 8 values each: the exponent of its
// scale P2(a, 448), up to the next power of two unless it is one.
__device__ __forceinline__ int group_exponent(const Float8& x) {
  float largest = 1e-4F;
#pragma unroll
  for (int i = 0; i < 8; ++i) largest = fmaxf(largest, fabsf(x.v[i]));
  largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
  const uint32_t bits = __float_as_uint(__fmul_rn(largest, 1.0F / 448.0F));
  return static_cast<int>(bits >> 23) + ((bits & 0x7fffffU) != 0 ? 1 : 0);
}

// A lane's 8 values of a group, moved to the largest exponent of their 128.
__device__ __forceinline__ TileCodes codes_of(const Float8& x, int exponent, int base) {
  const float inverse = __uint_as_float(static_cast<uint32_t>(254 - exponent) << 23);
  // Halves hold every code, and its product with a shift that leaves anything of it.
  const __half2 shift = __float2half2_rn(
      __uint_as_float(static_cast<uint32_t>(127 - min(base - exponent, 30)) << 23));
  uint32_t pair[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 value = {x.v[2 * i] * inverse, x.v[2 * i + 1] * inverse};
    const auto code = __nv_cvt_float2_to_fp8x2(value, __NV_SATFINITE, __NV_E4M3);
    const __half2 moved = __hmul2(__half2(__nv_cvt_fp8x2_to_halfraw2(code, __NV_E4M3)), shift);
    pair[i] =
        __nv_cvt_halfraw2_to_fp8x2(static_cast<__half2_raw>(moved), __NV_SATFINITE, __NV_E4M3);
  }
  return {{pair[0] | pair[1] << 16, pair[2] | pair[3] << 16},
          __uint_as_float(static_cast<uint32_t>(base) << 23)};
}

// By all lanes of a warp: each half has 128 neighbouring values, a lane 8 of them (bf16).
__device__ __forceinline__ TileCodes tile_codes(uint4 raw) {
  const Float8 x = widen8(raw);
  const int exponent = group_exponent(x);
  int base = max(exponent, __shfl_xor_sync(kAllLanes, exponent, 4));
  base = max(base, __shfl_xor_sync(kAllLanes, base, 8));
  return codes_of(x, exponent, base);
}

// Vector `vector` of 8 of row `row`, by the same lanes.
__device__ __forceinline__ void store_codes(const InputTiles& to, int64_t row, int64_t vector,
                                            const TileCodes& tile) {
  const auto lane = static_cast<uint32_t>(vector) % 16;
  const int64_t place = vector / 16 * to.places + row;
  const uint32_t piece = (lane / 2) ^ (static_cast<uint32_t>(row) & 7);
  *reinterpret_cast<uint2*>(to.codes + place * kChunk + piece * 16 + lane % 2 * 8) = tile.codes;
  if (lane == 0) to.scale[place] = tile.scale;
}

}  // namespace galley::kernels::cuda
