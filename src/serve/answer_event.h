// What happens to one answer, in the order in which it happens: plain values
// between the answer parser (which makes them from tokens) and the encoders of
// the APIs (which write them as JSON).
//
// Text is UTF-8, never cut inside a code point. How a text is cut into deltas
// means nothing: only the concatenation does. An answer's events are
//   (reasoning | content | logprobs)*  (tool begin, arguments*, tool end)*  finish
// and text may come before, between and after tool calls. Knows no API's names.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace galley::serve {

struct ReasoningDelta {
  std::string text;
};

struct ContentDelta {
  std::string text;
};

// The name is complete: a call whose name never ends is no call.
struct ToolCallBegin {
  std::string id;    // fresh and unique
  std::string name;  // as the caller's tools spell it
};

// A piece of the arguments' JSON text of the call that is open.
struct ToolArgumentsDelta {
  std::string text;
};

struct ToolCallEnd {};

struct AnswerLogprob {
  std::string bytes;  // what the token stands for; perhaps part of a code point
  float logprob = 0;
};

struct AnswerToken {
  AnswerLogprob chosen;
  std::vector<AnswerLogprob> top;  // best first, as many as asked for
};

// Only when asked for: the tokens, in order, whether or not their text was held back.
struct LogprobsDelta {
  std::vector<AnswerToken> tokens;
  bool reasoning = false;  // of the thinking part
};

enum class AnswerFinish : uint8_t {
  kStop,       // the model ended its turn
  kStopText,   // one of the caller's stop sequences came
  kLength,     // reached the most tokens allowed
  kToolCalls,  // the turn ended with calls
  kCancelled,  // on request, or the server is going down
  kFailed,     // the model gave no usable output
};

struct FinishEvent {
  AnswerFinish reason = AnswerFinish::kStop;
  std::string stop_text;  // kStopText: which one
};

using AnswerEvent = std::variant<ReasoningDelta, ContentDelta, ToolCallBegin, ToolArgumentsDelta,
                                 ToolCallEnd, LogprobsDelta, FinishEvent>;

// What a whole request cost: the same numbers whether streamed or not.
struct AnswerUsage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;      // of the prompt: taken from the prefix cache
  int64_t replayed_tokens = 0;    // of those: run again to rebuild the window
  int64_t completion_tokens = 0;  // over all answers, reasoning included
  int64_t reasoning_tokens = 0;   // of those
  int64_t drafted_tokens = 0;     // proposed by the drafter
  int64_t accepted_tokens = 0;    // of those: kept
  std::string miss_reason;        // why no more of the prompt was cached; empty: unknown or all was
};

}  // namespace galley::serve
