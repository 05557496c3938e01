// Vector building blocks of fast/ over Highway, compiled once per instruction
// set: GALLEY_ISA names the set and the namespace, so that no inline function of
// one set can be linked into another.
//
// Everything is f32 lanes; bf16 is widened on load and rounded to nearest even on
// store, exactly like number_formats.h.
#pragma once

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

#include "kernels/tensor.h"

#ifndef GALLEY_ISA
#error "files of kernels/fast are compiled once per instruction set, with GALLEY_ISA set"
#endif

#define GALLEY_INLINE [[gnu::always_inline]] inline

namespace galley::kernels::GALLEY_ISA {

namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using U32 = hn::RebindToUnsigned<F32>;
using U16 = hn::Rebind<uint16_t, F32>;
using U8 = hn::Rebind<uint8_t, F32>;
using VecF = hn::Vec<F32>;
using VecU = hn::Vec<U32>;

constexpr F32 kF32{};
constexpr U32 kU32{};
constexpr int64_t kLanes = HWY_LANES(float);

GALLEY_INLINE VecF set(float value) { return hn::Set(kF32, value); }
GALLEY_INLINE VecF zero() { return hn::Zero(kF32); }

// Loads and stores of kLanes elements, or of the first `count` (the rest reads as 0).
GALLEY_INLINE VecF load(const float* p) { return hn::LoadU(kF32, p); }
GALLEY_INLINE VecF load(const float* p, int64_t count) {
  if (count >= kLanes) return load(p);
  HWY_ALIGN float buffer[kLanes] = {};
  std::memcpy(buffer, p, static_cast<size_t>(count) * sizeof(float));
  return hn::Load(kF32, buffer);
}
GALLEY_INLINE void store(VecF v, float* p) { hn::StoreU(v, kF32, p); }
GALLEY_INLINE void store(VecF v, float* p, int64_t count) {
  if (count >= kLanes) {
    store(v, p);
    return;
  }
  HWY_ALIGN float buffer[kLanes];
  hn::Store(v, kF32, buffer);
  std::memcpy(p, buffer, static_cast<size_t>(count) * sizeof(float));
}

GALLEY_INLINE VecF widen_bf16(hn::Vec<U16> bits) {
  return hn::BitCast(kF32, hn::ShiftLeft<16>(hn::PromoteTo(kU32, bits)));
}
GALLEY_INLINE VecF load(const Bf16* p) {
  return widen_bf16(hn::LoadU(U16(), reinterpret_cast<const uint16_t*>(p)));
}
GALLEY_INLINE VecF load(const Bf16* p, int64_t count) {
  if (count >= kLanes) return load(p);
  HWY_ALIGN uint16_t buffer[kLanes] = {};
  std::memcpy(buffer, p, static_cast<size_t>(count) * sizeof(uint16_t));
  return widen_bf16(hn::Load(U16(), buffer));
}

GALLEY_INLINE hn::Vec<U16> narrow_bits(VecU bits) {
  return hn::DemoteTo(U16(), hn::BitCast(hn::RebindToSigned<U32>(), bits));
}
// The upper halves: exact when the lanes are bf16 numbers already.
GALLEY_INLINE hn::Vec<U16> upper_halves(VecF v) {
  return narrow_bits(hn::ShiftRight<16>(hn::BitCast(kU32, v)));
}

// The bf16 nearest to each lane, subnormals included; NaN stays NaN.
GALLEY_INLINE hn::Vec<U16> to_bf16_exactly(VecF v) {
  const VecU bits = hn::BitCast(kU32, v);
  const VecU odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(kU32, 1));
  const VecU rounded = hn::Add(bits, hn::Add(odd, hn::Set(kU32, 0x7FFFU)));
  const VecU quiet = hn::Or(bits, hn::Set(kU32, 0x400000U));
  const auto nan = hn::RebindMask(kU32, hn::Ne(v, v));
  return narrow_bits(hn::ShiftRight<16>(hn::IfThenElse(nan, quiet, rounded)));
}
// The same, but with AVX512-BF16 subnormals become 0, as they do in its dot products.
GALLEY_INLINE hn::Vec<U16> to_bf16(VecF v) {
#if defined(__AVX512BF16__)
  return hn::Vec<U16>{(__m256i)_mm512_cvtneps_pbh(v.raw)};
#else
  return to_bf16_exactly(v);
#endif
}
GALLEY_INLINE VecF round_bf16(VecF v) { return widen_bf16(to_bf16(v)); }
GALLEY_INLINE void store(VecF v, Bf16* p) {
  hn::StoreU(to_bf16(v), U16(), reinterpret_cast<uint16_t*>(p));
}
GALLEY_INLINE void store(VecF v, Bf16* p, int64_t count) {
  if (count >= kLanes) {
    store(v, p);
    return;
  }
  HWY_ALIGN uint16_t buffer[kLanes];
  hn::Store(to_bf16(v), U16(), buffer);
  std::memcpy(p, buffer, static_cast<size_t>(count) * sizeof(uint16_t));
}

// Stores that keep subnormals: for what ends in a quantiser, exact down to its floor.
GALLEY_INLINE void store_exactly(VecF v, Bf16* p, int64_t count) {
  auto* to = reinterpret_cast<uint16_t*>(p);
  if (count >= kLanes) {
    hn::StoreU(to_bf16_exactly(v), U16(), to);
    return;
  }
  HWY_ALIGN uint16_t buffer[kLanes];
  hn::Store(to_bf16_exactly(v), U16(), buffer);
  std::memcpy(to, buffer, static_cast<size_t>(count) * sizeof(uint16_t));
}
// For lanes that are bf16 numbers already.
GALLEY_INLINE void store_upper(VecF v, Bf16* p, int64_t count) {
  auto* to = reinterpret_cast<uint16_t*>(p);
  if (count >= kLanes) {
    hn::StoreU(upper_halves(v), U16(), to);
    return;
  }
  HWY_ALIGN uint16_t buffer[kLanes];
  hn::Store(upper_halves(v), U16(), buffer);
  std::memcpy(to, buffer, static_cast<size_t>(count) * sizeof(uint16_t));
}

// body(i, count) for every run of kLanes elements of [0, n), the last one shorter.
template <class Body>
GALLEY_INLINE void for_lanes(int64_t n, Body&& body) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, kLanes);
  if (i < n) body(i, n - i);
}

// Sum over lanes by a fixed tree.
GALLEY_INLINE float sum_lanes(VecF v) { return hn::GetLane(hn::SumOfLanes(kF32, v)); }
GALLEY_INLINE float max_lanes(VecF v) { return hn::GetLane(hn::MaxOfLanes(kF32, v)); }

// Highway's Exp answers 0 for NaN and wraps where the result leaves f32; ours does not.
GALLEY_INLINE VecF exp(VecF v) {
  const VecF value = hn::IfThenElse(hn::Ne(v, v), v, hn::Exp(kF32, v));
  return hn::IfThenElse(hn::Gt(v, set(88.722839F)), hn::Inf(kF32), value);
}
GALLEY_INLINE VecF sigmoid(VecF v) {
  return hn::Div(set(1.0F), hn::Add(set(1.0F), exp(hn::Neg(v))));
}

// f(i, count) -> VecF summed over [0, n): four running vectors in turn, so that
// additions overlap; the order depends on n alone.
template <class Term>
GALLEY_INLINE float sum_terms(int64_t n, Term&& term) {
  VecF a = zero();
  VecF b = zero();
  VecF c = zero();
  VecF d = zero();
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    a = hn::Add(a, term(i, kLanes));
    b = hn::Add(b, term(i + kLanes, kLanes));
    c = hn::Add(c, term(i + 2 * kLanes, kLanes));
    d = hn::Add(d, term(i + 3 * kLanes, kLanes));
  }
  for (; i + kLanes <= n; i += kLanes) a = hn::Add(a, term(i, kLanes));
  if (i < n) b = hn::Add(b, term(i, n - i));
  return sum_lanes(hn::Add(hn::Add(a, b), hn::Add(c, d)));
}

}  // namespace galley::kernels::GALLEY_ISA
