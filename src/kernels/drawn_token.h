// How a token is drawn from a row of logits by kernels, and what comes of it.
//
// Knows no penalties, masks, top-k or nucleus: rows that want these go to engine/sampler.h.
#pragma once

#include <cstdint>

namespace galley::kernels {

// A draw is a function of the row and (seed, stream, position).
struct DrawRequest {
  float temperature = 0.0F;  // below 1e-5: the best token, ties to the lower id
  uint64_t seed = 0;
  uint64_t stream = 0;
  int64_t position = 0;
};

struct DrawnToken {
  int32_t token = 0;
  int32_t valid = 0;     // 0: the row had NaN or no finite logit; there is no token
  float logprob = 0.0F;  // under the raw logits
};

}  // namespace galley::kernels
