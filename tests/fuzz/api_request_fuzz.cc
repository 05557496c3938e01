// Any bytes as the body of each API's request: an error that its client can
// read, or a request within its bounds, whose answers are valid JSON even when the
// model's text is these same bytes, and the same however they are cut.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/utf8.h"
#include "serve/api_answer.h"
#include "serve/api_models.h"
#include "serve/api_request.h"
#include "serve/stop_text.h"

namespace {

using namespace galley;
using namespace galley::serve;

void check_error(const Error& error) {
  const ApiError told = api_error(error);
  CHECK(!told.message.empty() && told.message.find('\n') == std::string::npos);
  for (const ApiDialect dialect : {ApiDialect::kOpenAi, ApiDialect::kAnthropic}) {
    CHECK(http_status(told.fault, dialect) >= 400);
    const std::string body = error_body(told, dialect, "r");
    CHECK(nlohmann::json::accept(body) && is_utf8(body));
  }
}

void check_conversation(const Conversation& conversation) {
  CHECK(!conversation.messages.empty() && conversation.messages.size() <= kMessagesMax + 1);
  CHECK(conversation.tools.size() <= kToolsMax);
  CHECK(conversation.effort >= kEffortMin && conversation.effort <= kEffortMax);
  CHECK(conversation.tool_choice != ToolChoice::kRequired || !conversation.tools.empty());
  CHECK(conversation.tool_choice != ToolChoice::kRequired || !conversation.thinking);
  for (const Tool& tool : conversation.tools) {
    CHECK(!tool.name.empty() && tool.name.find_first_of("\"\n") == std::string::npos);
    CHECK(nlohmann::json::accept(tool.definition));
  }
  CHECK(check_tool_results(conversation.messages).has_value());
}

void check_request(const ApiRequest& request) {
  CHECK(request.n >= 1 && request.choice_count() <= kChoicesMax);
  CHECK(request.conversation.has_value() == (request.api != Api::kCompletions));
  CHECK(request.prompts.empty() == (request.api != Api::kCompletions));
  CHECK(request.stop_texts.size() <= kStopTextsMax);
  CHECK(request.output_tokens_max.value_or(1) >= 1);
  CHECK(engine::validate(request.sampling, INT32_MAX).has_value());
  CHECK(request.ignored_fields.size() <= kIgnoredFieldsMax + 1);
  for (const char c : ignored_fields_warning(request)) CHECK(c >= 0x20 && c <= 0x7e);
  if (request.conversation) check_conversation(*request.conversation);
}

// One of each event, with `text` cut into pieces of `piece` bytes where text may be cut.
std::string answer(const ApiRequest& request, const std::string& text, size_t piece) {
  AnswerHead head;
  head.id = "x";
  const auto encoder = make_answer_encoder(request, head);
  std::string out;
  encoder->start(out);
  const auto deltas = [&](int32_t choice, auto delta) {
    std::string part;
    for (const char c : text) {
      part += c;
      if (part.size() < piece || !is_utf8(part)) continue;
      delta.text = std::exchange(part, "");
      encoder->event(choice, delta, out);
    }
    delta.text = part;
    encoder->event(choice, delta, out);
  };
  for (int32_t i = 0; i < request.choice_count(); ++i) {
    deltas(i, ReasoningDelta{});
    deltas(i, ContentDelta{});
    encoder->event(i, ToolCallBegin{"c", "f"}, out);
    deltas(i, ToolArgumentsDelta{});
    encoder->event(i, ToolCallEnd{}, out);
    encoder->event(i, FinishEvent{}, out);
  }
  encoder->finish({}, out);
  return out;
}

void check_answers(ApiRequest request, std::string_view bytes) {
  const std::string text = to_utf8(bytes.substr(0, 200));
  request.stream = false;
  const std::string whole = answer(request, text, 1);
  CHECK(nlohmann::json::accept(whole));
  CHECK(whole == answer(request, text, 7));
  request.stream = true;
  const std::string stream = answer(request, text, 5);
  CHECK(stream.ends_with("\n\n"));
  for (size_t at = 0; (at = stream.find("data: ", at)) != std::string::npos;) {
    const size_t end = stream.find('\n', at);
    const std::string line = stream.substr(at + 6, end - at - 6);
    CHECK(line == "[DONE]" || nlohmann::json::accept(line));
    at = end;
  }
}

template <class Parsed>
void check_small(const Result<Parsed>& parsed) {
  if (!parsed) check_error(parsed.error());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  check_small(parse_tokenize_request(body));
  check_small(parse_detokenize_request(body));
  const Result<ApiRequest> parsed[] = {
      parse_chat_request(body, {}), parse_completion_request(body, {}),
      parse_responses_request(body, {}), parse_messages_request(body, {}),
      parse_messages_request(body, {}, MessagesUse::kCount)};
  for (const Result<ApiRequest>& request : parsed) {
    if (!request) {
      check_error(request.error());
      continue;
    }
    check_request(*request);
    check_answers(*request, body);
  }
  return 0;
}
