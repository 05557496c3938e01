// POST /v1/messages and its count_tokens: Anthropic's shape as a conversation.
#include <utility>

#include "serve/api_conversation_fields.h"
#include "serve/api_request.h"
#include "serve/api_request_fields.h"
#include "serve/python_json.h"
#include "serve/request_fields.h"

namespace galley::serve {
namespace {

Result<std::string_view> type_of(const JsonValue& item) {
  const JsonValue type = TRY(item.at("type"));
  return TRY(type.as_string());
}

// {"type": "image", "source": {"type": "base64", "media_type", "data"} or {"type": "url", "url"}}.
Result<ContentPart> read_image(const JsonValue& block) {
  const JsonValue source = TRY(block.at("source"));
  const std::string_view type = TRY(type_of(source));
  if (type == "url") {
    const JsonValue url = TRY(source.at("url"));
    return ContentPart{PartKind::kImage, std::string(TRY(url.as_string()))};
  }
  if (type != "base64") return unsupported(TRY(source.at("type")), "must be base64 or url");
  const JsonValue media_type = TRY(source.at("media_type"));
  const JsonValue data = TRY(source.at("data"));
  std::string url = "data:";
  url.append(TRY(media_type.as_string())).append(";base64,").append(TRY(data.as_string()));
  return ContentPart{PartKind::kImage, std::move(url)};
}

Error unsupported_block(const JsonValue& block, std::string_view type) {
  return unsupported(block,
                     "content of type " + std::string(type.substr(0, 40)) + " is not supported");
}

// What a system prompt consists of.
Result<ContentPart> read_text_block(const JsonValue& block) {
  const std::string_view type = TRY(type_of(block));
  return type == "text" ? read_text_part(block)
                        : Result<ContentPart>(unsupported_block(block, type));
}

// What a user or a tool says.
Result<ContentPart> read_block(const JsonValue& block) {
  const std::string_view type = TRY(type_of(block));
  return type == "image" ? read_image(block) : read_text_block(block);
}

Result<Message> read_tool_result(const JsonValue& block) {
  Message message;
  message.role = Role::kTool;
  const JsonValue id = TRY(block.at("tool_use_id"));
  message.call_id = std::string(TRY(id.as_string()));
  if (const auto content = given(block, "content")) {
    message.content = TRY(read_content(*content, read_block));
  }
  if (TRY(read_bool(block, "is_error", false))) {
    message.content.insert(message.content.begin(), {PartKind::kText, "Error:"});
  }
  return message;
}

// A user's turn: results of tools each become a message of their own.
Result<void> read_user(const JsonValue& content, std::vector<Message>& messages) {
  if (!content.is_array()) {
    messages.emplace_back().content = TRY(read_content(content, read_block));
    return {};
  }
  if (content.size() == 0) return content.error("has no block");
  bool in_turn = false;  // the last message is this turn's text
  for (size_t i = 0; i < content.size(); ++i) {
    const JsonValue block = content.item(i);
    if (TRY(type_of(block)) == "tool_result") {
      messages.push_back(TRY(read_tool_result(block)));
      in_turn = false;
      continue;
    }
    ContentPart part = TRY(read_block(block));
    if (!in_turn) messages.emplace_back();
    in_turn = true;
    messages.back().content.push_back(std::move(part));
  }
  return {};
}

Result<ToolCall> read_tool_use(const JsonValue& block) {
  ToolCall call;
  const JsonValue id = TRY(block.at("id"));
  call.id = std::string(TRY(id.as_string()));
  call.name = TRY(read_call_name(block));
  const JsonValue input = TRY(block.at("input"));
  if (!input.is_object()) return input.error("must be an object");
  call.arguments = python_json(input);
  return call;
}

Result<Message> read_assistant(const JsonValue& content, ApiRequest& request) {
  Message message;
  message.role = Role::kAssistant;
  if (!content.is_array()) {
    message.content = TRY(read_content(content, read_text_block));
    return message;
  }
  for (size_t i = 0; i < content.size(); ++i) {
    const JsonValue block = content.item(i);
    const std::string_view type = TRY(type_of(block));
    if (type == "thinking") {
      const JsonValue thinking = TRY(block.at("thinking"));
      message.reasoning += TRY(thinking.as_string());
    } else if (type == "redacted_thinking") {
      note_ignored(block, request);
    } else if (type == "tool_use") {
      message.calls.push_back(TRY(read_tool_use(block)));
    } else {
      message.content.push_back(TRY(read_text_block(block)));
    }
  }
  return message;
}

Result<void> read_messages(const JsonValue& body, ApiRequest& request) {
  Conversation& conversation = *request.conversation;
  if (const auto system = given(body, "system")) {
    Message message;
    message.role = Role::kSystem;
    message.content = TRY(read_content(*system, read_text_block));
    if (!message.content.empty()) conversation.messages.push_back(std::move(message));
  }
  const std::vector<JsonValue> items = TRY(read_list(body, "messages", kMessagesMax));
  if (items.empty()) return TRY(body.at("messages")).error("has no message");
  for (const JsonValue& item : items) {
    const JsonValue role = TRY(item.at("role"));
    const std::string_view name = TRY(role.as_string());
    const JsonValue content = TRY(item.at("content"));
    if (name == "user") {
      TRY(read_user(content, conversation.messages));
    } else if (name == "assistant") {
      conversation.messages.push_back(TRY(read_assistant(content, request)));
    } else {
      return role.error("must be user or assistant; a system prompt is the field system");
    }
  }
  return {};
}

// Tools that the provider would run, or whose schema it knows, are offers that nobody here can
// take up: the model is not told of them, and the caller is.
Result<void> read_tools(const JsonValue& body, ApiRequest& request) {
  for (const JsonValue& item : TRY(read_list(body, "tools", kToolsMax))) {
    const std::string type = TRY(read_string(item, "type"));
    if (!type.empty() && type != "custom") {
      note_ignored(item, request);
      continue;
    }
    TRY(add_tool(item,
                 {.name = given(item, "name"),
                  .description = given(item, "description"),
                  .parameters = given(item, "input_schema")},
                 *request.conversation));
  }
  return {};
}

Result<void> read_tool_choice(const JsonValue& body, ApiRequest& request) {
  const auto choice = given(body, "tool_choice");
  if (!choice) return {};
  request.one_tool_call = TRY(read_bool(*choice, "disable_parallel_tool_use", false));
  const JsonValue type = TRY(choice->at("type"));
  const std::string_view name = TRY(type.as_string());
  if (name != "tool") return choose_tools(type, name, *request.conversation);
  const JsonValue tool = TRY(choice->at("name"));
  return choose_tool(tool, TRY(tool.as_string()), *request.conversation);
}

Result<ThinkingWish> read_wish(const JsonValue& body, ApiRequest& request) {
  ThinkingWish wish;
  if (const auto thinking = given(body, "thinking")) {
    TRY(read_thinking(*thinking, wish));
    if (const auto budget = given(*thinking, "budget_tokens")) note_ignored(*budget, request);
  }
  if (const auto output = given(body, "output_config")) {
    if (const auto effort = given(*output, "effort")) TRY(read_effort(*effort, wish));
    TRY(refuse(*output, {"format"}, "structured output is not supported yet"));
  }
  TRY(refuse(body, {"output_format"}, "structured output is not supported yet"));
  return wish;
}

}  // namespace

Result<ApiRequest> parse_messages_request(std::string_view text, const RequestDefaults& defaults,
                                          MessagesUse use) {
  const JsonDocument document = TRY(parse_body(text));
  const JsonValue body = document.root();
  ApiRequest request;
  request.api = Api::kMessages;
  request.sampling = defaults.sampling;
  request.conversation.emplace();
  TRY(read_common(body, request));
  if (const auto metadata = given(body, "metadata")) {
    const std::string user = TRY(read_name(*metadata, "user_id"));
    if (!user.empty()) request.user = user;
  }
  request.output_tokens_max = TRY(read_int(body, "max_tokens", 1));
  if (!request.output_tokens_max && use == MessagesUse::kGenerate) {
    return Error{ErrorCode::kInvalid, "max_tokens: missing"};
  }
  request.stop_texts = TRY(read_stop_texts(body, "stop_sequences"));
  TRY(read_messages(body, request));
  TRY(read_tools(body, request));
  TRY(read_tool_choice(body, request));
  TRY(refuse(body, {"mcp_servers", "container"}, "is not supported"));
  const ThinkingWish wish = TRY(read_wish(body, request));
  Conversation& conversation = *request.conversation;
  // An answer that the caller began.
  if (conversation.messages.back().role == Role::kAssistant &&
      conversation.messages.back().calls.empty()) {
    TRY(continue_last(conversation));
  }
  TRY(settle_conversation(wish, defaults, conversation, "messages"));
  note_unknown(body,
               {"max_tokens", "stop_sequences", "messages", "system", "tools", "tool_choice",
                "thinking", "output_config", "output_format", "mcp_servers", "container"},
               request, true);
  return request;
}

}  // namespace galley::serve
