// Scalar conversions on the device: kernels/number_formats.h, to the bit
// (spec/model.md 0.1). Compiled without contraction and without fast-math, so
// that products and sums round where they are written.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

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

__device__ __forceinline__ float e8m0_value(uint8_t code) {
  if (code == 255) return __uint_as_float(0x7FC00000U);
  if (code == 0) return __uint_as_float(0x00400000U);
  return __uint_as_float(static_cast<uint32_t>(code) << 23);
}

__device__ __forceinline__ float e4m3_value(uint8_t code) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3)));
}
// Saturating.
__device__ __forceinline__ uint8_t e4m3_code(float value) {
  return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
}

__device__ __forceinline__ float e2m1_value(uint32_t code) {
  const uint32_t magnitude = code & 7U;
  const uint32_t bits = magnitude < 2 ? magnitude * (126U << 23) : (magnitude << 22) + (126U << 23);
  return __uint_as_float(bits | ((code & 8U) << 28));
}
// `value` within [-6, 6]; ties go to the even code.
__device__ __forceinline__ uint32_t e2m1_code(float value) {
  const uint32_t sign = (__float_as_uint(value) >> 28) & 8U;
  const float m = fabsf(value);
  uint32_t code = 7;
  if (m <= 0.25F) {
    code = 0;
  } else if (m < 0.75F) {
    code = 1;
  } else if (m <= 1.25F) {
    code = 2;
  } else if (m < 1.75F) {
    code = 3;
  } else if (m <= 2.5F) {
    code = 4;
  } else if (m < 3.5F) {
    code = 5;
  } else if (m <= 5.0F) {
    code = 6;
  }
  return sign | code;
}

// P2(a, m) with 1/m rounded to f32 by the caller's constant expression.
__device__ __forceinline__ uint8_t power_of_two_scale(float a, float inverse_m) {
  const uint32_t bits = __float_as_uint(a * inverse_m);
  return static_cast<uint8_t>(((bits >> 23) & 255U) + ((bits & 0x7FFFFFU) != 0 ? 1U : 0U));
}

__device__ __forceinline__ float clamp_to(float value, float bound) {
  // As std::clamp: NaN stays.
  return value < -bound ? -bound : (value > bound ? bound : value);
}

// Q8 of one channel whose group's largest magnitude is `amax`: its code under scale `s`.
__device__ __forceinline__ uint8_t q8_scale(float amax) {
  return power_of_two_scale(fmaxf(amax, 1e-4F), 1.0F / 448.0F);
}
__device__ __forceinline__ uint8_t q8_code(float value, float scale) {
  return e4m3_code(clamp_to(value / scale, 448.0F));
}

}  // namespace galley::kernels::cuda
