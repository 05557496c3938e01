// What is rendered reads back as it was, and renders again to the same tokens:
// made-up answers, real calls of many tools, and nano's own task prompts.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "answer.h"
#include "base/file.h"
#include "base/random.h"
#include "serve/control_text.h"
#include "serve/message_json.h"
#include "serve/python_json.h"

namespace galley::serve {
namespace {

using Json = nlohmann::ordered_json;

// One conversation with one answer: the answer's tokens alone, without the end token.
std::vector<int32_t> answer_tokens(const ChatCodec& codec, Conversation conversation,
                                   const Message& answer) {
  const Prompt prompt = codec.encode(conversation).value();
  conversation.messages.push_back(answer);
  conversation.open_answer = false;
  std::vector<int32_t> ids = codec.encode(conversation).value().ids;
  EXPECT_TRUE(std::equal(prompt.ids.begin(), prompt.ids.end(), ids.begin()));
  EXPECT_EQ(ids.back(), codec.end_id());
  return {ids.begin() + static_cast<std::ptrdiff_t>(prompt.ids.size()), ids.end() - 1};
}

void check_round_trip(const model::Tokenizer& tokenizer, const Conversation& conversation,
                      const Message& answer) {
  const ChatCodec codec = ChatCodec::create(tokenizer).value();
  const std::vector<int32_t> ids = answer_tokens(codec, conversation, answer);
  AnswerOptions options;
  options.start = conversation.thinking ? AnswerStart::kReasoning : AnswerStart::kContent;
  options.tools = true;
  const Answer parsed = parse_answer(tokenizer, ids, options);
  EXPECT_EQ(parsed.reasoning, answer.reasoning);
  EXPECT_EQ(parsed.content, answer.content.empty() ? "" : answer.content[0].data);
  ASSERT_EQ(parsed.calls.size(), answer.calls.size());
  for (size_t i = 0; i < parsed.calls.size(); ++i) {
    EXPECT_EQ(parsed.calls[i].name, answer.calls[i].name);
    EXPECT_EQ(parsed.calls[i].arguments, answer.calls[i].arguments);
  }
  Message again = text_message(Role::kAssistant, parsed.content);
  again.reasoning = parsed.reasoning;
  again.calls = parsed.calls;
  EXPECT_EQ(answer_tokens(codec, conversation, again), ids);
}

// The JSON as the prompt shows it.
std::string shown(const Json& json) {
  JsonLimits limits;
  limits.keep_order = true;
  return python_json(JsonDocument::parse(json.dump(), limits).value().root());
}

class Draw {
 public:
  explicit Draw(uint64_t seed) : seed_(seed) {}

  size_t below(size_t count) {
    return static_cast<size_t>(random_unit(seed_, draws_++) * static_cast<double>(count));
  }
  std::string text(size_t pieces_max) {
    static const std::vector<std::string> kPieces = {
        "a",    "Paris", " ",  "\n",        "\n\n",     "\"",         "\\",
        "<",    "</",    "é",  "😀",         "</think>", "<｜User｜>", "｜DSML｜",
        "{",    "}",     "[",  "1.5",       "\t",       "\x01",       "<｜DSML｜ calls>",
        "中文", "```",   ", ", "parameter", "=",        ">"};
    std::string text;
    for (size_t i = below(pieces_max + 1); i > 0; --i) text += kPieces[below(kPieces.size())];
    return text;
  }
  // Without the newlines at its ends that markup swallows.
  std::string trimmed_text(size_t pieces_max) {
    std::string drawn = text(pieces_max);
    const size_t begin = drawn.find_first_not_of('\n');
    if (begin == std::string::npos) return "";
    return drawn.substr(begin, drawn.find_last_not_of('\n') - begin + 1);
  }
  std::string name() {
    static const std::vector<std::string> kNames = {"f",      "get_weather", "web::get", "a-b.c",
                                                    "städte", "x y",         "名前"};
    return kNames[below(kNames.size())];
  }
  Json value(int depth) {
    switch (below(depth > 0 ? 8 : 6)) {
      case 0:
        return nullptr;
      case 1:
        return below(2) == 0;
      case 2:
        return static_cast<int64_t>(below(1'000'000)) - 500'000;
      case 3:
        return static_cast<double>(below(1000)) / 8;
      case 6: {
        Json list = Json::array();
        for (size_t i = below(4); i > 0; --i) list.push_back(value(depth - 1));
        return list;
      }
      case 7: {
        Json object = Json::object();
        for (size_t i = below(4); i > 0; --i) object[text(3)] = value(depth - 1);
        return object;
      }
      default:
        return text(8);
    }
  }

 private:
  uint64_t seed_;
  uint64_t draws_ = 0;
};

TEST(RoundTrip, MadeUpAnswers) {
  const auto tokenizer = nano_tokenizer();
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(seed);
    Draw draw(seed);
    Conversation conversation;
    conversation.messages = {text_message(Role::kUser, draw.text(5))};
    conversation.tools = {{"f", R"({"name": "f"})"}};
    conversation.thinking = draw.below(2) == 0;
    Message answer = text_message(Role::kAssistant, draw.trimmed_text(12));
    if (conversation.thinking) answer.reasoning = draw.trimmed_text(12);
    for (size_t i = draw.below(4); i > 0; --i) {
      Json arguments = Json::object();
      for (size_t j = draw.below(4); j > 0; --j) arguments[draw.name()] = draw.value(2);
      answer.calls.push_back({"", draw.name(), shown(arguments)});
    }
    check_round_trip(*tokenizer, conversation, answer);
    if (HasFailure()) break;
  }
}

std::vector<std::string> lines_of(const std::string& path) {
  const std::string file = read_file(GALLEY_SOURCE_DIR + path, 1 << 24).value();
  std::vector<std::string> lines;
  for (size_t at = 0; at < file.size();) {
    const size_t end = file.find('\n', at);
    lines.push_back(file.substr(at, end - at));
    at = end == std::string::npos ? file.size() : end + 1;
  }
  return lines;
}

// {"name": {"argument": [accepted values]}} with the first value of each.
ToolCall call_of(const Json& accepted) {
  const auto call = accepted.begin();
  Json chosen = Json::object();
  for (const auto& [key, values] : call.value().items()) {
    chosen[key] = values.empty() ? values : values.at(0);
  }
  return {"", call.key(), shown(chosen)};
}

TEST(RoundTrip, CallsOfManyTools) {
  const auto tokenizer = nano_tokenizer();
  JsonLimits limits;
  limits.keep_order = true;
  size_t calls = 0;
  for (const std::string& line : lines_of("/tests/codec/cases/bfcl_tool_calls.jsonl")) {
    const JsonDocument document = JsonDocument::parse(line, limits).value();
    const JsonValue test = document.root();
    SCOPED_TRACE(test.at("id").value().as_string().value());
    Conversation conversation = parse_messages(test.at("messages").value()).value();
    const JsonValue functions = test.at("functions").value();
    for (size_t i = 0; i < functions.size(); ++i) {
      conversation.tools.push_back(make_tool(functions.item(i)).value());
    }
    Message answer;
    answer.role = Role::kAssistant;
    const Json ordered = Json::parse(line);
    for (const Json& accepted : ordered.at("answer")) answer.calls.push_back(call_of(accepted));
    calls += answer.calls.size();
    check_round_trip(*tokenizer, conversation, answer);
    if (HasFailure()) break;
  }
  EXPECT_GT(calls, 921U);
}

// The conversation that a prompt of training/tasks/tools.jsonl was made from.
Conversation read_prompt(std::string_view text) {
  const auto take_until = [&](std::string_view mark) {
    const size_t at = text.find(mark);
    CHECK(at != std::string_view::npos);
    const std::string taken(text.substr(0, at));
    text.remove_prefix(at + mark.size());
    return taken;
  };
  Conversation conversation;
  take_until(kSystem);
  conversation.thinking = text.starts_with(kEffortHead);
  if (conversation.thinking) {
    take_until(kEffortHead);
    conversation.effort = std::stoi(take_until(kEffortTail));
  }
  std::string head(kBlockSeparator);
  conversation.messages.push_back(text_message(Role::kSystem, take_until(head.append(kToolsHead))));
  std::string schemas = take_until(kToolsTail);
  JsonLimits limits;
  limits.keep_order = true;
  for (size_t at = 0; at < schemas.size();) {
    const size_t end = std::min(schemas.find('\n', at), schemas.size());
    const JsonDocument schema = JsonDocument::parse(schemas.substr(at, end - at), limits).value();
    conversation.tools.push_back(make_tool(schema.root()).value());
    at = end + 1;
  }
  take_until(kUser);
  conversation.messages.push_back(text_message(Role::kUser, take_until(kAssistant)));
  return conversation;
}

TEST(RoundTrip, NanosTaskPrompts) {
  const auto tokenizer = nano_tokenizer();
  const ChatCodec codec = ChatCodec::create(*tokenizer).value();
  int prompts = 0;
  for (const std::string& line : lines_of("/training/tasks/tools.jsonl")) {
    const std::string prompt = Json::parse(line).at("prompt").get<std::string>();
    const Prompt rendered = codec.encode(read_prompt(prompt)).value();
    EXPECT_EQ(rendered.ids, encode_marked(*tokenizer, prompt)) << prompt;
    EXPECT_EQ(rendered.start == AnswerStart::kReasoning, prompt.ends_with(kThink));
    ++prompts;
  }
  EXPECT_EQ(prompts, 100);
}

}  // namespace
}  // namespace galley::serve
