// E4M3 and E2M1 codes, one a lane, to f32; exact, NaN codes included.
#pragma once

#include <bit>

#include "kernels/fast/simd.h"

namespace galley::kernels::GALLEY_ISA {

// Magnitude of a code without its sign. Codes 0 and 1 have no hidden bit: read as 1 and
// 1.5, less 1.
GALLEY_INLINE VecF e2m1_magnitude(VecU code) {
  const auto small = hn::Lt(code, hn::Set(kU32, 2));
  const VecU bias = hn::IfThenElse(small, hn::Set(kU32, 127U << 23), hn::Set(kU32, 126U << 23));
  const VecF value = hn::BitCast(kF32, hn::Add(hn::ShiftLeft<22>(code), bias));
  return hn::Sub(value, hn::IfThenElseZero(hn::RebindMask(kF32, small), set(1.0F)));
}

GALLEY_INLINE VecU load_bytes(const uint8_t* p) { return hn::PromoteTo(kU32, hn::LoadU(U8(), p)); }

GALLEY_INLINE VecF decode_e4m3(VecU code) {
  const VecU magnitude = hn::And(code, hn::Set(kU32, 0x7FU));
  const auto small = hn::Lt(magnitude, hn::Set(kU32, 8));
  const VecU bias = hn::IfThenElse(small, hn::Set(kU32, 121U << 23), hn::Set(kU32, 120U << 23));
  const VecF value = hn::BitCast(kF32, hn::Add(hn::ShiftLeft<20>(magnitude), bias));
  const VecF fixed = hn::Sub(value, hn::IfThenElseZero(hn::RebindMask(kF32, small), set(0x1p-6F)));
  const auto nan = hn::RebindMask(kF32, hn::Eq(magnitude, hn::Set(kU32, 0x7FU)));
  const VecF whole = hn::IfThenElse(nan, set(std::bit_cast<float>(0x7FC00000U)), fixed);
  return hn::BitCast(kF32, hn::Or(hn::BitCast(kU32, whole),
                                  hn::ShiftLeft<24>(hn::And(code, hn::Set(kU32, 0x80U)))));
}

constexpr int64_t kGroupVectors = 32 / kLanes;

// A UE8M0 code as f32, without branches: the ends are 2^-127 and NaN.
GALLEY_INLINE float decode_e8m0(uint8_t code) {
  const uint32_t end = ((code + 1U) & 0xFEU) == 0 ? 0x400000U : 0U;
  return std::bit_cast<float>((uint32_t{code} << 23) | end);
}

// 16 packed bytes, even channel in the low nibble, to 32 f32 in order.
GALLEY_INLINE void unpack_e2m1(const uint8_t* packed, VecF (&v)[kGroupVectors]) {
  const hn::FixedTag<uint8_t, 16> bytes;
  const auto both = hn::LoadU(bytes, packed);
  HWY_ALIGN uint8_t codes[32];
  hn::StoreInterleaved2(hn::And(both, hn::Set(bytes, 15)), hn::ShiftRight<4>(both), bytes, codes);
#pragma GCC unroll 8
  for (int64_t i = 0; i < kGroupVectors; ++i) {
    const VecU code = load_bytes(codes + i * kLanes);
    const VecU sign = hn::ShiftLeft<28>(hn::And(code, hn::Set(kU32, 8)));
    const VecU magnitude = hn::And(code, hn::Set(kU32, 7));
#if HWY_TARGET == HWY_AVX2
    HWY_ALIGN static constexpr float kMagnitudes[8] = {0.0F, 0.5F, 1.0F, 1.5F,
                                                       2.0F, 3.0F, 4.0F, 6.0F};
    const VecF value =
        hn::TableLookupLanes(hn::Load(kF32, kMagnitudes), hn::IndicesFromVec(kF32, magnitude));
#else
    const VecF value = e2m1_magnitude(magnitude);
#endif
    v[i] = hn::BitCast(kF32, hn::Or(hn::BitCast(kU32, value), sign));
  }
}

// The same to memory, the first 16 times `low`, the rest times `high`.
GALLEY_INLINE void unpack_e2m1(const uint8_t* packed, float* out, VecF low, VecF high) {
  VecF v[kGroupVectors];
  unpack_e2m1(packed, v);
#pragma GCC unroll 8
  for (int64_t i = 0; i < kGroupVectors; ++i) {
    store(hn::Mul(v[i], i * kLanes < 16 ? low : high), out + i * kLanes);
  }
}

}  // namespace galley::kernels::GALLEY_ISA
