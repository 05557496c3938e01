// Latents of full compressor groups (spec/model.md 4.3).
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/tensor.h"

namespace galley::kernels::cuda {

constexpr int64_t kLatentWidthMax = 1024;

// kv and gate [G ratio, c] in position order, latent [G, c].
void compress(Stream stream, Rows<const float> kv, Rows<const float> gate, int32_t ratio,
              const Bf16* norm_weight, float eps, Rows<Bf16> latent);

}  // namespace galley::kernels::cuda
