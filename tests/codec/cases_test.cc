// What other engines' tests expect of the same format (README.md says from
// where), with nano's tokenizer and, if it is there, DeepSeek's.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "answer.h"
#include "base/file.h"
#include "model/deepseek_test_vocabulary.h"
#include "serve/answer_automaton.h"
#include "serve/answer_marks.h"
#include "serve/control_text.h"
#include "serve/message_json.h"

namespace galley::serve {
namespace {

// By case: what is there in the expected text, and what we say instead (README.md).
const std::map<std::string, std::pair<std::string, std::string>> kOtherwise = {
    {"effort_None", {"Effort: 50", "Effort: 75"}},
    {"effort_low", {"Effort: 25", "Effort: 50"}},
    {"effort_high", {"Effort: 50", "Effort: 75"}},
};

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  const size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos);
  return at == std::string::npos ? text : text.replace(at, what.size(), with);
}

struct Rendered {
  std::string text;
  Prompt prompt;
};

// The case's options are those of vLLM's chat template: thinking unless said otherwise.
Result<Rendered> render(const JsonValue& test, const model::Tokenizer& tokenizer,
                        std::optional<bool> open_answer = std::nullopt) {
  const JsonValue options = TRY(test.at("options"));
  const JsonValue messages = TRY(test.at("messages"));
  Conversation conversation;
  if (messages.size() > 0) conversation = TRY(parse_messages(messages));
  if (const auto tools = test.find("tools")) conversation.tools = TRY(parse_tools(*tools));
  conversation.thinking = true;
  for (const char* key : {"thinking", "enable_thinking"}) {
    if (const auto on = options.find(key)) conversation.thinking = TRY(on->as_bool());
  }
  if (const auto effort = options.find("reasoning_effort"); effort && !effort->is_null()) {
    if (effort->is_string() && TRY(effort->as_string()) == "none") {
      conversation.thinking = false;
    } else {
      conversation.effort = TRY(parse_effort(*effort));
    }
  }
  if (const auto open = options.find("add_generation_prompt")) {
    conversation.open_answer = TRY(open->as_bool());
  }
  if (open_answer) conversation.open_answer = *open_answer;
  if (options.find("continue_final_message")) TRY(continue_last(conversation));
  const ChatCodec codec = TRY(ChatCodec::create(tokenizer, true));
  Rendered rendered;
  rendered.prompt = TRY(codec.encode(conversation));
  rendered.text = TRY(tokenizer.decode(rendered.prompt.ids));
  return rendered;
}

// The strings of a list that may be absent.
std::vector<std::string> strings(const JsonValue& test, const char* key) {
  std::vector<std::string> all;
  const std::optional<JsonValue> list = test.find(key);
  for (size_t i = 0; list && i < list->size(); ++i) {
    all.emplace_back(list->item(i).as_string().value());
  }
  return all;
}

void check_text(const std::string& id, const JsonValue& test, const Rendered& rendered,
                const model::Tokenizer& tokenizer) {
  if (const auto expected = test.find("expect_equal")) {
    std::string text(expected->as_string().value());
    const auto otherwise = kOtherwise.find(id);
    if (otherwise != kOtherwise.end()) {
      text = replaced(text, otherwise->second.first, otherwise->second.second);
    }
    EXPECT_EQ(rendered.text, text);
    EXPECT_EQ(rendered.prompt.ids, encode_marked(tokenizer, text));
  }
  if (const auto ending = test.find("expect_endswith")) {
    EXPECT_TRUE(rendered.text.ends_with(ending->as_string().value())) << rendered.text;
    EXPECT_EQ(rendered.prompt.start, AnswerStart::kReasoning);
  }
  if (const auto images = test.find("expect_images")) {
    EXPECT_EQ(rendered.prompt.images.size(), static_cast<size_t>(images->as_integer().value()));
    EXPECT_EQ(std::count(rendered.prompt.ids.begin(), rendered.prompt.ids.end(),
                         *tokenizer.added_id(kImage)),
              images->as_integer().value());
  }
  if (id == "literal_image_placeholder_user") return;  // no image, checked above; the text is kept
  for (const std::string& part : strings(test, "expect_contains")) {
    EXPECT_NE(rendered.text.find(part), std::string::npos) << part;
  }
  EXPECT_TRUE(strings(test, "expect_not_contains").empty());
}

void check_encode(const std::string& id, const JsonValue& test, const model::Tokenizer& tokenizer) {
  const Result<Rendered> rendered = render(test, tokenizer);
  if (const auto error = test.find("expect_error")) {
    ASSERT_FALSE(rendered.has_value());
    // The effort is refused by its value; the field's name is the caller's to add.
    if (!id.starts_with("bad_effort")) {
      EXPECT_NE(rendered.error().message.find(error->as_string().value()), std::string::npos)
          << rendered.error().message;
    }
    return;
  }
  ASSERT_TRUE(rendered.has_value()) << rendered.error().message;
  check_text(id, test, *rendered, tokenizer);
}

void check_property(const std::string& id, const JsonValue& test,
                    const model::Tokenizer& tokenizer) {
  const std::string cue(test.at("cue").value().as_string().value());
  const Rendered open = render(test, tokenizer, true).value();
  const Rendered closed = render(test, tokenizer, false).value();
  EXPECT_EQ(open.text, closed.text + cue);
  check_text(id, test, open, tokenizer);
}

void check_answer(const JsonValue& expected, const Answer& answer) {
  EXPECT_EQ(answer.reasoning, expected.at("reasoning").value().as_string().value());
  EXPECT_EQ(answer.content, expected.at("content_stripped").value().as_string().value());
  const JsonValue calls = expected.at("tool_calls").value();
  ASSERT_EQ(answer.calls.size(), calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(answer.calls[i].name, calls.item(i).at("name").value().as_string().value());
    EXPECT_EQ(nlohmann::json::parse(answer.calls[i].arguments),
              calls.item(i).at("arguments").value().raw());
  }
  EXPECT_EQ(answer.finish, AnswerFinish::kToolCalls);
}

void check_parse(const JsonValue& test, const model::Tokenizer& tokenizer) {
  AnswerOptions options;
  options.start = AnswerStart::kReasoning;
  options.tools = true;
  const JsonValue completion = test.at("completion").value();
  const JsonValue expected = test.at("expect").value();
  std::vector<int32_t> ids = encode_marked(tokenizer, completion.as_string().value());
  ids.pop_back();  // the end token
  check_answer(expected, parse_answer(tokenizer, ids, options));
  // In pieces of so many bytes, control tokens as marks.
  std::string bytes;
  for (const int32_t id : ids) {
    char mark = '\0';
    for (const char candidate : {kDsmlMark, kThinkMark, kEndThinkMark}) {
      if (tokenizer.added_id(mark_text(candidate)) == id) mark = candidate;
    }
    bytes += mark != '\0' ? std::string(1, mark) : std::string(tokenizer.token_bytes(id));
  }
  const JsonValue sizes = test.at("stream_chunk_sizes").value();
  for (size_t i = 0; i < sizes.size(); ++i) {
    const size_t size = static_cast<size_t>(sizes.item(i).as_integer().value());
    AnswerAutomaton automaton(options);
    for (size_t at = 0; at < bytes.size(); at += size) {
      automaton.push(std::string_view(bytes).substr(at, size));
    }
    automaton.finish(AnswerFinish::kStop);
    check_answer(expected, collect(automaton.take()));
  }
}

void check_all(const model::Tokenizer& tokenizer) {
  const std::string file =
      read_file(GALLEY_SOURCE_DIR "/tests/codec/cases/deepseek_v41_cases.jsonl", 1 << 20).value();
  JsonLimits limits;
  limits.keep_order = true;
  int cases = 0;
  for (size_t at = 0; at < file.size();) {
    const size_t end = file.find('\n', at);
    const JsonDocument line = JsonDocument::parse(file.substr(at, end - at), limits).value();
    at = end + 1;
    const JsonValue test = line.root();
    const std::string id(test.at("id").value().as_string().value());
    const std::string kind(test.at("kind").value().as_string().value());
    SCOPED_TRACE(id);
    ++cases;
    if (kind == "encode") {
      check_encode(id, test, tokenizer);
    } else if (kind == "property") {
      check_property(id, test, tokenizer);
    } else {
      ASSERT_EQ(kind, "parse_completion");
      check_parse(test, tokenizer);
    }
  }
  EXPECT_EQ(cases, 37);
}

TEST(Cases, WithNanosTokens) { check_all(*nano_tokenizer()); }

TEST(Cases, WithDeepSeeksTokens) {
  const auto tokenizer = model::open_deepseek_vocabulary();
  if (tokenizer == nullptr) GTEST_SKIP() << "the npm vocabulary is not installed: ./dev setup";
  check_all(*tokenizer);
}

}  // namespace
}  // namespace galley::serve
