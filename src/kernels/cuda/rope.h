// Rotation of the last channels of vectors (spec/model.md 4.1).
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/ops.h"
#include "kernels/tensor.h"

namespace galley::kernels::cuda {

// The last 2 * angles.cos.cols channels of each of `heads` vectors of a row turn, in place.
void rope(Stream stream, Rows<Bf16> x, int32_t heads, const RopeAngles& angles, bool inverse);

}  // namespace galley::kernels::cuda
