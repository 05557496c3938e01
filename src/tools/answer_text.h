// An answer's tokens as text while they arrive: control tokens left out, no
// character cut in half.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "model/tokenizer.h"
#include "serve/codec.h"
#include "serve/stop_text.h"

namespace galley::tools {

class AnswerText {
 public:
  // `raw` also shows control tokens.
  AnswerText(const model::Tokenizer& tokenizer, const serve::ChatCodec& codec, bool raw,
             std::vector<std::string> stops = {})
      : decoder_(tokenizer), codec_(&codec), raw_(raw), stop_(std::move(stops)) {}

  // The text that became final, perhaps none.
  std::string push(int32_t token) {
    if (!raw_ && codec_->is_control(token)) return "";
    return stop_.push(decoder_.push(token));
  }
  // A character that stayed unfinished is dropped, as it says nothing.
  std::string finish() {
    const bool unfinished = decoder_.holds_bytes();
    const std::string rest = decoder_.finish();
    return (unfinished && !raw_ ? "" : stop_.push(rest)) + stop_.finish();
  }
  // A stop sequence ended the text: what comes after is not wanted.
  bool stopped() const { return stop_.stopped(); }

 private:
  model::StreamDecoder decoder_;
  const serve::ChatCodec* codec_;
  bool raw_;
  serve::StopText stop_;
};

}  // namespace galley::tools
