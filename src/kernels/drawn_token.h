// How a token is drawn from a row of logits by kernels, and what comes of it.
//
// Knows no penalties, bias or masks: rows that want these go to engine/sampler.h.
#pragma once

#include <cstdint>

namespace galley::kernels {

// A draw is a function of the row and (seed, stream, position).
struct DrawRequest {
  float temperature = 0.0F;  // below 1e-5: the best token, ties to the lower id
  uint64_t seed = 0;
  uint64_t stream = 0;
  int64_t position = 0;
  int32_t top_k = 0;  // as in engine/sampling_options.h, and in the same order: min-p, top-k, top-p
  float top_p = 1.0F;
  float min_p = 0.0F;

  // Whether it is drawn from some of the tokens only.
  constexpr bool is_cut() const {
    return temperature >= 1e-5F && (top_k != 0 || top_p < 1.0F || min_p > 0.0F);
  }
};

struct DrawnToken {
  int32_t token = 0;
  int32_t valid = 0;     // 0: the row had NaN or no finite logit; there is no token
  float logprob = 0.0F;  // under the raw logits
};

}  // namespace galley::kernels
