// Quantisers and record codecs. Elementwise: nothing is summed. Floor: the bytes
// read and written, a few hundred a row; the limit is the latency of one group's
// maximum, which neighbouring groups overlap.
#include "kernels/fast/quantise.h"

#include <algorithm>
#include <bit>

#include "kernels/fast/codes.h"
#include "kernels/fast/simd.h"
#include "kernels/number_formats.h"

namespace galley::kernels::GALLEY_ISA {
namespace {

constexpr int64_t kGroup = 32;

// 1 / 2^(code - 127), exact; NaN for code 255.
GALLEY_INLINE float inverse_scale(uint8_t code) {
  if (code >= 1 && code <= 253) return std::bit_cast<float>((254U - code) << 23);
  return 1.0F / e8m0_to_f32(code);
}

// max(floor, max|x|); NaN is passed over, as std::max passes over it.
GALLEY_INLINE float group_amax(const Bf16* x, int64_t count, float floor) {
  VecF amax = set(floor);
  for_lanes(count, [&](int64_t i, int64_t n) { amax = hn::Max(hn::Abs(load(x + i, n)), amax); });
  return max_lanes(amax);
}

struct E4m3 {
  VecU code;   // without sign
  VecF value;  // magnitude
};

// y: magnitudes, at most 448 or NaN.
GALLEY_INLINE E4m3 round_e4m3(VecF y) {
  const VecU bits = hn::BitCast(kU32, y);
  const VecU odd = hn::And(hn::ShiftRight<20>(bits), hn::Set(kU32, 1));
  const VecU rounded = hn::Add(bits, hn::Add(odd, hn::Set(kU32, 0x7FFFFU)));
  const VecU normal_code = hn::Sub(hn::ShiftRight<20>(rounded), hn::Set(kU32, 120U << 3));
  const VecF normal_value = hn::BitCast(kF32, hn::And(rounded, hn::Set(kU32, 0xFFF00000U)));
  // Below 2^-6 codes are multiples of 2^-9, the unit in the last place of [2^14, 2^15).
  const VecF shifted = hn::Add(y, set(0x1p14F));
  const VecU small_code = hn::Sub(hn::BitCast(kU32, shifted), hn::Set(kU32, 0x46800000U));
  const VecF small_value = hn::Sub(shifted, set(0x1p14F));
  const auto small = hn::Lt(y, set(0x1p-6F));
  const auto nan = hn::Ne(y, y);
  const VecU code = hn::IfThenElse(hn::RebindMask(kU32, small), small_code, normal_code);
  const VecF value = hn::IfThenElse(small, small_value, normal_value);
  return {hn::IfThenElse(hn::RebindMask(kU32, nan), hn::Set(kU32, 0x7FU), code),
          hn::IfThenElse(nan, y, value)};
}

// |x| / scale clamped to `limit`; NaN stays.
GALLEY_INLINE VecF scaled_magnitude(VecF x, VecF inverse, float limit) {
  return hn::Min(set(limit), hn::Mul(hn::Abs(x), inverse));
}

// E2M1 code of magnitudes in [0, 6], ties to the even code; NaN to the largest.
GALLEY_INLINE VecU round_e2m1(VecF m) {
  const auto count = [](auto mask) {
    return hn::IfThenElseZero(hn::RebindMask(kU32, mask), hn::Set(kU32, 1));
  };
  VecU code = count(hn::Not(hn::Le(m, set(0.25F))));
  code = hn::Add(code, count(hn::Not(hn::Lt(m, set(0.75F)))));
  code = hn::Add(code, count(hn::Not(hn::Le(m, set(1.25F)))));
  code = hn::Add(code, count(hn::Not(hn::Lt(m, set(1.75F)))));
  code = hn::Add(code, count(hn::Not(hn::Le(m, set(2.5F)))));
  code = hn::Add(code, count(hn::Not(hn::Lt(m, set(3.5F)))));
  return hn::Add(code, count(hn::Not(hn::Le(m, set(5.0F)))));
}

GALLEY_INLINE VecU sign_bits(VecF x) {
  return hn::And(hn::BitCast(kU32, x), hn::Set(kU32, 0x80000000U));
}
GALLEY_INLINE VecF with_sign_of(VecF magnitude, VecF x) {
  return hn::BitCast(kF32, hn::Or(hn::BitCast(kU32, magnitude), sign_bits(x)));
}

// Two codes a byte, even channel low. `codes` has one byte a channel.
GALLEY_INLINE void pack_nibbles(const uint8_t* codes, int64_t count, uint8_t* packed) {
  for (int64_t i = 0; i < count / 2; ++i) {
    packed[i] = static_cast<uint8_t>(codes[2 * i] | (codes[2 * i + 1] << 4));
  }
}

GALLEY_INLINE void store_bytes(VecU v, uint8_t* p) {
  hn::StoreU(hn::DemoteTo(U8(), hn::BitCast(hn::RebindToSigned<U32>(), v)), U8(), p);
}

// One group of E2M1 codes; `divide` y = |x| / scale.
template <class Divide>
GALLEY_INLINE void encode_e2m1(const Bf16* x, int64_t count, uint8_t* packed, Divide&& divide) {
  HWY_ALIGN uint8_t codes[kGroup + kLanes];
  for_lanes(count, [&](int64_t i, int64_t n) {
    const VecF v = load(x + i, n);
    const VecU code = round_e2m1(hn::Min(set(6.0F), divide(hn::Abs(v))));
    store_bytes(hn::Or(code, hn::ShiftRight<28>(sign_bits(v))), codes + i);
  });
  pack_nibbles(codes, count, packed);
}

}  // namespace

void simulate_q8(const Bf16* x, int64_t width, Bf16* out) {
  for (int64_t at = 0; at < width; at += kGroup) {
    const int64_t count = std::min(kGroup, width - at);
    const uint8_t code = power_of_two_scale(group_amax(x + at, count, 1e-4F), 448.0F);
    const VecF scale = set(e8m0_to_f32(code));
    const VecF inverse = set(inverse_scale(code));
    for_lanes(count, [&](int64_t i, int64_t n) {
      const VecF v = load(x + at + i, n);
      const VecF value = round_e4m3(scaled_magnitude(v, inverse, 448.0F)).value;
      store_upper(with_sign_of(hn::Mul(value, scale), v), out + at + i, n);
    });
  }
}

void simulate_q4e8(Bf16* x, int64_t width) {
  for (int64_t at = 0; at < width; at += kGroup) {
    const int64_t count = std::min(kGroup, width - at);
    const uint8_t code = power_of_two_scale(group_amax(x + at, count, 6.0F * 0x1p-126F), 6.0F);
    const VecF scale = set(e8m0_to_f32(code));
    const VecF inverse = set(inverse_scale(code));
    for_lanes(count, [&](int64_t i, int64_t n) {
      const VecF v = load(x + at + i, n);
      const VecF value = e2m1_magnitude(round_e2m1(scaled_magnitude(v, inverse, 6.0F)));
      store_upper(with_sign_of(hn::Mul(value, scale), v), x + at + i, n);
    });
  }
}

void write_window_record(const Bf16* x, int64_t width, uint8_t* record) {
  uint8_t* scales = record + width;
  for (int64_t at = 0; at < width; at += kGroup) {
    const int64_t count = std::min(kGroup, width - at);
    const uint8_t code = power_of_two_scale(group_amax(x + at, count, 1e-4F), 448.0F);
    scales[at / kGroup] = code;
    const VecF inverse = set(inverse_scale(code));
    HWY_ALIGN uint8_t codes[kGroup + kLanes];
    for_lanes(count, [&](int64_t i, int64_t n) {
      const VecF v = load(x + at + i, n);
      const VecU magnitude = round_e4m3(scaled_magnitude(v, inverse, 448.0F)).code;
      store_bytes(hn::Or(magnitude, hn::ShiftRight<24>(sign_bits(v))), codes + i);
    });
    std::memcpy(record + at, codes, static_cast<size_t>(count));
  }
}

void write_global_record(const Bf16* x, int64_t width, uint8_t* record) {
  uint8_t* scales = record + width / 2;
  for (int64_t at = 0; at < width; at += 16) {
    const int64_t count = std::min<int64_t>(16, width - at);
    const uint8_t code = f32_to_e4m3(group_amax(x + at, count, 6.0F * 0x1p-9F) / 6.0F);
    scales[at / 16] = code;
    const VecF scale = set(e4m3_to_f32(code));
    encode_e2m1(x + at, count, record + at / 2, [&](VecF v) { return hn::Div(v, scale); });
  }
}

void write_index_record(const Bf16* x, int64_t width, uint8_t* record) {
  uint8_t* scales = record + width / 2;
  for (int64_t at = 0; at < width; at += kGroup) {
    const int64_t count = std::min(kGroup, width - at);
    const uint8_t code = power_of_two_scale(group_amax(x + at, count, 6.0F * 0x1p-126F), 6.0F);
    scales[at / kGroup] = code;
    const VecF inverse = set(inverse_scale(code));
    encode_e2m1(x + at, count, record + at / 2, [&](VecF v) { return hn::Mul(v, inverse); });
  }
}

void read_fp8_row(const uint8_t* codes, const uint8_t* scales, int64_t width, Bf16* x) {
  for (int64_t at = 0; at < width; at += kGroup) {
    const int64_t count = std::min(kGroup, width - at);
    const VecF scale = set(e8m0_to_f32(scales[at / kGroup]));
    HWY_ALIGN uint8_t group[kGroup + kLanes] = {};
    std::memcpy(group, codes + at, static_cast<size_t>(count));
    for_lanes(count, [&](int64_t i, int64_t n) {
      store_exactly(hn::Mul(decode_e4m3(load_bytes(group + i)), scale), x + at + i, n);
    });
  }
}

}  // namespace galley::kernels::GALLEY_ISA
