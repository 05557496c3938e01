// Messages and tools from JSON: what is taken, what is refused and how it is named.
#include "serve/message_json.h"

#include <gtest/gtest.h>

namespace galley::serve {
namespace {

JsonDocument document(std::string_view json) {
  JsonLimits limits;
  limits.keep_order = true;
  return JsonDocument::parse(json, limits).value();
}

Result<Conversation> parse(std::string_view json) { return parse_messages(document(json).root()); }

std::string refusal(std::string_view json) {
  const Result<Conversation> parsed = parse(json);
  return parsed ? "" : parsed.error().message;
}

TEST(MessageJson, TakesEveryRole) {
  const Conversation conversation =
      parse(R"([{"role": "developer", "content": "s", "tools": [{"type": "function",
                   "function": {"name": "f", "parameters": {"z": 1, "a": [true, null, 1.0]}}}],
                 "response_format": {"type": "json_object"}},
                {"role": "user", "content": [{"type": "text", "text": "a"},
                                             {"type": "image_url", "image_url": {"url": "u"}}]},
                {"role": "assistant", "content": null, "reasoning_content": "r", "tool_calls":
                   [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                    {"id": "2", "function": {"name": "g", "arguments": {"b": 1, "a": 2}}}]},
                {"role": "tool", "tool_call_id": "1", "content": "t"},
                {"role": "latest_reminder", "content": "now"},
                {"role": "user", "content": "b", "task": "title"},
                {"role": "assistant", "content": "c", "prefix": true}])")
          .value();
  ASSERT_EQ(conversation.messages.size(), 7U);
  EXPECT_EQ(conversation.messages[0].role, Role::kSystem);
  ASSERT_EQ(conversation.tools.size(), 1U);
  EXPECT_EQ(conversation.tools[0].definition,
            R"({"name": "f", "parameters": {"z": 1, "a": [true, null, 1.0]}})");
  EXPECT_EQ(conversation.response_format, R"({"type": "json_object"})");
  EXPECT_EQ(conversation.messages[1].content[1].kind, PartKind::kImage);
  EXPECT_EQ(conversation.messages[1].content[1].data, "u");
  const Message& answer = conversation.messages[2];
  EXPECT_EQ(answer.reasoning, "r");
  ASSERT_EQ(answer.calls.size(), 2U);
  EXPECT_EQ(answer.calls[0].arguments, "{}");
  EXPECT_EQ(answer.calls[1].arguments, R"({"b": 1, "a": 2})");
  EXPECT_EQ(conversation.messages[3].call_id, "1");
  EXPECT_EQ(conversation.messages[5].task, Task::kTitle);
  EXPECT_TRUE(conversation.messages[6].continues);
}

TEST(MessageJson, Refuses) {
  EXPECT_NE(refusal(R"({"role": "user"})"), "");
  EXPECT_NE(refusal(R"([])"), "");
  EXPECT_EQ(refusal(R"([{"role": "user"}])"), "[0].content: missing");
  EXPECT_NE(refusal(R"([{"role": "user", "content": null}])"), "");
  EXPECT_NE(refusal(R"([{"role": "user", "content": 3}])"), "");
  EXPECT_NE(refusal(R"([{"role": "king", "content": "a"}])").find("role"), std::string::npos);
  EXPECT_NE(refusal(R"([{"role": "user", "content": [{"type": "input_audio"}]}])")
                .find("text and image content only"),
            std::string::npos);
  EXPECT_NE(refusal(R"([{"role": "user", "content": "a", "tools": []}])"), "");
  EXPECT_NE(refusal(R"([{"role": "assistant", "content": "a", "task": "title"}])"), "");
  EXPECT_NE(refusal(R"([{"role": "user", "content": "a", "task": "dance"}])"), "");
  EXPECT_NE(refusal(R"([{"role": "assistant", "content": "a", "prefix": true},
                        {"role": "user", "content": "a"}])"),
            "");
  EXPECT_NE(refusal(R"([{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}])"), "");
  EXPECT_NE(refusal(R"([{"role": "system", "content": "", "response_format":
                         {"type": "json_schema"}}])"),
            "");
}

TEST(MessageJson, Effort) {
  const auto effort = [](std::string_view json) { return parse_effort(document(json).root()); };
  EXPECT_EQ(*effort("\"low\""), 50);
  EXPECT_EQ(*effort("\"high\""), 75);
  EXPECT_EQ(*effort("\"max\""), 100);
  EXPECT_EQ(*effort("1"), 1);
  EXPECT_EQ(*effort("100"), 100);
  for (const char* wrong : {"\"medium\"", "-1", "0", "101", "true", "1.5", "[]", "null"}) {
    EXPECT_FALSE(effort(wrong).has_value()) << wrong;
  }
}

TEST(MessageJson, ToolsAreOfOneKindAndNamedOnce) {
  EXPECT_FALSE(parse_tools(document(R"([{"type": "retrieval"}])").root()).has_value());
  EXPECT_FALSE(parse_tools(document(R"([{"function": {}}])").root()).has_value());
  EXPECT_FALSE(
      parse_tools(document(R"([{"function": {"name": "f"}}, {"function": {"name": "f"}}])").root())
          .has_value());
}

}  // namespace
}  // namespace galley::serve
