// POST /v1/chat/completions, with DeepSeek's additions.
#include <utility>

#include "serve/api_conversation_fields.h"
#include "serve/api_request.h"
#include "serve/api_request_fields.h"
#include "serve/message_json.h"
#include "serve/request_fields.h"

namespace galley::serve {
namespace {

Result<void> read_tool_choice(const JsonValue& body, Conversation& conversation) {
  const auto choice = given(body, "tool_choice");
  if (!choice) return {};
  if (choice->is_string()) return choose_tools(*choice, TRY(choice->as_string()), conversation);
  const JsonValue type = TRY(choice->at("type"));
  if (TRY(type.as_string()) != "function") {
    return unsupported(type, "must be function: other choices are not supported");
  }
  const JsonValue function = TRY(choice->at("function"));
  const JsonValue name = TRY(function.at("name"));
  return choose_tool(name, TRY(name.as_string()), conversation);
}

Result<void> read_tools(const JsonValue& body, ApiRequest& request) {
  Conversation& conversation = *request.conversation;
  if (const auto tools = given(body, "tools")) {
    if (tools->size() > 0 && !conversation.tools.empty()) {
      return tools->error("is given here and in the first message; leave out one of them");
    }
    std::vector<Tool> parsed = TRY(parse_tools(*tools));
    if (!parsed.empty()) conversation.tools = std::move(parsed);
    for (size_t i = 0; i < tools->size(); ++i) {
      const auto strict = given(tools->item(i).find("function").value(), "strict");
      if (strict && TRY(strict->as_bool())) note_ignored(*strict, request);
    }
  }
  TRY(read_tool_choice(body, conversation));
  request.one_tool_call = !TRY(read_bool(body, "parallel_tool_calls", true));
  return refuse(body, {"functions", "function_call"},
                "is the old form and not supported; use tools and tool_choice");
}

// thinking.type counts before reasoning_effort, and that before the template's own switches.
Result<ThinkingWish> read_wish(const JsonValue& body) {
  ThinkingWish wish;
  if (const auto thinking = given(body, "thinking")) TRY(read_thinking(*thinking, wish));
  if (const auto effort = given(body, "reasoning_effort")) TRY(read_effort(*effort, wish));
  const auto template_fields = given(body, "chat_template_kwargs");
  for (const char* key : {"thinking", "enable_thinking"}) {
    if (!template_fields || wish.on) break;
    const auto field = given(*template_fields, key);
    if (field) wish.on = TRY(field->as_bool());
  }
  return wish;
}

Result<void> read_logprobs(const JsonValue& body, engine::SamplingOptions& sampling) {
  sampling.logprob = TRY(read_bool(body, "logprobs", false));
  const auto tops = TRY(read_int(body, "top_logprobs", 0, engine::kTopLogprobsMax));
  if (tops.value_or(0) > 0 && !sampling.logprob) {
    return given(body, "top_logprobs")->error("needs logprobs to be true");
  }
  sampling.top_logprobs = tops.value_or(0);
  return {};
}

Result<void> read_modalities(const JsonValue& body) {
  for (const JsonValue& item : TRY(read_list(body, "modalities", kIgnoredFieldsMax))) {
    if (TRY(item.as_string()) != "text") return unsupported(item, "only text is supported");
  }
  return {};
}

}  // namespace

Result<ApiRequest> parse_chat_request(std::string_view text, const RequestDefaults& defaults) {
  const JsonDocument document = TRY(parse_body(text));
  const JsonValue body = document.root();
  ApiRequest request;
  request.api = Api::kChat;
  request.sampling = defaults.sampling;
  TRY(read_common(body, request));
  const JsonValue messages = TRY(body.at("messages"));
  request.conversation = TRY(parse_messages(messages));
  TRY(read_tools(body, request));
  if (const auto format = given(body, "response_format")) {
    request.conversation->response_format = TRY(parse_response_format(*format));
  }
  const auto limit = TRY(read_int(body, "max_tokens", 1));
  const auto newer_limit = TRY(read_int(body, "max_completion_tokens", 1));
  request.output_tokens_max = newer_limit ? newer_limit : limit;
  TRY(read_length_wishes(body, request));
  request.stop_texts = TRY(read_stop_texts(body, "stop"));
  request.n = TRY(read_int(body, "n", 1, kChoicesMax)).value_or(1);
  TRY(read_logprobs(body, request.sampling));
  TRY(read_stream_options(body, request));
  TRY(read_modalities(body));
  TRY(refuse(body, {"audio", "web_search_options"}, "is not supported"));
  TRY(refuse(body, {"prompt"}, "belongs to /v1/completions; here the field is messages"));
  const ThinkingWish wish = TRY(read_wish(body));
  TRY(settle_conversation(wish, defaults, *request.conversation));
  note_unknown(body,
               {"messages",
                "tools",
                "tool_choice",
                "parallel_tool_calls",
                "response_format",
                "max_tokens",
                "max_completion_tokens",
                "min_tokens",
                "ignore_eos",
                "stop",
                "n",
                "logprobs",
                "top_logprobs",
                "stream_options",
                "modalities",
                "thinking",
                "reasoning_effort",
                "chat_template_kwargs",
                "functions",
                "function_call",
                "audio",
                "web_search_options",
                "prompt"},
               request, true);
  return request;
}

}  // namespace galley::serve
