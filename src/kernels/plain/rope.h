// Rotary embedding of one vector (spec/model.md 4.1): adjacent pairs of the
// last `rotary` channels.
#pragma once

#include <cstdint>

#include "kernels/tensor.h"

namespace galley::kernels::plain {

// x [width] in place; cos and sin [rotary / 2]. The inverse turns by -phi.
void rope(Bf16* x, int64_t width, const float* cos, const float* sin, int64_t rotary, bool inverse);

}  // namespace galley::kernels::plain
