#include "tools/answer_message.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "serve/answer_parser.h"

namespace galley::tools {
namespace {

using Json = nlohmann::ordered_json;

void add(std::vector<serve::AnswerEvent> events, std::string& reasoning, std::string& content,
         Json& calls) {
  for (const serve::AnswerEvent& event : events) {
    if (const auto* thought = std::get_if<serve::ReasoningDelta>(&event)) {
      reasoning += thought->text;
    } else if (const auto* said = std::get_if<serve::ContentDelta>(&event)) {
      content += said->text;
    } else if (const auto* begin = std::get_if<serve::ToolCallBegin>(&event)) {
      Json function = {{"name", begin->name}, {"arguments", ""}};
      calls.push_back({{"id", begin->id}, {"type", "function"}, {"function", function}});
    } else if (const auto* piece = std::get_if<serve::ToolArgumentsDelta>(&event)) {
      calls.back()["function"]["arguments"].get_ref<std::string&>() += piece->text;
    }
  }
}

}  // namespace

Json answer_message(const model::Tokenizer& tokenizer, const serve::ChatCodec& codec,
                    const serve::Prompt& prompt, std::span<const int32_t> ids) {
  serve::AnswerOptions options;
  options.start = prompt.start;
  options.tools = prompt.tools;
  serve::AnswerParser parser(tokenizer, codec, std::move(options));
  std::string reasoning;
  std::string content;
  Json calls = Json::array();
  for (const int32_t id : ids) add(parser.push(id), reasoning, content, calls);
  add(parser.finish(serve::AnswerFinish::kStop), reasoning, content, calls);
  Json message = {{"role", "assistant"}, {"content", content}};
  if (!reasoning.empty()) message["reasoning_content"] = reasoning;
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  return message;
}

}  // namespace galley::tools
