// The tokens of one choice to what happens to its answer: text without control
// tokens, ended by the first stop text.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "model/tokenizer.h"
#include "serve/answer_event.h"
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
  // A stop text came: finish, and want no more tokens.
  virtual bool stopped() const = 0;
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
                                        std::string()});
  }

  bool stopped() const override { return stop_.stopped(); }
  bool in_reasoning() const override { return false; }

 private:
  static void add(std::string text, std::vector<serve::AnswerEvent>& out) {
    if (!text.empty()) out.emplace_back(serve::ContentDelta{std::move(text)});
  }

  model::StreamDecoder decoder_;
  const serve::ChatCodec* codec_;
  serve::StopText stop_;
};

}  // namespace galley::server
