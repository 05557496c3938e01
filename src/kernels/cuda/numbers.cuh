// Scalar conversions on the device: kernels/number_formats.h, to the bit
// (spec/model.md 0.1). Compiled without contraction and without fast-math, so
// that products and sums round where they are written.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "kernels/cuda/formats.cuh"
#include "kernels/tensor.h"

namespace galley::kernels::cuda {

template <class T>
__device__ __forceinline__ T* row_at(const Rows<T>& rows, int64_t index) {
  return rows.data + index * rows.stride;
}

__device__ __forceinline__ float widen(Bf16 value) {
  return __uint_as_float(static_cast<uint32_t>(value.bits) << 16);
}
__device__ __forceinline__ Bf16 narrow(float value) {
  const uint32_t bits = __float_as_uint(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) {  // NaN stays NaN
    return Bf16{static_cast<uint16_t>((bits >> 16) | 0x40U)};
  }
  return Bf16{static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16)};
}
__device__ __forceinline__ float round_bf16(float value) { return widen(narrow(value)); }

// Saturating.
__device__ __forceinline__ uint8_t e4m3_code(float value) {
  return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
}

__device__ __forceinline__ float clamp_to(float value, float bound) {
  // As std::clamp: NaN stays.
  return value < -bound ? -bound : (value > bound ? bound : value);
}

// Q8 of one channel whose group's largest magnitude is `amax`: its code under scale `s`.
__device__ __forceinline__ uint8_t q8_scale(float amax) {
  return static_cast<uint8_t>(power_of_two_scale(fmaxf(amax, 1e-4F), 448.0F));
}
__device__ __forceinline__ uint8_t q8_code(float value, float scale) {
  return e4m3_code(clamp_to(value / scale, 448.0F));
}

}  // namespace galley::kernels::cuda
