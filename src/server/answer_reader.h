// The tokens of one choice to what happens to its answer: plain text for a
// completion, reasoning, content and calls for a conversation.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "model/tokenizer.h"
#include "serve/answer_event.h"
#include "serve/answer_parser.h"
#include "serve/codec.h"
#include "serve/stop_text.h"

namespace galley::server {

class AnswerReader {
 public:
  virtual ~AnswerReader() = default;

  // Appends to `out` what became certain with this token.
  virtual void push(int32_t token, std::vector<serve::AnswerEvent>& out) = 0;
  // What was held back, and the end. `reason` counts when no stop text came before.
  virtual void finish(serve::AnswerFinish reason, std::vector<serve::AnswerEvent>& out) = 0;
  // Nothing that comes will be handed on: finish, and want no more tokens.
  virtual bool done() const = 0;
  virtual bool in_reasoning() const = 0;
};

// An answer that is text and nothing else.
class PlainAnswerReader : public AnswerReader {
 public:
  PlainAnswerReader(const model::Tokenizer& tokenizer, const serve::ChatCodec& codec,
                    std::vector<std::string> stops)
      : decoder_(tokenizer), codec_(&codec), stop_(std::move(stops)) {}

  void push(int32_t token, std::vector<serve::AnswerEvent>& out) override {
    if (!codec_->is_control(token)) add(stop_.push(decoder_.push(token)), out);
  }

  void finish(serve::AnswerFinish reason, std::vector<serve::AnswerEvent>& out) override {
    if (!stop_.stopped()) {
      // A character that stayed unfinished is dropped: it says nothing.
      if (!decoder_.holds_bytes()) add(stop_.push(decoder_.finish()), out);
      add(stop_.finish(), out);
    }
    out.emplace_back(serve::FinishEvent{stop_.stopped() ? serve::AnswerFinish::kStopText : reason,
                                        stop_.stop()});
  }

  bool done() const override { return stop_.stopped(); }
  bool in_reasoning() const override { return false; }

 private:
  static void add(std::string text, std::vector<serve::AnswerEvent>& out) {
    if (!text.empty()) out.emplace_back(serve::ContentDelta{std::move(text)});
  }

  model::StreamDecoder decoder_;
  const serve::ChatCodec* codec_;
  serve::StopText stop_;
};

// The assistant's turn of a conversation.
class TurnReader : public AnswerReader {
 public:
  TurnReader(const model::Tokenizer& tokenizer, const serve::ChatCodec& codec,
             serve::AnswerOptions options)
      : parser_(tokenizer, codec, std::move(options)) {}

  void push(int32_t token, std::vector<serve::AnswerEvent>& out) override {
    add(parser_.push(token), out);
  }
  void finish(serve::AnswerFinish reason, std::vector<serve::AnswerEvent>& out) override {
    add(parser_.finish(reason), out);
  }
  bool done() const override { return parser_.done(); }
  bool in_reasoning() const override { return parser_.in_reasoning(); }

 private:
  static void add(std::vector<serve::AnswerEvent> events, std::vector<serve::AnswerEvent>& out) {
    for (serve::AnswerEvent& event : events) out.push_back(std::move(event));
  }

  serve::AnswerParser parser_;
};

}  // namespace galley::server
