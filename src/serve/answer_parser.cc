#include "serve/answer_parser.h"

#include <string>
#include <utility>

#include "serve/answer_marks.h"
#include "serve/control_text.h"

namespace galley::serve {

AnswerParser::AnswerParser(const model::Tokenizer& tokenizer, const ChatCodec& codec,
                           AnswerOptions options)
    : codec_(&codec),
      decoder_(tokenizer),
      automaton_(std::move(options)),
      think_(tokenizer.added_id(kThink)),
      end_think_(tokenizer.added_id(kEndThink)),
      dsml_(tokenizer.added_id(kDsml)) {}

std::vector<AnswerEvent> AnswerParser::push(int32_t token) {
  if (automaton_.in_reasoning()) ++reasoning_tokens_;
  const char mark = token == think_       ? kThinkMark
                    : token == end_think_ ? kEndThinkMark
                    : token == dsml_      ? kDsmlMark
                                          : '\0';
  if (mark != '\0') {
    automaton_.push(decoder_.finish());
    automaton_.push(std::string(1, mark));
  } else if (!codec_->is_control(token)) {
    automaton_.push(decoder_.push(token));
  }
  return automaton_.take();
}

std::vector<AnswerEvent> AnswerParser::finish(AnswerFinish reason) {
  if (!decoder_.holds_bytes()) automaton_.push(decoder_.finish());
  automaton_.finish(reason);
  return automaton_.take();
}

}  // namespace galley::serve
