// RMS_w(x; eps) of spec/model.md 0: everything in f32, one rounding at the end.
#pragma once

#include <cstdint>

#include "kernels/tensor.h"

namespace galley::kernels::plain {

// One row; y may be x.
void rms_norm(const Bf16* x, const Bf16* weight, int64_t width, float eps, Bf16* y);

}  // namespace galley::kernels::plain
