// An answer's tokens to its events, in order, as they come: what `serve` puts
// between the engine and the APIs.
//
// Control tokens count by their ids alone: text that only looks like one is
// text, and roles never show. No character is cut in half; one that stays
// unfinished at the end is dropped. One parser an answer, used by one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "model/tokenizer.h"
#include "serve/answer_automaton.h"
#include "serve/answer_event.h"
#include "serve/codec.h"

namespace galley::serve {

class AnswerParser {
 public:
  // Tokenizer and codec must outlive the parser.
  AnswerParser(const model::Tokenizer& tokenizer, const ChatCodec& codec, AnswerOptions options);

  // What became final with this token; the end token is the engine's and not pushed.
  std::vector<AnswerEvent> push(int32_t token);
  // The rest, and last a FinishEvent. `reason` is the engine's.
  std::vector<AnswerEvent> finish(AnswerFinish reason);

  // Whether the next token is read as reasoning.
  bool in_reasoning() const { return automaton_.in_reasoning(); }
  int64_t reasoning_tokens() const { return reasoning_tokens_; }
  // A stop sequence came: cancel the sequence, then finish.
  bool stopped() const { return automaton_.stopped(); }
  // Whatever comes will be dropped.
  bool done() const { return automaton_.done(); }

 private:
  const ChatCodec* codec_;
  model::StreamDecoder decoder_;
  AnswerAutomaton automaton_;
  std::optional<int32_t> think_;
  std::optional<int32_t> end_think_;
  std::optional<int32_t> dsml_;
  int64_t reasoning_tokens_ = 0;
};

}  // namespace galley::serve
