// The one f32 sum of products of plain/: blocks of 32 in order, as the
// reference's block-scaled GEMMs add them (spec/model.md 0.2).
//
// Inside a block the order is free: eight running sums let the compiler use
// vector registers. Scales are powers of two, so summing dequantised operands
// gives the bits of scaling each block's sum.
#pragma once

#include <cstdint>

namespace galley::kernels::plain {

inline float dot(const float* a, const float* b, int64_t count) {
  float total = 0.0F;
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    float lane[8] = {};
    for (int64_t j = i; j < i + 32; j += 8) {
      for (int64_t l = 0; l < 8; ++l) lane[l] += a[j + l] * b[j + l];
    }
    total +=
        ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
  }
  float tail = 0.0F;
  for (; i < count; ++i) tail += a[i] * b[i];
  return total + tail;
}

}  // namespace galley::kernels::plain
