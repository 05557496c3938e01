// What kernels that work row by row share: eight bf16 at a time, sums over a warp or a block, and
// how a row's elements fall to threads.
//
// A row is cut into vectors of 8 elements; vector v belongs to thread v mod T, with T fixed by the
// row's width. So a row's order of summation depends on its width alone: not on how many rows there
// are, and not on whether its memory allows loads of 16 bytes (kWhole) or one element at a time.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "base/check.h"
#include "kernels/tensor.h"

namespace galley::kernels::cuda {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xFFFFFFFFU;

// The row, for device code (Rows::row is the host's).
template <class T>
__device__ __forceinline__ T* row_of(const Rows<T>& rows, int64_t row) {
  return rows.data + row * rows.stride;
}

struct Float8 {
  float v[8];
};

__device__ __forceinline__ float low_half(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_half(uint32_t pair) {
  return __uint_as_float(pair & 0xFFFF0000U);
}

// The bf16 of `low` in bits 0-15, of `high` in 16-31; nearest, ties to even.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

__device__ __forceinline__ Float8 widen8(uint4 raw) {
  return {low_half(raw.x), high_half(raw.x), low_half(raw.y), high_half(raw.y),
          low_half(raw.z), high_half(raw.z), low_half(raw.w), high_half(raw.w)};
}
__device__ __forceinline__ uint4 narrow8(const Float8& x) {
  return {pack_bf16(x.v[0], x.v[1]), pack_bf16(x.v[2], x.v[3]), pack_bf16(x.v[4], x.v[5]),
          pack_bf16(x.v[6], x.v[7])};
}

// Elements [8 vector, 8 vector + 8) of a row of `width`; zero past its end.
template <bool kWhole>
__device__ __forceinline__ uint4 load8(const Bf16* row, int64_t vector, int64_t width) {
  if constexpr (kWhole) {
    if (vector * 8 >= width) return {};
    return *reinterpret_cast<const uint4*>(row + vector * 8);
  } else {
    uint32_t word[4] = {};
    for (int i = 0; i < 8; ++i) {
      const int64_t at = vector * 8 + i;
      if (at < width) word[i / 2] |= static_cast<uint32_t>(row[at].bits) << (16 * (i % 2));
    }
    return {word[0], word[1], word[2], word[3]};
  }
}

template <bool kWhole>
__device__ __forceinline__ void store8(Bf16* row, int64_t vector, int64_t width, uint4 raw) {
  if constexpr (kWhole) {
    if (vector * 8 >= width) return;
    // As one value: member by member, the compiler may store each word where it was made, 4 bytes a
    // lane, and a warp then writes its sectors four times.
    const uint64_t low = raw.x | static_cast<uint64_t>(raw.y) << 32;
    const uint64_t high = raw.z | static_cast<uint64_t>(raw.w) << 32;
    *reinterpret_cast<__uint128_t*>(row + vector * 8) = low | static_cast<__uint128_t>(high) << 64;
  } else {
    const uint32_t word[4] = {raw.x, raw.y, raw.z, raw.w};
    for (int i = 0; i < 8; ++i) {
      const int64_t at = vector * 8 + i;
      if (at < width) row[at].bits = static_cast<uint16_t>(word[i / 2] >> (16 * (i % 2)));
    }
  }
}

template <bool kWhole>
__device__ __forceinline__ Float8 load8_f32(const float* row, int64_t vector, int64_t width) {
  Float8 x = {};
  if constexpr (kWhole) {
    if (vector * 8 >= width) return x;
    const float4 a = *reinterpret_cast<const float4*>(row + vector * 8);
    const float4 b = *reinterpret_cast<const float4*>(row + vector * 8 + 4);
    x = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
  } else {
    for (int i = 0; i < 8; ++i) {
      if (vector * 8 + i < width) x.v[i] = row[vector * 8 + i];
    }
  }
  return x;
}

// 0 + a b, the product rounded, as a sum from zero begins: one instruction instead of two.
__device__ __forceinline__ float plus_zero(float a, float b) { return fmaf(a, b, 0.0F); }

__device__ __forceinline__ float square_sum(const Float8& x) {
  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < 8; ++i) sum = fmaf(x.v[i], x.v[i], sum);
  return sum;
}

// The same bits in every lane: both sides of each exchange add the same two numbers.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    x += __shfl_xor_sync(kAllLanes, x, distance);
  }
  return x;
}

// The sum over a block, in every thread; all its threads call it, `scratch` has a place a warp.
__device__ __forceinline__ float block_sum(float x, float* scratch) {
  x = warp_sum(x);
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  if (warps == 1) return x;
  __syncthreads();  // whoever reads the scratch of an earlier sum is done
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = x;
  __syncthreads();
  float sum = 0.0F;
  for (int warp = 0; warp < warps; ++warp) sum += scratch[warp];
  return sum;
}

// Of a row whose squares add up to `square_sum` (0).
__device__ __forceinline__ float inverse_rms(float square_sum, int64_t width, float eps) {
  return 1.0F / sqrtf(square_sum / static_cast<float>(width) + eps);
}

// 8 channels of a row, scaled by its inverse root mean square and by the norm's weight.
__device__ __forceinline__ uint4 normed(uint4 raw, float inverse, uint4 weight) {
  Float8 value = widen8(raw);
  const Float8 w = widen8(weight);
#pragma unroll
  for (int e = 0; e < 8; ++e) value.v[e] = value.v[e] * inverse * w.v[e];
  return narrow8(value);
}

// --- on the host ---------------------------------------------------------------

constexpr int64_t divide_up(int64_t count, int64_t by) { return (count + by - 1) / by; }

// Whether every row starts at a multiple of 16 bytes and is a whole number of such pieces.
template <class T>
bool is_whole(const Rows<T>& rows) {
  return rows.data == nullptr ||
         (reinterpret_cast<uintptr_t>(rows.data) % 16 == 0 &&
          rows.stride * static_cast<int64_t>(sizeof(T)) % 16 == 0 && rows.cols % 8 == 0);
}
template <class T>
bool is_whole(const T* data, int64_t count) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && count % 8 == 0;
}

// Threads of a block that has one row: a multiple of a warp, fixed by the width.
inline int row_threads(int64_t width, int vectors_each) {
  const int64_t wanted = divide_up(divide_up(width, 8 * vectors_each), kWarp) * kWarp;
  return static_cast<int>(wanted < 512 ? wanted : 512);
}

}  // namespace galley::kernels::cuda
