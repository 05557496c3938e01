// How one request wants its tokens chosen. Plain values, checked once at the door.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/result.h"

namespace galley::engine {

constexpr int32_t kTopLogprobsMax = 20;
constexpr int32_t kLogitBiasMax = 1024;

// Applied in this order: penalties, bias, held back tokens, temperature, min-p, top-k, top-p, draw.
struct SamplingOptions {
  float temperature = 1.0F;  // 0 = the best token, ties to the lower id
  int32_t top_k = 0;         // keep the k best; 0 = all
  float top_p = 1.0F;        // keep the fewest best whose share of what is left reaches p
  float min_p = 0.0F;        // drop tokens less than min_p times as likely as the best

  // Over prompt and output: positive logits are divided by it, negative multiplied.
  float repetition_penalty = 1.0F;
  // Over the output alone: logit -= frequency * count + presence * (count > 0).
  float frequency_penalty = 0.0F;
  float presence_penalty = 0.0F;

  std::vector<std::pair<int32_t, float>> logit_bias = {};  // (token id, added to its logit)
  // Tokens that are not chosen at positions before `held_back_before`, whatever their logits.
  std::vector<int32_t> held_back = {};
  int64_t held_back_before = 0;
  uint64_t seed = 0;
  uint64_t stream = 0;  // tells apart the sequences of one request

  bool logprob = false;      // report the chosen token's log-probability under the raw logits
  int32_t top_logprobs = 0;  // and that many best alternatives

  bool has_penalties() const {
    return repetition_penalty != 1.0F || frequency_penalty != 0.0F || presence_penalty != 0.0F;
  }
};

// kInvalid with the option's name and its range.
Result<void> validate(const SamplingOptions& options, int32_t vocab_size);

}  // namespace galley::engine
