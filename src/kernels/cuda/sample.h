// The next tokens from rows of logits, on the device: the best, or a draw at a temperature.
//
// A draw is a function of (seed, stream, position) and the row, with the exponentials and block
// sums of engine/logit_math (its level without fused operations) to the bit: the host sampler's
// token, unless the draw falls within rounding on the border of two. Penalties, bias, masks, top-k,
// top-p and min-p are the host sampler's.
#pragma once

#include <cstdint>

#include "kernels/cuda/device.h"
#include "kernels/tensor.h"

namespace galley::kernels::cuda {

struct SampleRequest {
  float temperature = 0.0F;  // below 1e-5: the best token, ties to the lower id
  uint64_t seed = 0;
  uint64_t stream = 0;
  int64_t position = 0;
};

struct SampledToken {
  int32_t token = 0;
  int32_t valid = 0;     // 0: the row had NaN or no finite logit; there is no token
  float logprob = 0.0F;  // under the raw logits
};

constexpr int64_t kSampleVocabMax = 1 << 20;

int64_t sample_workspace_bytes(int64_t rows, int64_t vocab);

// Three launches. requests and tokens [R] are device memory.
void sample(Stream stream, Rows<const float> logits, const SampleRequest* requests,
            SampledToken* tokens, void* workspace);

}  // namespace galley::kernels::cuda
