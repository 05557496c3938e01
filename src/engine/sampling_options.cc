#include "engine/sampling_options.h"

#include <cmath>
#include <string>

namespace galley::engine {
namespace {

// `low_open`: the lower end itself is refused.
struct Bounds {
  float low;
  float high;
  bool low_open = false;
};

std::string number(float value) {
  std::string text = std::to_string(value);
  while (text.find('.') != std::string::npos && (text.back() == '0' || text.back() == '.')) {
    const bool point = text.back() == '.';
    text.pop_back();
    if (point) break;
  }
  return text;
}

Result<void> within(const char* name, float value, Bounds bounds) {
  const bool low_ok = bounds.low_open ? value > bounds.low : value >= bounds.low;
  if (low_ok && value <= bounds.high) return {};  // false for NaN
  return Error{ErrorCode::kInvalid,
               std::string(name) + " is " + number(value) +
                   (bounds.low_open ? ", must be above " : ", must be from ") + number(bounds.low) +
                   (bounds.low_open ? ", at most " : " to ") + number(bounds.high)};
}

}  // namespace

Result<void> validate(const SamplingOptions& options, int32_t vocab_size) {
  TRY(within("temperature", options.temperature, {0, 100}));
  TRY(within("top_p", options.top_p, {0, 1, true}));
  TRY(within("min_p", options.min_p, {0, 1}));
  TRY(within("repetition_penalty", options.repetition_penalty, {0, 100, true}));
  TRY(within("frequency_penalty", options.frequency_penalty, {-100, 100}));
  TRY(within("presence_penalty", options.presence_penalty, {-100, 100}));
  if (options.top_k < 0) {
    return Error{ErrorCode::kInvalid,
                 "top_k is " + std::to_string(options.top_k) + ", must be 0 (all) or more"};
  }
  if (options.top_logprobs < 0 || options.top_logprobs > kTopLogprobsMax) {
    return Error{ErrorCode::kInvalid, "top_logprobs is " + std::to_string(options.top_logprobs) +
                                          ", must be from 0 to " + std::to_string(kTopLogprobsMax)};
  }
  if (options.logit_bias.size() > kLogitBiasMax) {
    return Error{ErrorCode::kInvalid, "logit_bias has " +
                                          std::to_string(options.logit_bias.size()) +
                                          " entries, at most " + std::to_string(kLogitBiasMax)};
  }
  for (const auto& [id, bias] : options.logit_bias) {
    if (id < 0 || id >= vocab_size) {
      return Error{ErrorCode::kInvalid, "logit_bias names token " + std::to_string(id) +
                                            ", the vocabulary has " + std::to_string(vocab_size)};
    }
    TRY(within("logit_bias", bias, {-100, 100}));
  }
  for (const int32_t id : options.held_back) {
    if (id >= 0 && id < vocab_size) continue;
    return Error{ErrorCode::kInvalid, "held_back names token " + std::to_string(id) +
                                          ", the vocabulary has " + std::to_string(vocab_size)};
  }
  return {};
}

}  // namespace galley::engine
