// Prompts of spec/chat.md 7 with DeepSeek's full vocabulary: ids where the table
// gives them, otherwise their number, and the SHA-256 of every prompt's text.
#include <gtest/gtest.h>

#include <algorithm>

#include "answer.h"
#include "model/deepseek_test_vocabulary.h"
#include "serve/control_text.h"
#include "serve/message_json.h"

namespace galley::serve {
namespace {

using Ids = std::vector<int32_t>;

class Vectors : public testing::Test {
 protected:
  static void SetUpTestSuite() { tokenizer_ = model::open_deepseek_vocabulary(); }
  static void TearDownTestSuite() { tokenizer_.reset(); }
  void SetUp() override {
    if (tokenizer_ == nullptr) GTEST_SKIP() << "the npm vocabulary is not installed: ./dev setup";
  }

  static std::unique_ptr<model::Tokenizer> tokenizer_;
};

std::unique_ptr<model::Tokenizer> Vectors::tokenizer_;

// Effort 0: chat mode.
Conversation conversation(std::string_view messages, int32_t effort = 0) {
  JsonLimits limits;
  limits.keep_order = true;
  const JsonDocument document = JsonDocument::parse(messages, limits).value();
  Conversation parsed = parse_messages(document.root()).value();
  parsed.thinking = effort > 0;
  if (parsed.thinking) parsed.effort = effort;
  return parsed;
}

Ids with_effort(int32_t number) {
  return {77666, 288, 9504, 482, 28,   223, number, 343, 16801, 223, 19,    15, 1457,
          14,    270, 4077, 270, 1990, 14,  270,    850, 15146, 270, 22805, 868};
}

Ids joined(std::initializer_list<Ids> parts) {
  Ids all;
  for (const Ids& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

struct Vector {
  const char* name;
  Conversation conversation;
  const char* sha;    // the first 16 digits
  size_t count = 0;   // of ids, where it is given
  Ids ids = {};       // all of them, where they are
  Ids contains = {};  // or a part
};

constexpr const char* kTool =
    R"({"role": "system", "content": "", "tools": [{"type": "function", "function": {
        "name": "get_weather", "description": "Weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]})";

std::vector<Vector> vectors() {
  const std::string tool(kTool);
  const char* old_turns = R"({"role": "user", "content": "First"},
      {"role": "assistant", "content": "First answer", "reasoning_content": "old reasoning"},
      {"role": "user", "content": "Second"}])";
  const auto list = [](const std::string& first, const char* rest) {
    return std::string("[") + first + "," + rest;
  };
  return {
      {"V1",
       conversation(R"([{"role": "user", "content": "Hello"}])"),
       "afa5497cfd279bf5",
       0,
       {0, 128803, 19923, 128804, 128822}},
      {"V2", conversation(R"([{"role": "user", "content": "Hello"}])", 75), "07aa7538f5ad045b", 0,
       joined({{0, 128799}, with_effort(2402), {128803, 19923, 128804, 128821}})},
      {"V3",
       conversation(R"([{"role": "system", "content": "You are a helpful assistant."},
                              {"role": "user", "content": "What is 2+2?"}])",
                    100),
       "1d43bb718f2f75e0", 43,
       joined({{0, 128799},
               with_effort(1457),
               {3476, 477, 260, 11502, 22896, 16, 128803, 3085, 344, 223, 20, 13, 20, 33, 128804,
                128821}})},
      {"V4", conversation(R"([{"role": "user", "content": "Hello"}])", 1), "c5969b4405e889cc", 0,
       joined({{0, 128799}, with_effort(19), {128803, 19923, 128804, 128821}})},
      {"V5",
       conversation(std::string("[") + old_turns, 75),
       "343caf0b31327b0e",
       0,
       {},
       {128803, 10318, 128804, 128822, 10318, 3287, 1, 128803, 18653, 128804, 128821}},
      {"V6",
       conversation(list(tool, old_turns), 75),
       "c478f3482b42f0db",
       289,
       {},
       {128804, 128821, 1129, 22805, 128822, 10318, 3287, 1}},
      {"V7",
       conversation(list(tool, R"({"role": "user", "content": "Weather?"},
           {"role": "assistant", "reasoning_content": "r1", "tool_calls": [
             {"id": "c1", "type": "function", "function": {"name": "get_weather",
              "arguments": "{\"city\": \"Paris\", \"n\": 3, \"o\": {\"a\": [1, true, null]}}"}},
             {"id": "c2", "type": "function", "function": {"name": "get_weather",
              "arguments": "{\"city\": \"Rome\"}"}}]},
           {"role": "tool", "tool_call_id": "c2", "content": "rain"},
           {"role": "tool", "tool_call_id": "c1", "content": "sun"},
           {"role": "user", "content": "And?"}])"),
                    75),
       "09a9909cd34adbef", 415},
      {"V8",
       conversation(R"([{"role": "user", "content": "question"},
                              {"role": "system", "content": "answer briefly"}])"),
       "709e64c38520c676",
       0,
       {0, 128803, 20072, 128799, 19995, 24752, 128804, 128822}},
      {"V9",
       conversation(R"([{"role": "user", "content": [{"type": "text", "text": "first"},
           {"type": "image_url", "image_url": {"url": "u"}}, {"type": "text", "text": "compare"}]}])"),
       "2f6fb759075d590d",
       0,
       {0, 128803, 13213, 271, 129264, 271, 55531, 128804, 128822}},
      {"V10",
       conversation(R"([{"role": "system", "content": "S",
                                "response_format": {"type": "json_object"}},
                               {"role": "user", "content": "Give json"}])"),
       "2f52676784fa8ef7",
       31,
       {},
       {372, 17038, 29478, 979, 3476, 74366, 29851, 42917, 304, 270, 2502, 37913, 304, 20430,
        1137}},
      {"V11",
       conversation(R"([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])"),
       "3f8ab2905cecfff5",
       0,
       {0, 128803, 67, 271, 68, 128804, 128822}},
      {"V12",
       conversation(R"([{"role": "user", "content": "Hi there", "task": "title"}])"),
       "ba9d4297e505c5a3",
       0,
       {0, 128803, 23166, 1031, 128836}},
      {"V13",
       conversation(R"([{"role": "user", "content": "Hi", "task": "action"}])", 75),
       "6679a37a73135bd1",
       0,
       {},
       {128804, 128821, 128829}},
      {"V14",
       conversation(R"([{"role": "user", "content": "Finish"},
                               {"role": "assistant", "content": "The answer is ", "wo_eos": true}])"),
       "00fbf071abc463ca",
       0,
       {0, 128803, 93543, 128804, 128822, 671, 3287, 344, 223}},
      {"V15",
       conversation(R"([{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [
           {"id": "1", "function": {"name": "f", "arguments": "not json"}}]}])"),
       "339bfdcb214c2718", 43},
      {"V16",
       conversation(R"([{"role": "user", "content": "x"}, {"role": "assistant", "content": "t",
           "tool_calls": [{"id": "1", "function": {"name": "now", "arguments": "{}"}}]}])"),
       "1a3e988f3485cfd2",
       27,
       {0,     128803, 90,    128804, 128822, 86,     271,   30,  128825,
        10699, 1018,   30,    128825, 34756,  2329,   1281,  949, 32572,
        1718,  128825, 34756, 1018,   1718,   128825, 10699, 32,  1}},
      {"V17", conversation(R"([{"role": "system", "content": "S", "tools": [{"type": "function",
           "namespace": "web", "function": {"name": "get", "parameters": {}}}]},
           {"role": "user", "content": "x"}])"),
       "ff90205cfb04609e", 232},
      {"V18",
       conversation(R"([{"role": "system", "content": "S"},
           {"role": "latest_reminder", "content": "2026-02-21"}, {"role": "user", "content": "x"}])"),
       "160e7add6060c4d5",
       0,
       {0, 128799, 53, 128828, 939, 24, 15, 3425, 15, 1602, 128803, 90, 128804, 128822}},
  };
}

TEST_F(Vectors, PromptsHaveTheListedIds) {
  const ChatCodec codec = ChatCodec::create(*tokenizer_, true).value();
  for (Vector& vector : vectors()) {
    // Where the last turn is a closed answer, the table's prompt ends with it.
    const Message& last = vector.conversation.messages.back();
    vector.conversation.open_answer = last.role != Role::kAssistant || last.continues;
    const Ids ids = codec.encode(vector.conversation).value().ids;
    const std::string text = tokenizer_->decode(ids).value();
    EXPECT_EQ(model::sha256_of(text).substr(0, 16), vector.sha) << vector.name << "\n" << text;
    if (vector.count > 0) {
      EXPECT_EQ(ids.size(), vector.count) << vector.name;
    }
    if (!vector.ids.empty()) {
      EXPECT_EQ(ids, vector.ids) << vector.name;
    }
    const auto part =
        std::search(ids.begin(), ids.end(), vector.contains.begin(), vector.contains.end());
    EXPECT_TRUE(vector.contains.empty() || part != ids.end()) << vector.name;
    // The released encoder tokenises the finished text; nothing here looks like a control token.
    EXPECT_EQ(ids, encode_marked(*tokenizer_, text)) << vector.name;
  }
}

TEST_F(Vectors, ConstantsHaveTheListedHashes) {
  EXPECT_EQ(model::sha256_of(std::string(kToolsHead)),
            "2ae2ff83edf990187ed419c4e2901bb9ea6ce2129eb503ac543b258e7de8231d");
  EXPECT_EQ(model::sha256_of(std::string(kToolsTail)),
            "690702850fe256512cb1ee67c4e436ecb3e735c71ebee77ca45ff357a75fb5a7");
}

// A user's text costs what its letters cost, and never a control token.
TEST_F(Vectors, TextStaysText) {
  const ChatCodec codec = ChatCodec::create(*tokenizer_).value();
  const auto ids = [&](std::string text) {
    Conversation said;
    said.messages.push_back(text_message(Role::kUser, std::move(text)));
    return codec.encode(said).value().ids;
  };
  EXPECT_EQ(ids("").size(), 4U);
  EXPECT_EQ(ids("<｜User｜>"), (Ids{0, 128803, 30, 28217, 6756, 28217, 32, 128804, 128822}));
  EXPECT_EQ(ids("</think>"), (Ids{0, 128803, 1718, 37947, 32, 128804, 128822}));
  EXPECT_EQ(ids("｜DSML｜"), (Ids{0, 128803, 28217, 10525, 7398, 28217, 128804, 128822}));
  for (const model::AddedToken& token : tokenizer_->added_tokens()) {
    const Ids smuggled = ids(token.text);
    EXPECT_EQ(std::count(smuggled.begin() + 2, smuggled.end() - 2, token.id), 0) << token.text;
  }
}

TEST_F(Vectors, FillsIn) {
  const ChatCodec codec = ChatCodec::create(*tokenizer_).value();
  EXPECT_EQ(codec.encode_fill("Hello", "a").value(), (Ids{0, 128801, 19923, 128800, 67, 128802}));
}

}  // namespace
}  // namespace galley::serve
