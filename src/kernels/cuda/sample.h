// The next tokens from rows of logits, on the device: the best, or a draw at a temperature.
//
// A draw is a function of (seed, stream, position) and the row, with the exponentials and block
// sums of engine/logit_math (its level without fused operations) to the bit: the host sampler's
// token, unless the draw falls within rounding on the border of two. Penalties, bias and masks are
// the host sampler's.
#pragma once

#include <cstdint>

#include "kernels/cuda/device.h"
#include "kernels/drawn_token.h"
#include "kernels/tensor.h"

namespace galley::kernels::cuda {

constexpr int64_t kSampleVocabMax = 1 << 20;

int64_t sample_workspace_bytes(int64_t rows, int64_t vocab);

// requests and tokens [R] are device memory. sample() makes the tokens of all requests but those
// that are cut (DrawRequest::is_cut), in three launches, sample_cut() (sample_cut.cu) those, in
// one.
void sample(Stream stream, Rows<const float> logits, const DrawRequest* requests,
            DrawnToken* tokens, void* workspace);
void sample_cut(Stream stream, Rows<const float> logits, const DrawRequest* requests,
                DrawnToken* tokens);

}  // namespace galley::kernels::cuda
