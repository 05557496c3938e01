// The stored formats (spec/model.md 0.1) on the device, with the bits of kernels/number_formats.h.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

namespace galley::kernels::cuda {

// Codes of `low` (bits 0-7) and `high` (8-15); saturating, ties to even.
__device__ __forceinline__ uint32_t e4m3_pair(float low, float high) {
  return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
}

// Exact; 0x7F and 0xFF are NaN.
__device__ __forceinline__ float e4m3_value(uint8_t code) {
  const uint32_t sign = (code & 0x80U) << 24;
  const uint32_t magnitude = code & 0x7FU;
  if (magnitude == 0x7FU) return __uint_as_float(sign | 0x7FC00000U);
  // The code's exponent and mantissa moved into a float's, which is then 2^-120 of it; the product
  // makes normal numbers of subnormal codes too.
  return __uint_as_float(sign | (magnitude << 20)) * 0x1p120F;
}

// UE8M0: 2^(code - 127), code 0 is a subnormal float, 255 NaN.
__device__ __forceinline__ float e8m0_value(uint32_t code) {
  if (code == 255) return __uint_as_float(0x7FC00000U);
  return __uint_as_float(code == 0 ? 0x00400000U : code << 23);
}

// 1 / e8m0_value(code) for codes 1..253: dividing by a power of two is multiplying by this.
__device__ __forceinline__ float e8m0_inverse(uint32_t code) {
  return __uint_as_float((254U - code) << 23);
}

// P2(a, m): the code of the smallest power of two not below a * f32(1/m).
__device__ __forceinline__ uint32_t power_of_two_scale(float a, float m) {
  const uint32_t bits = __float_as_uint(a * (1.0F / m));
  return ((bits >> 23) & 255U) + ((bits & 0x7FFFFFU) != 0 ? 1U : 0U);
}

// The E2M1 code of a value within [-6, 6], ties to the even code. Boundaries lie half way between
// neighbours; at an even code's own boundaries it wins the tie.
__device__ __forceinline__ uint32_t e2m1_code(float value) {
  const float m = fabsf(value);
  const uint32_t code = (m > 0.25F) + (m >= 0.75F) + (m > 1.25F) + (m >= 1.75F) + (m > 2.5F) +
                        (m >= 3.5F) + (m > 5.0F);
  return ((__float_as_uint(value) >> 28) & 8U) | code;
}

// For values of at most 8 significant bits, as bf16 over a power of two are: 2^-126 times the
// nearest E2M1 value, as the bits of a float. At that scale the codes' exponent and mantissa are a
// float's, subnormals included, and rounding is integer arithmetic; of more bits some could be
// lost to the subnormals before they are looked at.
__device__ __forceinline__ uint32_t e2m1_rounded(float value) {
  const uint32_t bits = __float_as_uint(value * 0x1p-126F);
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  const uint32_t rounded = magnitude + 0x1FFFFFU + ((magnitude >> 22) & 1U);
  return (bits & 0x80000000U) | min(rounded & 0xFFC00000U, 7U << 22);
}
__device__ __forceinline__ uint32_t e2m1_code_of_short(float value) {
  const uint32_t rounded = e2m1_rounded(value);
  return (rounded >> 28) | ((rounded >> 22) & 7U);
}

__device__ __forceinline__ float e2m1_value(uint32_t code) {
  // Exponent and mantissa of the code moved into a float's, 2^-126 of it.
  return __uint_as_float(((code & 8U) << 28) | ((code & 7U) << 22)) * 0x1p126F;
}

}  // namespace galley::kernels::cuda
