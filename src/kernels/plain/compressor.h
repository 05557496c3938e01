// The gated pooling of one group of tokens into a latent (spec/model.md 4.3).
#pragma once

#include <cstdint>

#include "kernels/tensor.h"

namespace galley::kernels::plain {

// latent [width] = RMS(bf16(sum over members of softmax(gate) * kv)), per channel;
// kv and gate [ratio, width], member m at m * stride.
void compress_group(const float* kv, int64_t kv_stride, const float* gate, int64_t gate_stride,
                    int32_t ratio, const Bf16* norm_weight, int64_t width, float eps, Bf16* latent);

}  // namespace galley::kernels::plain
