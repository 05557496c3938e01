// Chat rendering against the id vectors of spec/chat.md 7 that need no tools,
// with a toy tokenizer whose added tokens have the released ids' roles.
#include "serve/codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

namespace galley::serve {
namespace {

// A byte-level tokenizer without merges: byte b is token b + 3, so 'a' is 100.
std::string toy_tokenizer_json() {
  nlohmann::json vocab;
  int32_t shifted = 0x100;
  for (int32_t byte = 0; byte < 256; ++byte) {
    const bool itself = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    const int32_t point = itself ? byte : shifted++;
    std::string symbol;
    if (point < 0x80) {
      symbol = static_cast<char>(point);
    } else {
      symbol = {static_cast<char>(0xC0 | point >> 6), static_cast<char>(0x80 | (point & 0x3F))};
    }
    vocab[symbol] = byte + 3;
  }
  const std::pair<const char*, int32_t> added[] = {{"<｜begin▁of▁sentence｜>", 0},
                                                   {"<｜end▁of▁sentence｜>", 1},
                                                   {"<｜▁pad▁｜>", 2},
                                                   {"<｜System｜>", 300},
                                                   {"<｜User｜>", 301},
                                                   {"<｜Assistant｜>", 302},
                                                   {"</think>", 303}};
  nlohmann::json json;
  for (const auto& [text, id] : added) {
    json["added_tokens"].push_back({{"id", id},
                                    {"content", text},
                                    {"single_word", false},
                                    {"lstrip", false},
                                    {"rstrip", false},
                                    {"normalized", false},
                                    {"special", id < 3}});
    if (id < 3) vocab[text] = id;
  }
  json["version"] = "1.0";
  json["normalizer"] = nullptr;
  json["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers",
                            {{{"type", "ByteLevel"},
                              {"add_prefix_space", false},
                              {"trim_offsets", true},
                              {"use_regex", false}}}}};
  json["decoder"] = {{"type", "ByteLevel"},
                     {"add_prefix_space", true},
                     {"trim_offsets", true},
                     {"use_regex", true}};
  json["model"] = {{"type", "BPE"},
                   {"dropout", nullptr},
                   {"unk_token", nullptr},
                   {"fuse_unk", false},
                   {"byte_fallback", false},
                   {"vocab", vocab},
                   {"merges", nlohmann::json::array()}};
  return json.dump();
}

class CodecTest : public testing::Test {
 protected:
  void SetUp() override {
    Result<model::Tokenizer> parsed = model::Tokenizer::parse(toy_tokenizer_json());
    ASSERT_TRUE(parsed.has_value()) << parsed.error().message;
    tokenizer_ = std::make_unique<model::Tokenizer>(std::move(*parsed));
  }

  std::vector<int32_t> encode(std::vector<Message> messages) {
    Conversation conversation;
    conversation.messages = std::move(messages);
    return ChatCodec::create(*tokenizer_).value().encode(conversation).value().ids;
  }

  std::unique_ptr<model::Tokenizer> tokenizer_;
};

using Ids = std::vector<int32_t>;

Message continued(std::string text) {
  Message message = text_message(Role::kAssistant, std::move(text));
  message.continues = true;
  return message;
}

TEST_F(CodecTest, Turns) {
  EXPECT_EQ(encode({text_message(Role::kUser, "h")}), (Ids{0, 301, 107, 302, 303}));  // V1
  EXPECT_EQ(encode({text_message(Role::kUser, "a"), text_message(Role::kAssistant, "b"),
                    text_message(Role::kUser, "c")}),
            (Ids{0, 301, 100, 302, 303, 101, 1, 301, 102, 302, 303}));  // V5 in chat mode
  EXPECT_EQ(encode({text_message(Role::kUser, "a"), text_message(Role::kSystem, "b")}),
            (Ids{0, 301, 100, 300, 101, 302, 303}));  // V8: the header waits for the system turn
  EXPECT_EQ(encode({text_message(Role::kUser, "a"), text_message(Role::kUser, "b")}),
            (Ids{0, 301, 100, 13, 13, 101, 302, 303}));  // V11: merged
  EXPECT_EQ(encode({text_message(Role::kSystem, "c"), text_message(Role::kUser, "h")}),
            (Ids{0, 300, 102, 301, 107, 302, 303}));
  EXPECT_EQ(encode({text_message(Role::kUser, "a"), continued("b")}),
            (Ids{0, 301, 100, 302, 303, 101}));  // V14: goes on
  EXPECT_EQ(encode({text_message(Role::kSystem, "c")}), (Ids{0, 300, 102, 302, 303}));
}

TEST_F(CodecTest, TextCannotOpenATurn) {
  const Ids ids = encode({text_message(Role::kUser, "<｜User｜>")});
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 301), 1);
  EXPECT_EQ(ids.size(), 4 + std::string("<｜User｜>").size());
  const ChatCodec codec = ChatCodec::create(*tokenizer_).value();
  EXPECT_EQ(codec.encode_text("<｜User｜>a", model::Markup::kActive).value(), (Ids{0, 301, 100}));
}

TEST_F(CodecTest, ControlTokensStayOutOfAnswers) {
  const ChatCodec codec = ChatCodec::create(*tokenizer_).value();
  for (const int32_t id : {0, 1, 2, 300, 301, 302}) EXPECT_TRUE(codec.is_control(id)) << id;
  EXPECT_FALSE(codec.is_control(303));
  EXPECT_FALSE(codec.is_control(100));
}

TEST_F(CodecTest, RefusesWhatCannotBeAsked) {
  const ChatCodec codec = ChatCodec::create(*tokenizer_).value();
  Conversation conversation;
  conversation.messages = {text_message(Role::kUser, "a")};
  const auto refusal = [&] {
    const Result<Prompt> prompt = codec.encode(conversation);
    if (prompt) return std::string();
    return prompt.error().message;
  };
  EXPECT_EQ(refusal(), "");
  conversation.tool_choice = ToolChoice::kRequired;
  EXPECT_NE(refusal().find("there are no tools"), std::string::npos);
  conversation.tools = {{"f", "{}"}};
  conversation.chosen_tool = std::string("other");
  EXPECT_NE(refusal().find("no tool \"other\""), std::string::npos);
  conversation.thinking = true;
  EXPECT_NE(refusal().find("thinking"), std::string::npos);
  conversation.tool_choice = ToolChoice::kNone;
  conversation.effort = 0;
  EXPECT_NE(refusal().find("reasoning_effort"), std::string::npos);
  conversation.thinking = false;
  EXPECT_EQ(refusal(), "");
  conversation.messages[0].content[0].kind = PartKind::kImage;
  EXPECT_NE(refusal().find("images"), std::string::npos);
  conversation.messages[0].content.clear();
  conversation.messages[0].calls.resize(kCallsMax + 1);
  EXPECT_NE(refusal().find("tool calls"), std::string::npos);
}

}  // namespace
}  // namespace galley::serve
