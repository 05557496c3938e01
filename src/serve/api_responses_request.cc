// POST /v1/responses: items as a conversation. Nothing is stored, so that a
// response can only be continued by sending its items again.
#include <utility>

#include "serve/api_conversation_fields.h"
#include "serve/api_json.h"
#include "serve/api_request.h"
#include "serve/api_request_fields.h"
#include "serve/message_json.h"
#include "serve/python_json.h"
#include "serve/request_fields.h"

namespace galley::serve {
namespace {

constexpr const char* kTextToolSchema =
    R"({"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]})";

Result<Role> read_role(const JsonValue& item) {
  const JsonValue role = TRY(item.at("role"));
  const std::string_view name = TRY(role.as_string());
  if (name == "system" || name == "developer") return Role::kSystem;
  if (name == "user") return Role::kUser;
  if (name == "assistant") return Role::kAssistant;
  return role.error("must be user, assistant, system or developer");
}

Result<ContentPart> read_part(const JsonValue& part) {
  const JsonValue type = TRY(part.at("type"));
  const std::string_view name = TRY(type.as_string());
  if (name == "input_image") {
    const JsonValue url = TRY(part.at("image_url"));
    return ContentPart{PartKind::kImage, std::string(TRY(url.as_string()))};
  }
  const bool is_text = name == "input_text" || name == "output_text" || name == "text" ||
                       name == "reasoning_text" || name == "summary_text";
  if (!is_text && name != "refusal") {
    return unsupported(type,
                       "content of type " + std::string(name.substr(0, 40)) + " is not supported");
  }
  return read_text_part(part, is_text ? "text" : "refusal");
}

// Reasoning, texts and calls that follow each other are one turn of the assistant.
Message& assistant_turn(std::vector<Message>& messages) {
  if (messages.empty() || messages.back().role != Role::kAssistant) {
    messages.emplace_back().role = Role::kAssistant;
  }
  return messages.back();
}

Result<void> read_message(const JsonValue& item, std::vector<Message>& messages) {
  const Role role = TRY(read_role(item));
  const JsonValue content = TRY(item.at("content"));
  std::vector<ContentPart> parts = TRY(read_content(content, read_part));
  Message& message = role == Role::kAssistant ? assistant_turn(messages) : messages.emplace_back();
  message.role = role;
  message.content.insert(message.content.end(), parts.begin(), parts.end());
  return {};
}

// Its text when it has any; a summary otherwise.
Result<void> read_reasoning(const JsonValue& item, ApiRequest& request) {
  std::string text;
  for (const char* key : {"content", "summary"}) {
    const auto field = given(item, key);
    if (!field || !text.empty()) continue;
    for (const ContentPart& part : TRY(read_content(*field, read_part))) text += part.data;
  }
  if (const auto hidden = given(item, "encrypted_content"); hidden && text.empty()) {
    note_ignored(*hidden, request);
  }
  assistant_turn(request.conversation->messages).reasoning += text;
  return {};
}

Result<void> read_call(const JsonValue& item, bool is_text_tool, std::vector<Message>& messages) {
  ToolCall call;
  const JsonValue id = TRY(item.at("call_id"));
  call.id = std::string(TRY(id.as_string()));
  call.name = TRY(read_call_name(item));
  const std::string space = TRY(read_name(item, "namespace"));
  if (!space.empty()) call.name = space + "::" + call.name;
  const JsonValue input = TRY(item.at(is_text_tool ? "input" : "arguments"));
  const std::string_view text = TRY(input.as_string());
  call.arguments = text;
  if (is_text_tool) {
    call.arguments = R"({"input": )";
    call.arguments.append(python_json_string(text)).append("}");
  }
  assistant_turn(messages).calls.push_back(std::move(call));
  return {};
}

Result<void> read_call_output(const JsonValue& item, std::vector<Message>& messages) {
  Message message;
  message.role = Role::kTool;
  const JsonValue id = TRY(item.at("call_id"));
  message.call_id = std::string(TRY(id.as_string()));
  const JsonValue output = TRY(item.at("output"));
  message.content = TRY(read_content(output, read_part));
  messages.push_back(std::move(message));
  return {};
}

Result<void> read_item(const JsonValue& item, ApiRequest& request) {
  std::vector<Message>& messages = request.conversation->messages;
  if (!item.is_object()) return item.error("must be an object");
  const std::string type = TRY(read_string(item, "type"));
  if (type.empty() || type == "message") return read_message(item, messages);
  if (type == "reasoning") return read_reasoning(item, request);
  if (type == "function_call") return read_call(item, false, messages);
  if (type == "custom_tool_call") return read_call(item, true, messages);
  if (type == "function_call_output" || type == "custom_tool_call_output") {
    return read_call_output(item, messages);
  }
  return unsupported(item, "items of type " + type.substr(0, 40) + " are not supported");
}

Result<void> read_input(const JsonValue& body, ApiRequest& request) {
  std::vector<Message>& messages = request.conversation->messages;
  const std::string instructions = TRY(read_string(body, "instructions"));
  if (!instructions.empty()) messages.push_back(text_message(Role::kSystem, instructions));
  const JsonValue input = TRY(body.at("input"));
  if (input.is_string()) {
    messages.push_back(text_message(Role::kUser, std::string(TRY(input.as_string()))));
    return {};
  }
  const std::vector<JsonValue> items = TRY(read_list(body, "input", kMessagesMax));
  if (items.empty()) return input.error("has no item");
  for (const JsonValue& item : items) TRY(read_item(item, request));
  return {};
}

// One function or free-text tool, perhaps of a namespace.
Result<void> read_tool(const JsonValue& item, ToolParts parts, ApiRequest& request) {
  const bool is_text_tool = TRY(read_string(item, "type")) == "custom";
  parts.name = given(item, "name");
  parts.description = given(item, "description");
  if (is_text_tool) {
    parts.fixed_parameters = kTextToolSchema;
    if (const auto format = given(item, "format")) note_ignored(*format, request);
  } else {
    parts.parameters = given(item, "parameters");
    if (TRY(read_bool(item, "strict", false))) note_ignored(*given(item, "strict"), request);
  }
  TRY(add_tool(item, parts, *request.conversation));
  if (is_text_tool) request.text_tools.push_back(request.conversation->tools.back().name);
  return {};
}

Result<void> read_namespace(const JsonValue& item, ApiRequest& request) {
  const JsonValue name = TRY(item.at("name"));
  request.tool_namespaces.emplace_back(TRY(name.as_string()));
  const ToolParts parts{.space_name = name, .space_description = given(item, "description")};
  for (const JsonValue& tool : TRY(read_list(item, "tools", kToolsMax))) {
    TRY(read_tool(tool, parts, request));
  }
  return {};
}

// Tools that the provider would run are offers that nobody here can take up: the model is not
// told of them, and the caller is.
Result<void> read_tools(const JsonValue& body, ApiRequest& request) {
  for (const JsonValue& item : TRY(read_list(body, "tools", kToolsMax))) {
    const JsonValue type_field = TRY(item.at("type"));
    const std::string_view type = TRY(type_field.as_string());
    if (type == "namespace") {
      TRY(read_namespace(item, request));
    } else if (type == "function" || type == "custom") {
      TRY(read_tool(item, {}, request));
    } else {
      note_ignored(item, request);
    }
  }
  return {};
}

Result<void> read_tool_choice(const JsonValue& body, Conversation& conversation) {
  const auto choice = given(body, "tool_choice");
  if (!choice) return {};
  if (choice->is_string()) return choose_tools(*choice, TRY(choice->as_string()), conversation);
  const JsonValue type = TRY(choice->at("type"));
  const std::string_view kind = TRY(type.as_string());
  if (kind != "function" && kind != "custom") {
    return unsupported(type, "must be function or custom: other choices are not supported");
  }
  const JsonValue name = TRY(choice->at("name"));
  return choose_tool(name, TRY(name.as_string()), conversation);
}

Result<void> read_text_form(const JsonValue& body, ApiRequest& request) {
  const auto text = given(body, "text");
  if (!text) return {};
  if (const auto format = given(*text, "format")) {
    request.conversation->response_format = TRY(parse_response_format(*format));
  }
  note_unknown(*text, {"format"}, request);
  return {};
}

Result<ThinkingWish> read_wish(const JsonValue& body, ApiRequest& request) {
  ThinkingWish wish;
  if (const auto thinking = given(body, "thinking")) TRY(read_thinking(*thinking, wish));
  const auto reasoning = given(body, "reasoning");
  if (!reasoning) return wish;
  if (const auto effort = given(*reasoning, "effort")) TRY(read_effort(*effort, wish));
  note_unknown(*reasoning, {"effort"}, request);
  return wish;
}

Result<void> read_logprobs(const JsonValue& body, ApiRequest& request) {
  for (const JsonValue& item : TRY(read_list(body, "include", kIgnoredFieldsMax))) {
    if (TRY(item.as_string()) == "message.output_text.logprobs") {
      request.sampling.logprob = true;
    } else {
      note_ignored(item, request);
    }
  }
  const auto tops = TRY(read_int(body, "top_logprobs", 0, engine::kTopLogprobsMax));
  request.sampling.top_logprobs = request.sampling.logprob ? tops.value_or(0) : 0;
  if (tops.value_or(0) > 0 && !request.sampling.logprob) {
    note_ignored(*given(body, "top_logprobs"), request);
  }
  return {};
}

Result<void> refuse_state(const JsonValue& body) {
  TRY(refuse(body, {"previous_response_id", "conversation", "prompt"},
             "is not supported: nothing is stored here; send the earlier items in input"));
  TRY(refuse(body, {"background"}, "is not supported; leave it out, and stream to see progress"));
  const auto truncation = given(body, "truncation");
  if (truncation && TRY(truncation->as_string()) != "disabled") {
    return unsupported(*truncation, "must be disabled: items are never dropped silently");
  }
  return {};
}

// The settings that a response repeats, as they were understood.
std::string settings_text(const JsonValue& body, const ApiRequest& request) {
  const auto raw = [&](const char* key, Json fallback) {
    const auto field = given(body, key);
    return field ? Json(field->raw()) : std::move(fallback);
  };
  Json json;
  json["background"] = false;
  json["instructions"] = raw("instructions", nullptr);
  json["max_output_tokens"] = raw("max_output_tokens", nullptr);
  json["metadata"] = raw("metadata", Json::object());
  json["parallel_tool_calls"] = !request.one_tool_call;
  json["previous_response_id"] = nullptr;
  json["reasoning"] = {{"effort", nullptr}, {"summary", nullptr}};
  if (request.conversation->thinking) {
    const auto reasoning = given(body, "reasoning");
    const auto effort = reasoning ? given(*reasoning, "effort") : std::nullopt;
    json["reasoning"]["effort"] = effort ? Json(effort->raw()) : Json("high");
  }
  json["service_tier"] = "default";
  json["store"] = false;
  json["temperature"] = raw("temperature", request.sampling.temperature);
  json["text"] = {{"format", {{"type", "text"}}}};
  if (!request.conversation->response_format.empty()) {
    json["text"]["format"]["type"] = "json_object";
  }
  json["tool_choice"] = raw("tool_choice", "auto");
  json["tools"] = raw("tools", Json::array());
  json["top_logprobs"] = request.sampling.top_logprobs;
  json["top_p"] = raw("top_p", request.sampling.top_p);
  json["truncation"] = "disabled";
  json["user"] = raw("user", nullptr);
  return json_text(json);
}

}  // namespace

Result<ApiRequest> parse_responses_request(std::string_view text, const RequestDefaults& defaults) {
  const JsonDocument document = TRY(parse_body(text));
  const JsonValue body = document.root();
  ApiRequest request;
  request.api = Api::kResponses;
  request.sampling = defaults.sampling;
  request.conversation.emplace();
  TRY(read_common(body, request));
  TRY(refuse_state(body));
  TRY(read_input(body, request));
  TRY(read_tools(body, request));
  TRY(read_tool_choice(body, *request.conversation));
  request.one_tool_call = !TRY(read_bool(body, "parallel_tool_calls", true));
  request.output_tokens_max = TRY(read_int(body, "max_output_tokens", 1));
  TRY(read_text_form(body, request));
  TRY(read_logprobs(body, request));
  const ThinkingWish wish = TRY(read_wish(body, request));
  TRY(settle_conversation(wish, defaults, *request.conversation, "input"));
  note_unknown(
      body,
      {"input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "max_output_tokens",
       "text", "include", "top_logprobs", "thinking", "reasoning", "previous_response_id",
       "conversation", "prompt", "background", "truncation", "stream_options"},
      request, true);
  request.settings_json = settings_text(body, request);
  return request;
}

}  // namespace galley::serve
