// RMS norm of rows (spec/model.md 0).
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/tensor.h"

namespace galley::kernels::cuda {

// Widths up to this; x and y may be the same rows.
constexpr int64_t kNormWidthMax = 16384;

void rms_norm(Stream stream, Rows<const Bf16> x, const Bf16* weight, float eps, Rows<Bf16> y);

}  // namespace galley::kernels::cuda
