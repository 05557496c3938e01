// Namespaces of tools, and what a conversation must keep: one result a call, a
// last turn that can go on, a word about JSON.
#include "serve/conversation.h"

#include <gtest/gtest.h>

namespace galley::serve {
namespace {

Result<Tool> tool(std::string_view function, std::string_view tool_namespace = "null") {
  JsonLimits limits;
  limits.keep_order = true;
  const JsonDocument document = JsonDocument::parse(function, limits).value();
  const JsonDocument space = JsonDocument::parse(tool_namespace, limits).value();
  return make_tool(document.root(), space.root());
}

TEST(Tools, TakeTheirNamespaceIntoTheName) {
  EXPECT_EQ(tool(R"({"name": "get", "parameters": {}})", "\"web\"")->definition,
            R"({"name": "web::get", "parameters": {}})");
  EXPECT_EQ(tool(R"({"name": "get", "namespace": "a", "parameters": {}})", "\"web\"")->name,
            "a::get");
  EXPECT_EQ(
      tool(R"({"name": "get", "description": "d"})", R"({"name": "web", "description": "the web"})")
          ->definition,
      R"({"name": "web::get", "description": "the web\nd"})");
  EXPECT_EQ(tool(R"({"name": "get"})", R"({"name": "web", "description": "the web"})")->definition,
            R"({"name": "web::get", "description": "the web"})");
  EXPECT_TRUE(tool(R"({"name": "web::get"})").has_value());
  EXPECT_FALSE(tool(R"({"name": "web::get"})", "\"a\"").has_value());
  EXPECT_FALSE(tool(R"({"name": "a\"b"})").has_value());
  EXPECT_FALSE(tool(R"({"name": ""})").has_value());
  EXPECT_FALSE(tool(R"({"description": "d"})").has_value());
}

std::vector<Message> called(std::vector<std::string> calls, std::vector<std::string> results) {
  std::vector<Message> messages = {text_message(Role::kUser, "q"), {}};
  messages[1].role = Role::kAssistant;
  for (const std::string& id : calls) messages[1].calls.push_back({id, "f", "{}"});
  for (const std::string& id : results) {
    messages.push_back(text_message(Role::kTool, "r"));
    messages.back().call_id = id;
  }
  return messages;
}

TEST(ToolResults, OneForEachCall) {
  EXPECT_TRUE(check_tool_results(called({"a", "b"}, {"b", "a"})).has_value());
  EXPECT_TRUE(check_tool_results(called({}, {})).has_value());
  EXPECT_FALSE(check_tool_results(called({"a", "b"}, {"a"})).has_value());
  EXPECT_FALSE(check_tool_results(called({"a"}, {"a", "a"})).has_value());
  EXPECT_FALSE(check_tool_results(called({"a"}, {"a", "b"})).has_value());
  EXPECT_FALSE(check_tool_results(called({"a", "a"}, {"a", "a"})).has_value());
  std::vector<Message> late = called({"a"}, {});
  late.push_back(text_message(Role::kUser, "x"));
  late.push_back(called({}, {"a"}).back());
  EXPECT_FALSE(check_tool_results(late).has_value());
}

TEST(Conversation, OnlyAnAnswerCanGoOn) {
  Conversation conversation;
  EXPECT_NE(continue_last(conversation).error().message.find("final assistant"), std::string::npos);
  conversation.messages = {text_message(Role::kUser, "q")};
  EXPECT_FALSE(continue_last(conversation).has_value());
  conversation.messages.push_back(text_message(Role::kAssistant, "a"));
  ASSERT_TRUE(continue_last(conversation).has_value());
  EXPECT_TRUE(conversation.messages[1].continues);
}

TEST(Conversation, MentionsJson) {
  EXPECT_TRUE(mentions_json({text_message(Role::kUser, "as Json, please")}));
  EXPECT_FALSE(mentions_json({text_message(Role::kUser, "as text")}));
}

}  // namespace
}  // namespace galley::serve
