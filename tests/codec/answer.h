// Tokenizers for the codec's tests, and an answer's events put together again.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer.h"
#include "serve/answer_parser.h"
#include "serve/codec.h"

namespace galley::serve {

// Nano's; always there.
std::unique_ptr<model::Tokenizer> nano_tokenizer();

// Text in which control tokens count.
std::vector<int32_t> encode_marked(const model::Tokenizer& tokenizer, std::string_view text);

struct Answer {
  std::string reasoning;
  std::string content;
  std::vector<ToolCall> calls;
  AnswerFinish finish = AnswerFinish::kFailed;
};

// Checks on the way that events are well-formed: UTF-8, arguments inside calls, one finish at last.
Answer collect(std::span<const AnswerEvent> events);

Answer parse_answer(const model::Tokenizer& tokenizer, std::span<const int32_t> ids,
                    AnswerOptions options);

}  // namespace galley::serve
