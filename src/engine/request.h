// What the engine is asked for and what it answers: plain values, no pointers
// into anybody's state.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/sampling_options.h"

namespace galley::engine {

// One token list being extended. A request for n answers has n of them.
enum class SequenceId : uint64_t {};

constexpr int32_t kStopTokensMax = 16;

struct GenerateRequest {
  SequenceId id{};                   // the caller's, unique among those that run or wait
  std::vector<int32_t> prompt;       // at least one token; BOS is the caller's business
  int32_t output_tokens_max = 0;     // at least one
  std::vector<int32_t> stop_tokens;  // each ends the sequence when produced
  SamplingOptions sampling;
};

enum class FinishReason : uint8_t {
  kNone,       // goes on
  kStop,       // produced a stop token, which is the event's token
  kLength,     // reached output_tokens_max
  kCancelled,  // on request; the event has no token
  kFailed,     // the model gave no usable logits; the event has no token
};

constexpr const char* finish_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "none";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kFailed:
      return "failed";
  }
  return "none";
}

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
};

// One token of one sequence, in the order produced. Spans live until the next step.
struct TokenEvent {
  SequenceId id{};
  int32_t token = 0;
  bool has_token = false;
  FinishReason finish = FinishReason::kNone;
  float logprob = 0;                                // only if asked for
  std::span<const TokenLogprob> top_logprobs = {};  // as many as asked for, best first
};

}  // namespace galley::engine
