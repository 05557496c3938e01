#include "serve/conversation.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "base/shown_text.h"
#include "serve/python_json.h"

namespace galley::serve {
namespace {

constexpr size_t kToolNameBytesMax = 256;
constexpr std::string_view kNamespaceSeparator = "::";

struct Namespace {
  std::string name;
  std::string description;
};

Result<Namespace> parse_namespace(const JsonValue& value) {
  if (value.is_string()) return Namespace{std::string(TRY(value.as_string())), ""};
  if (!value.is_object()) return value.error("must be a name or an object");
  const JsonValue name = TRY(value.at("name"));
  Namespace parsed{std::string(TRY(name.as_string())), ""};
  if (const auto description = value.find("description"); description && !description->is_null()) {
    parsed.description = std::string(TRY(description->as_string()));
  }
  return parsed;
}

Result<std::string> qualified_name(const JsonValue& name, const Namespace& space) {
  std::string qualified = std::string(TRY(name.as_string()));
  if (qualified.empty()) return name.error("is empty");
  if (!space.name.empty()) qualified = space.name + std::string(kNamespaceSeparator) + qualified;
  if (qualified.size() > kToolNameBytesMax) {
    return name.error("is longer than " + std::to_string(kToolNameBytesMax) + " bytes");
  }
  // The name stands between quotes in the markup, unescaped.
  if (qualified.find_first_of("\"\n") != std::string::npos) {
    return name.error("has a quote or a line feed");
  }
  const size_t first = qualified.find(kNamespaceSeparator);
  if (first != std::string::npos && first != qualified.rfind(kNamespaceSeparator)) {
    return name.error("has more than one \"::\"");
  }
  return qualified;
}

Error call_error(const std::string& id, size_t message, std::string_view reason) {
  return {ErrorCode::kInvalid, "messages[" + std::to_string(message) + "]: tool call " +
                                   shown_text(id) + " " + std::string(reason)};
}

}  // namespace

Message text_message(Role role, std::string text) {
  Message message;
  message.role = role;
  message.content.push_back({PartKind::kText, std::move(text)});
  return message;
}

Result<Tool> make_tool(const JsonValue& function, const std::optional<JsonValue>& tool_namespace) {
  const JsonValue name = TRY(function.at("name"));
  Namespace space;
  std::optional<JsonValue> given = function.find("namespace");
  if (!given || given->is_null()) given = tool_namespace;
  if (given && !given->is_null()) space = TRY(parse_namespace(*given));
  Tool tool;
  tool.name = TRY(qualified_name(name, space));

  std::string& text = tool.definition;
  bool described = space.description.empty();
  const auto member = [&](std::string_view key, const std::string& json) {
    text += text.empty() ? "{" : ", ";
    text += python_json_string(key);
    text += ": ";
    text += json;
  };
  for (const std::string& key : function.keys()) {
    if (key == "namespace") continue;
    const JsonValue value = *function.find(key);
    if (key == "name") {
      member(key, python_json_string(tool.name));
    } else if (key == "description" && !described) {
      const std::string_view own = value.is_null() ? "" : TRY(value.as_string());
      std::string both = space.description;
      if (!own.empty()) both.append("\n").append(own);
      member(key, python_json_string(both));
      described = true;
    } else {
      member(key, python_json(value));
    }
  }
  if (!described) member("description", python_json_string(space.description));
  text += "}";
  return tool;
}

std::optional<int32_t> effort_named(std::string_view name) {
  if (name == "low") return 50;
  if (name == "high" || name == "xhigh") return 75;
  if (name == "max") return 100;
  return std::nullopt;
}

Result<void> continue_last(Conversation& conversation) {
  if (conversation.messages.empty() || conversation.messages.back().role != Role::kAssistant ||
      !conversation.messages.back().calls.empty()) {
    return Error{ErrorCode::kInvalid,
                 "messages: only a final assistant message without tool calls can be continued"};
  }
  conversation.messages.back().continues = true;
  return {};
}

Result<void> check_tool_results(const std::vector<Message>& messages) {
  std::set<std::string> open;  // ids that wait for their result
  for (size_t i = 0; i < messages.size(); ++i) {
    const Message& message = messages[i];
    if (message.role == Role::kTool) {
      if (open.erase(message.call_id) == 0) {
        return call_error(message.call_id, i,
                          "is none of the previous assistant message, or already has a result");
      }
      continue;
    }
    if (!open.empty()) return call_error(*open.begin(), i, "has no result before this message");
    for (const ToolCall& call : message.calls) {
      if (!open.insert(call.id).second) return call_error(call.id, i, "appears twice");
    }
  }
  if (!open.empty()) return call_error(*open.begin(), messages.size() - 1, "has no result");
  return {};
}

bool mentions_json(const std::vector<Message>& messages) {
  constexpr std::string_view kWord = "json";
  const auto same = [](char a, char b) { return std::tolower(static_cast<unsigned char>(a)) == b; };
  for (const Message& message : messages) {
    for (const ContentPart& part : message.content) {
      if (part.kind != PartKind::kText) continue;
      if (std::search(part.data.begin(), part.data.end(), kWord.begin(), kWord.end(), same) !=
          part.data.end()) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace galley::serve
