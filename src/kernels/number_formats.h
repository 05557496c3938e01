// Scalar conversions between f32 and the stored formats (spec/model.md 0.1).
//
// Round to nearest, ties to even, everywhere. These are the definitions that
// plain/ uses and that SIMD code is tested against.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/tensor.h"

namespace galley::kernels {

inline float to_f32(Bf16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

inline Bf16 to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) {  // NaN stays NaN
    return Bf16{static_cast<uint16_t>((bits >> 16) | 0x40U)};
  }
  return Bf16{static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16)};
}

inline float round_bf16(float value) { return to_f32(to_bf16(value)); }

// UE8M0: 2^(b - 127), b = 255 is NaN. b = 0 is 2^-127, a subnormal float.
inline float e8m0_to_f32(uint8_t code) {
  if (code == 255) return std::bit_cast<float>(0x7FC00000U);
  if (code == 0) return std::bit_cast<float>(0x00400000U);
  return std::bit_cast<float>(static_cast<uint32_t>(code) << 23);
}

// E4M3 (fn): bias 7, no infinities, 0x7F and 0xFF are NaN.
inline float e4m3_to_f32(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80U) << 24;
  const uint32_t exponent = (code >> 3) & 15U;
  const uint32_t mantissa = code & 7U;
  if (exponent == 15 && mantissa == 7) return std::bit_cast<float>(sign | 0x7FC00000U);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-9F;
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 120U) << 23) | (mantissa << 20));
}

// Saturating; NaN maps to the NaN code.
inline uint8_t f32_to_e4m3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>((bits >> 24) & 0x80U);
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return sign | 0x7FU;
  if (magnitude >= 448.0F) return sign | 0x7EU;
  if (magnitude < 0x1p-6F) {  // subnormal codes: multiples of 2^-9
    const auto code = static_cast<uint8_t>(std::nearbyintf(magnitude * 0x1p9F));
    return sign | code;  // 8 is the smallest normal: the encoding continues
  }
  const uint32_t magnitude_bits = bits & 0x7FFFFFFFU;
  const uint32_t rounded = magnitude_bits + 0x7FFFFU + ((magnitude_bits >> 20) & 1U);
  const uint32_t code = (rounded >> 20) - (120U << 3);
  return sign | static_cast<uint8_t>(code > 0x7EU ? 0x7EU : code);
}

// E2M1 magnitudes by 3-bit code; bit 3 is the sign.
inline constexpr float kE2m1Magnitude[8] = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};

inline float e2m1_to_f32(uint8_t code) {
  const float magnitude = kE2m1Magnitude[code & 7U];
  return (code & 8U) != 0 ? -magnitude : magnitude;
}

// `value` within [-6, 6]; ties go to the even code.
inline uint8_t f32_to_e2m1(float value) {
  const auto sign = static_cast<uint8_t>((std::bit_cast<uint32_t>(value) >> 28) & 8U);
  const float m = std::fabs(value);
  uint8_t code = 7;
  if (m <= 0.25F)
    code = 0;
  else if (m < 0.75F)
    code = 1;
  else if (m <= 1.25F)
    code = 2;
  else if (m < 1.75F)
    code = 3;
  else if (m <= 2.5F)
    code = 4;
  else if (m < 3.5F)
    code = 5;
  else if (m <= 5.0F)
    code = 6;
  return sign | code;
}

// P2(a, m): UE8M0 code of the smallest power of two not below a * f32(1/m).
inline uint8_t power_of_two_scale(float a, float m) {
  const uint32_t bits = std::bit_cast<uint32_t>(a * (1.0F / m));
  return static_cast<uint8_t>(((bits >> 23) & 255U) + ((bits & 0x7FFFFFU) != 0 ? 1U : 0U));
}

}  // namespace galley::kernels
