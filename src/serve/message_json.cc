#include "serve/message_json.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/shown_text.h"
#include "serve/python_json.h"

namespace galley::serve {
namespace {

// The member, unless it is absent or null.
std::optional<JsonValue> given(const JsonValue& object, std::string_view key) {
  std::optional<JsonValue> member = object.find(key);
  if (member && member->is_null()) member.reset();
  return member;
}

Result<Role> parse_role(const JsonValue& value) {
  const std::string_view name = TRY(value.as_string());
  if (name == "system" || name == "developer") return Role::kSystem;
  if (name == "user") return Role::kUser;
  if (name == "assistant") return Role::kAssistant;
  if (name == "tool") return Role::kTool;
  if (name == "latest_reminder") return Role::kReminder;
  return value.error("must be system, user, assistant or tool, not " + shown_text(name));
}

Result<ContentPart> parse_part(const JsonValue& part) {
  const JsonValue type = TRY(part.at("type"));
  const std::string_view name = TRY(type.as_string());
  if (name == "text") {
    const JsonValue text = TRY(part.at("text"));
    return ContentPart{PartKind::kText, std::string(TRY(text.as_string()))};
  }
  if (name == "image_url") {
    const JsonValue image = TRY(part.at("image_url"));
    const JsonValue url = image.is_string() ? image : TRY(image.at("url"));
    return ContentPart{PartKind::kImage, std::string(TRY(url.as_string()))};
  }
  return type.error("text and image content only, not " + shown_text(name));
}

Result<std::vector<ContentPart>> parse_content(const JsonValue& value) {
  std::vector<ContentPart> content;
  if (value.is_string()) {
    content.push_back({PartKind::kText, std::string(TRY(value.as_string()))});
    return content;
  }
  if (!value.is_array()) return value.error("must be a string or a list of parts");
  for (size_t i = 0; i < value.size(); ++i) content.push_back(TRY(parse_part(value.item(i))));
  return content;
}

Result<ToolCall> parse_call(const JsonValue& value) {
  ToolCall call;
  if (const auto id = given(value, "id")) call.id = std::string(TRY(id->as_string()));
  const JsonValue function = TRY(value.at("function"));
  const JsonValue name = TRY(function.at("name"));
  call.name = std::string(TRY(name.as_string()));
  // It stands between quotes in the markup, unescaped.
  if (call.name.empty() || call.name.find_first_of("\"\n") != std::string::npos) {
    return name.error("is empty or has a quote or a line feed");
  }
  if (const auto space = given(function, "namespace")) {
    call.name = std::string(TRY(space->as_string())) + "::" + call.name;
  }
  const JsonValue arguments = TRY(function.at("arguments"));
  call.arguments =
      arguments.is_string() ? std::string(TRY(arguments.as_string())) : python_json(arguments);
  return call;
}

Result<Task> parse_task(const JsonValue& value) {
  const std::string_view name = TRY(value.as_string());
  constexpr std::pair<std::string_view, Task> kTasks[] = {
      {"action", Task::kAction}, {"query", Task::kQuery}, {"authority", Task::kAuthority},
      {"domain", Task::kDomain}, {"title", Task::kTitle}, {"read_url", Task::kReadUrl}};
  for (const auto& [text, task] : kTasks) {
    if (name == text) return task;
  }
  return value.error("must be action, query, authority, domain, title or read_url");
}

Result<bool> is_continued(const JsonValue& item) {
  for (const char* key : {"prefix", "wo_eos"}) {
    if (const auto field = given(item, key); field && TRY(field->as_bool())) return true;
  }
  return false;
}

// What only an assistant's message has.
Result<void> take_answer(const JsonValue& item, Message& message) {
  for (const char* key : {"reasoning_content", "reasoning"}) {
    if (const auto field = given(item, key); field && message.reasoning.empty()) {
      message.reasoning = std::string(TRY(field->as_string()));
    }
  }
  if (const auto calls = given(item, "tool_calls")) {
    if (!calls->is_array()) return calls->error("must be a list of calls");
    for (size_t i = 0; i < calls->size(); ++i) {
      message.calls.push_back(TRY(parse_call(calls->item(i))));
    }
  }
  message.continues = TRY(is_continued(item));
  return {};
}

Result<Message> parse_message(const JsonValue& item) {
  Message message;
  const JsonValue role = TRY(item.at("role"));
  message.role = TRY(parse_role(role));
  if (message.role == Role::kAssistant) TRY(take_answer(item, message));
  if (const auto content = given(item, "content")) {
    message.content = TRY(parse_content(*content));
  } else if (message.role != Role::kAssistant) {
    const JsonValue missing = TRY(item.at("content"));
    return missing.error("must be a string or a list of parts");
  }
  if (message.role == Role::kTool) {
    if (const auto id = given(item, "tool_call_id")) {
      message.call_id = std::string(TRY(id->as_string()));
    }
  }
  if (const auto task = given(item, "task")) {
    if (message.role != Role::kUser) return task->error("belongs to a user message");
    message.task = TRY(parse_task(*task));
  }
  return message;
}

}  // namespace

Result<std::vector<Tool>> parse_tools(const JsonValue& tools) {
  if (!tools.is_array()) return tools.error("must be a list of tools");
  if (tools.size() > kToolsMax) {
    return tools.error("has more than " + std::to_string(kToolsMax) + " tools");
  }
  std::vector<Tool> parsed;
  for (size_t i = 0; i < tools.size(); ++i) {
    const JsonValue item = tools.item(i);
    if (const auto type = given(item, "type")) {
      if (TRY(type->as_string()) != "function") {
        return type->error("only tools of type \"function\" are supported");
      }
    }
    const JsonValue function = TRY(item.at("function"));
    Tool tool = TRY(make_tool(function, given(item, "namespace")));
    if (const auto schema = given(function, "parameters"); schema && !schema->is_object()) {
      return schema->error("must be a JSON schema, which is an object");
    }
    const bool known = std::any_of(parsed.begin(), parsed.end(),
                                   [&](const Tool& other) { return other.name == tool.name; });
    if (known) return function.error("has the name of an earlier tool: " + shown_text(tool.name));
    parsed.push_back(std::move(tool));
  }
  return parsed;
}

Result<std::string> parse_response_format(const JsonValue& format) {
  const JsonValue type = TRY(format.at("type"));
  const std::string_view name = TRY(type.as_string());
  if (name == "text") return std::string();
  if (name == "json_object") return std::string(R"({"type": "json_object"})");
  Error error = type.error("only text and json_object are supported yet, not " + shown_text(name));
  error.code = ErrorCode::kUnsupported;
  return error;
}

Result<int32_t> parse_effort(const JsonValue& value) {
  if (value.is_integer()) {
    return static_cast<int32_t>(TRY(value.as_integer(kEffortMin, kEffortMax)));
  }
  if (value.is_string()) {
    if (const auto effort = effort_named(TRY(value.as_string()))) return *effort;
  }
  return value.error("must be low, high, max or an integer in 1..100");
}

Result<Conversation> parse_messages(const JsonValue& messages) {
  if (!messages.is_array()) return messages.error("must be a list of messages");
  if (messages.size() == 0) return messages.error("has no message");
  if (messages.size() > kMessagesMax) {
    return messages.error("has more than " + std::to_string(kMessagesMax) + " messages");
  }
  Conversation conversation;
  for (size_t i = 0; i < messages.size(); ++i) {
    const JsonValue item = messages.item(i);
    conversation.messages.push_back(TRY(parse_message(item)));
    const bool leads = i == 0 && conversation.messages[0].role == Role::kSystem;
    if (const auto tools = given(item, "tools")) {
      if (!leads) return tools->error("is taken on a first system message only");
      conversation.tools = TRY(parse_tools(*tools));
    }
    if (const auto format = given(item, "response_format")) {
      if (!leads) return format->error("is taken on a first system message only");
      conversation.response_format = TRY(parse_response_format(*format));
    }
    if (const auto prefix = given(item, "prefix"); prefix && i + 1 < messages.size()) {
      if (TRY(prefix->as_bool())) return prefix->error("only the last message can be a prefix");
    }
  }
  return conversation;
}

}  // namespace galley::serve
