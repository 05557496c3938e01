// Rotation of the last channels of a vector (spec/model.md 4.1).
#pragma once

#include "kernels/fast/simd.h"

namespace galley::kernels::GALLEY_ISA {

constexpr int64_t kRotaryMax = 256;

// One position's angles, doubled so that both channels of a pair find theirs.
struct Rotation {
  HWY_ALIGN float cos[kRotaryMax];
  HWY_ALIGN float sin[kRotaryMax];  // -sin for the even channel, +sin for the odd one

  // `rotary` channels; the inverse turns by -phi.
  GALLEY_INLINE void set_angles(const float* c, const float* s, int64_t rotary, bool inverse) {
    for (int64_t u = 0; u < rotary / 2; ++u) {
      const float turn = inverse ? -s[u] : s[u];
      cos[2 * u] = cos[2 * u + 1] = c[u];
      sin[2 * u] = -turn;
      sin[2 * u + 1] = turn;
    }
  }
};

// The last `rotary` (even) channels of x [width], in place.
GALLEY_INLINE void rope_row(Bf16* x, int64_t width, const Rotation& rotation, int64_t rotary) {
  Bf16* pairs = x + width - rotary;
  for_lanes(rotary, [&](int64_t i, int64_t n) {
    const VecF v = load(pairs + i, n);
    const VecF turned = hn::Mul(hn::Shuffle2301(v), load(rotation.sin + i));
    store_exactly(hn::Add(hn::Mul(v, load(rotation.cos + i)), turned), pairs + i, n);
  });
}

}  // namespace galley::kernels::GALLEY_ISA
