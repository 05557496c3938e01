#include "serve/api_conversation_fields.h"

#include <algorithm>
#include <utility>

#include "base/shown_text.h"
#include "serve/api_request_fields.h"
#include "serve/message_json.h"
#include "serve/python_json.h"
#include "serve/request_fields.h"

namespace galley::serve {
namespace {

// The function object that the model is shown.
std::string definition_of(const ToolParts& parts) {
  std::string text = R"({"name": )";
  text += python_json(*parts.name);
  if (parts.description)
    text.append(R"(, "description": )").append(python_json(*parts.description));
  if (parts.parameters) {
    text.append(R"(, "parameters": )").append(python_json(*parts.parameters));
  } else if (!parts.fixed_parameters.empty()) {
    text.append(R"(, "parameters": )").append(parts.fixed_parameters);
  }
  if (parts.space_name) {
    text.append(R"(, "namespace": {"name": )").append(python_json(*parts.space_name));
    if (parts.space_description) {
      text.append(R"(, "description": )").append(python_json(*parts.space_description));
    }
    text += "}";
  }
  text += "}";
  return text;
}

}  // namespace

Result<void> read_thinking(const JsonValue& thinking, ThinkingWish& wish) {
  const JsonValue type = TRY(thinking.at("type"));
  const std::string_view name = TRY(type.as_string());
  if (name == "enabled" || name == "disabled") {
    wish.on = name == "enabled";
  } else if (name != "adaptive") {
    return type.error("must be enabled, disabled or adaptive");
  }
  return {};
}

Result<void> read_effort(const JsonValue& effort, ThinkingWish& wish) {
  const std::string_view name = effort.is_string() ? TRY(effort.as_string()) : "";
  if (name == "none") {
    if (!wish.on) wish.on = false;
    return {};
  }
  // The levels that only this API has.
  if (name == "minimal") {
    wish.effort = effort_named("low");
  } else if (name == "medium") {
    wish.effort = effort_named("high");
  } else {
    wish.effort = TRY(parse_effort(effort));
  }
  if (!wish.on) wish.on = true;
  return {};
}

Result<std::vector<ContentPart>> read_content(const JsonValue& content,
                                              Result<ContentPart> (*read_part)(const JsonValue&)) {
  std::vector<ContentPart> parts;
  if (content.is_string()) {
    parts.push_back({PartKind::kText, std::string(TRY(content.as_string()))});
    return parts;
  }
  if (!content.is_array()) return content.error("must be a string or a list");
  for (size_t i = 0; i < content.size(); ++i) parts.push_back(TRY(read_part(content.item(i))));
  return parts;
}

Result<ContentPart> read_text_part(const JsonValue& part, std::string_view key) {
  const JsonValue text = TRY(part.at(key));
  return ContentPart{PartKind::kText, std::string(TRY(text.as_string()))};
}

Result<std::string> read_call_name(const JsonValue& call) {
  const JsonValue name = TRY(call.at("name"));
  const std::string_view text = TRY(name.as_string());
  // It stands between quotes in the markup, unescaped.
  if (text.empty() || text.find_first_of("\"\n") != std::string_view::npos) {
    return name.error("is empty or has a quote or a line feed");
  }
  return std::string(text);
}

Result<void> add_tool(const JsonValue& item, const ToolParts& parts, Conversation& conversation) {
  if (!parts.name) return TRY(item.at("name")).error("is missing");
  TRY(parts.name->as_string());
  if (parts.description) TRY(parts.description->as_string());
  if (parts.parameters && !parts.parameters->is_object()) {
    return parts.parameters->error("must be a JSON schema, which is an object");
  }
  JsonLimits limits;
  limits.bytes_max = kBodyBytesMax * 8;  // escapes may be longer than what they were read from
  limits.depth_max = kBodyDepthMax + 1;
  limits.keep_order = true;
  const JsonDocument document = TRY(JsonDocument::parse(definition_of(parts), limits));
  Result<Tool> made = make_tool(document.root());
  if (!made) return Error{made.error().code, item.path() + "." + made.error().message};
  const bool known = std::any_of(conversation.tools.begin(), conversation.tools.end(),
                                 [&](const Tool& other) { return other.name == made->name; });
  if (known) return parts.name->error("is the name of an earlier tool: " + shown_text(made->name));
  if (conversation.tools.size() == kToolsMax) {
    return item.error("is one too many: at most " + std::to_string(kToolsMax) + " tools");
  }
  conversation.tools.push_back(*std::move(made));
  return {};
}

Result<void> choose_tool(const JsonValue& field, std::string_view name,
                         Conversation& conversation) {
  const bool known = std::any_of(conversation.tools.begin(), conversation.tools.end(),
                                 [&](const Tool& tool) { return tool.name == name; });
  if (!known) {
    return field.error("names a tool that is not among the tools: " + shown_text(name));
  }
  conversation.tool_choice = ToolChoice::kRequired;
  conversation.chosen_tool = std::string(name);
  return {};
}

Result<void> choose_tools(const JsonValue& field, std::string_view choice,
                          Conversation& conversation) {
  if (choice == "auto") {
    conversation.tool_choice = ToolChoice::kAuto;
  } else if (choice == "none") {
    conversation.tool_choice = ToolChoice::kNone;
  } else if (choice == "required" || choice == "any") {
    if (conversation.tools.empty()) return field.error("needs tools, and there are none");
    conversation.tool_choice = ToolChoice::kRequired;
  } else {
    return unsupported(field, std::string(choice.substr(0, 40)) + " is not supported");
  }
  return {};
}

Result<void> settle_conversation(const ThinkingWish& wish, const RequestDefaults& defaults,
                                 Conversation& conversation, std::string_view place) {
  conversation.effort = wish.effort.value_or(defaults.effort);
  conversation.thinking = wish.on.value_or(defaults.thinking);
  // A call that must come is written without thinking first; a default gives way to that.
  if (conversation.tool_choice == ToolChoice::kRequired) {
    if (wish.on.value_or(false)) {
      return Error{ErrorCode::kUnsupported,
                   "tool_choice: a tool can only be required without thinking; switch thinking off "
                   "or set tool_choice to auto"};
    }
    conversation.thinking = false;
  }
  if (!conversation.response_format.empty() && !mentions_json(conversation.messages)) {
    return Error{ErrorCode::kInvalid,
                 "response_format: json_object needs a message that asks for JSON by that word, or "
                 "the model may go on without end"};
  }
  const Result<void> checked = check_tool_results(conversation.messages);
  if (checked || place.empty()) return checked;
  const std::string& message = checked.error().message;
  return Error{checked.error().code, std::string(place) + message.substr(message.find(": "))};
}

}  // namespace galley::serve
