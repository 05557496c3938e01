// An answer's tokens as text while they arrive: control tokens left out, no
// character cut in half.
#pragma once

#include <string>
#include <utility>

#include "model/tokenizer.h"
#include "serve/codec.h"

namespace galley::tools {

class AnswerText {
 public:
  // `raw` also shows control tokens.
  AnswerText(const model::Tokenizer& tokenizer, const serve::ChatCodec& codec, bool raw)
      : decoder_(tokenizer), codec_(&codec), raw_(raw) {}

  std::string push(int32_t token) {
    if (!raw_ && codec_->is_control(token)) return "";
    return decoder_.push(token);
  }
  // A character that stayed unfinished is dropped, as it says nothing.
  std::string finish() {
    const bool unfinished = decoder_.holds_bytes();
    std::string rest = decoder_.finish();
    return unfinished && !raw_ ? "" : rest;
  }

 private:
  model::StreamDecoder decoder_;
  const serve::ChatCodec* codec_;
  bool raw_;
};

}  // namespace galley::tools
