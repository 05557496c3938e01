// Q8 of activations (spec/model.md 0.1) in the order that the grouped product copies them.
//
// Groups of 32 are quantised as specified, then moved to the largest of the four scales of their
// 128: a value changes only below 2^-13.8 of that 128's largest, by at most 2^-17.8 of it.
// Floor: 2 bytes in and 1.03 out for each value. Half a warp owns a row's 128, 16 bytes a lane.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/weight_tiles.h"
#include "kernels/tensor.h"

namespace galley::kernels::cuda {

// 2^exponent of a biased f32 exponent.
__device__ __forceinline__ float power_of_two(int32_t biased) {
  return __int_as_float(biased << 23);
}

// Which row of x goes where: item i is row i of x and goes to place[i * copies + c] for each copy
// c; in place: item i is row place[i] and stays there. Places below 0 are skipped; without a list
// rows keep their numbers.
struct QuantiseRows {
  const int32_t* place = nullptr;
  int32_t copies = 1;
  bool in_place = false;
};

// x8 [chunks][places][128], scale [chunks][places].
__global__ void __launch_bounds__(256)
    quantise_tiles_kernel(Rows<const Bf16> x, int64_t items, QuantiseRows rows, int64_t places,
                          uint8_t* __restrict__ x8, float* __restrict__ scale) {
  await_earlier();
  const int32_t columns = static_cast<int32_t>(x.cols);
  const int32_t chunks = (columns + kChunk - 1) / kChunk;
  const int64_t group = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 16;
  const int64_t item = group / chunks;
  const int32_t chunk = static_cast<int32_t>(group % chunks);
  const int32_t lane = threadIdx.x & 15;
  const int64_t from = item >= items ? -1 : rows.in_place ? rows.place[item] : item;
  const int32_t column = chunk * kChunk + lane * 8;

  uint4 raw = {0, 0, 0, 0};
  if (from >= 0 && column < columns) {
    raw = *reinterpret_cast<const uint4*>(x.data + from * x.stride + column);
  }
  float value[8];
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
  float largest = 1e-4F;
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
    value[2 * i] = __uint_as_float(words[i] << 16);
    value[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000U);
    largest = fmaxf(largest, fmaxf(fabsf(value[2 * i]), fabsf(value[2 * i + 1])));
  }
  largest = fmaxf(largest, __shfl_xor_sync(0xffffffffU, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(0xffffffffU, largest, 2));
  // P2(a, 448): up to the next power of two unless it is one.
  const uint32_t bits = __float_as_uint(__fmul_rn(largest, 1.0F / 448.0F));
  const int32_t exponent = static_cast<int32_t>(bits >> 23) + ((bits & 0x7fffffU) != 0 ? 1 : 0);
  int32_t base = max(exponent, __shfl_xor_sync(0xffffffffU, exponent, 4));
  base = max(base, __shfl_xor_sync(0xffffffffU, base, 8));

  const float inverse = power_of_two(254 - exponent);
  const float shift = exponent - base < -126 ? 0.0F : power_of_two(127 + exponent - base);
  uint32_t packed[2] = {0, 0};
#pragma unroll
  for (int32_t i = 0; i < 8; ++i) {
    const auto code = __nv_cvt_float_to_fp8(value[i] * inverse, __NV_SATFINITE, __NV_E4M3);
    const __half_raw half = __nv_cvt_fp8_to_halfraw(code, __NV_E4M3);
    const float moved = __half2float(__half(half)) * shift;
    const auto folded = __nv_cvt_float_to_fp8(moved, __NV_SATFINITE, __NV_E4M3);
    packed[i / 4] |= static_cast<uint32_t>(folded) << (8 * (i % 4));
  }
  if (from < 0) return;
  for (int32_t copy = 0; copy < rows.copies; ++copy) {
    const int64_t row = rows.place == nullptr ? item : rows.place[item * rows.copies + copy];
    if (row < 0) continue;
    const int64_t place = static_cast<int64_t>(chunk) * places + row;
    const int32_t piece = (lane / 2) ^ static_cast<int32_t>(row & 7);
    *reinterpret_cast<uint2*>(x8 + place * kChunk + piece * 16 + (lane & 1) * 8) = {packed[0],
                                                                                    packed[1]};
    if (lane == 0) scale[place] = power_of_two(base);
  }
}

}  // namespace galley::kernels::cuda
