// What the engine is asked for and what it answers: plain values, no pointers
// into anybody's state.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/sampling_options.h"

namespace galley::engine {

// One token list being extended. A request for n answers has n of them.
enum class SequenceId : uint64_t {};

constexpr int32_t kStopTokensMax = 16;

// Times are handed in by whoever has a clock; the engine's parts only compare them.
using TimePoint = std::chrono::steady_clock::time_point;

// Who goes first when not all can run.
enum class Priority : uint8_t {
  kInteractive,  // somebody waits for the answer
  kBatch,        // by tomorrow
  kBestEffort,   // whenever nothing else wants the machine
};

constexpr int32_t kPriorityCount = 3;
constexpr size_t kCacheNamespaceBytesMax = 256;

struct GenerateRequest {
  SequenceId id{};                   // the caller's, unique among those that run or wait
  std::vector<int32_t> prompt;       // at least one token; BOS is the caller's business
  int32_t output_tokens_max = 0;     // at least one
  std::vector<int32_t> stop_tokens;  // each ends the sequence when produced
  SamplingOptions sampling;

  Priority priority = Priority::kInteractive;
  uint64_t tenant = 0;                // who shares the machine fairly with the others
  std::optional<TimePoint> deadline;  // at which it ends as kDeadline, done or not
  // Prefixes are shared among requests of one namespace only: any bytes, at most
  // kCacheNamespaceBytesMax of them.
  std::string cache_namespace;
};

enum class FinishReason : uint8_t {
  kNone,       // goes on
  kStop,       // produced a stop token, which is the event's token
  kLength,     // reached output_tokens_max
  kCancelled,  // on request; the event has no token
  kDeadline,   // its deadline passed; the event has no token
  kFailed,     // the model gave no usable logits; the event has no token
};

constexpr int32_t kFinishReasonCount = 6;

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
    case FinishReason::kDeadline:
      return "deadline";
    case FinishReason::kFailed:
      return "failed";
  }
  return "none";
}

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
};

// Why a prompt was not found in the prefix cache, or not further than it was.
enum class MissReason : uint8_t {
  kNone,            // all of it that can be reused was
  kOff,             // no prefix cache
  kTooShort,        // what matched is not worth a replay, or the prompt has no whole page
  kUnknown,         // nothing like it was computed here
  kTokenDiffers,    // another continuation is cached: Usage::differs_at
  kEvicted,         // it was cached and had to make room
  kExpired,         // it was cached until nobody had used it for longer than --prefix-ttl
  kOtherNamespace,  // this tenant has it under another namespace
};

constexpr const char* miss_name(MissReason reason) {
  switch (reason) {
    case MissReason::kNone:
      return "none";
    case MissReason::kOff:
      return "off";
    case MissReason::kTooShort:
      return "too_short";
    case MissReason::kUnknown:
      return "unknown";
    case MissReason::kTokenDiffers:
      return "token_differs";
    case MissReason::kEvicted:
      return "evicted";
    case MissReason::kExpired:
      return "expired";
    case MissReason::kOtherNamespace:
      return "other_namespace";
  }
  return "none";
}

// What a sequence cost so far. Prompt and cache figures are final from its first token on.
struct Usage {
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;    // of the prompt, found in the prefix cache
  int32_t replayed_tokens = 0;  // of those, recomputed to refill the windows
  int32_t output_tokens = 0;
  int32_t preemptions = 0;
  MissReason miss = MissReason::kOff;
  int32_t differs_at = 0;                // position of the first differing token, kTokenDiffers
  std::optional<TimePoint> admitted_at;  // none: it never ran
  std::optional<TimePoint>
      replayed_at;  // when it went on after a hit's replay, if it had steps of that
};

// One token of one sequence, in the order produced. Spans live until the next step.
struct TokenEvent {
  SequenceId id{};
  int32_t token = 0;
  bool has_token = false;
  FinishReason finish = FinishReason::kNone;
  float logprob = 0;                                // only if asked for
  std::span<const TokenLogprob> top_logprobs = {};  // as many as asked for, best first
  Usage usage;                                      // up to this event
};

}  // namespace galley::engine
