#include "answer.h"

#include <gtest/gtest.h>

#include <variant>

#include "base/utf8.h"

namespace galley::serve {

std::unique_ptr<model::Tokenizer> nano_tokenizer() {
  auto opened = model::Tokenizer::open(GALLEY_SOURCE_DIR "/models/nano");
  CHECK(opened.has_value());
  return std::make_unique<model::Tokenizer>(*std::move(opened));
}

std::vector<int32_t> encode_marked(const model::Tokenizer& tokenizer, std::string_view text) {
  return tokenizer.encode(text, model::Markup::kActive).value();
}

Answer collect(std::span<const AnswerEvent> events) {
  Answer answer;
  bool in_call = false;
  bool finished = false;
  for (const AnswerEvent& event : events) {
    EXPECT_FALSE(finished);
    if (const auto* reasoning = std::get_if<ReasoningDelta>(&event)) {
      EXPECT_TRUE(is_utf8(reasoning->text) && !in_call);
      answer.reasoning += reasoning->text;
    } else if (const auto* content = std::get_if<ContentDelta>(&event)) {
      EXPECT_TRUE(is_utf8(content->text) && !in_call);
      answer.content += content->text;
    } else if (const auto* begin = std::get_if<ToolCallBegin>(&event)) {
      EXPECT_FALSE(in_call);
      in_call = true;
      answer.calls.push_back({begin->id, begin->name, ""});
    } else if (const auto* arguments = std::get_if<ToolArgumentsDelta>(&event)) {
      EXPECT_TRUE(is_utf8(arguments->text) && in_call);
      answer.calls.back().arguments += arguments->text;
    } else if (std::holds_alternative<ToolCallEnd>(event)) {
      EXPECT_TRUE(in_call);
      in_call = false;
    } else if (const auto* finish = std::get_if<FinishEvent>(&event)) {
      finished = true;
      answer.finish = finish->reason;
    }
  }
  EXPECT_TRUE(finished && !in_call);
  return answer;
}

Answer parse_answer(const model::Tokenizer& tokenizer, std::span<const int32_t> ids,
                    AnswerOptions options) {
  const ChatCodec codec = ChatCodec::create(tokenizer).value();
  AnswerParser parser(tokenizer, codec, std::move(options));
  std::vector<AnswerEvent> events;
  const auto take = [&](std::vector<AnswerEvent> more) {
    for (AnswerEvent& event : more) events.push_back(std::move(event));
  };
  for (const int32_t id : ids) take(parser.push(id));
  take(parser.finish(AnswerFinish::kStop));
  return collect(events);
}

}  // namespace galley::serve
