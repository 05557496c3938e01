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

}  // namespace galley::kernels::GALLEY_ISA
