// The gate's product of many rows, for widths as a release has them (route.cu tells the whole).
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/tensor.h"

namespace galley::kernels::cuda {

// Whether gate_product takes rows of x for such a gate; fewer rows want splits of K on many blocks.
bool gate_product_supports(Rows<const Bf16> x, Rows<const Bf16> gate);

// logits [rows of x, rows of gate] = x times gate, K in splits of `split` (a multiple of 64) that
// are summed from zero, and added in order.
void gate_product(Stream stream, Rows<const Bf16> x, Rows<const Bf16> gate, int64_t split,
                  float* logits);

}  // namespace galley::kernels::cuda
