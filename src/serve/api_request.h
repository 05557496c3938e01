// One request to generate, whichever API it came through: what the parsers of
// the APIs make and the server, the codec and the encoders read.
//
// Parsing is pure: JSON text in, a value or one clear error out. An Error's
// message begins with the field's path (api_error() makes it `param`).
// Fields that nobody knows are accepted and named in `ignored_fields`, for a
// warning header; a field whose meaning cannot be honoured is an error. Knows no
// model: limits that depend on one (vocabulary, context) are checked by others.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/request.h"
#include "serve/api_error.h"
#include "serve/conversation.h"

namespace galley::serve {

enum class Api : uint8_t { kChat, kCompletions, kResponses, kMessages };

constexpr ApiDialect dialect_of(Api api) {
  return api == Api::kMessages ? ApiDialect::kAnthropic : ApiDialect::kOpenAi;
}

// A prompt that is no conversation: text that BOS goes before, or ids as they are.
struct RawPrompt {
  std::string text;
  std::vector<int32_t> ids;  // used when not empty
};

constexpr int32_t kChoicesMax = 16;       // n, and completions' prompts times n
constexpr size_t kIgnoredFieldsMax = 16;  // more are counted in the last entry
constexpr size_t kIgnoredFieldBytesMax = 64;

struct ApiRequest {
  Api api = Api::kChat;
  std::string model;

  std::optional<Conversation> conversation;  // all but completions
  std::vector<RawPrompt> prompts;            // completions: one or more
  std::optional<std::string> suffix;         // completions: fill in between prompt and suffix
  bool echo = false;                         // completions: the prompt's text comes first

  engine::SamplingOptions sampling;  // its seed counts only when `seed` is set
  std::optional<uint64_t> seed;      // nothing: the server draws one
  std::optional<int32_t> output_tokens_max;
  int32_t output_tokens_min = 0;  // before these the answer's end is not chosen
  bool ignore_end = false;        // the answer goes on after its end, to output_tokens_max
  std::vector<std::string> stop_texts;
  int32_t n = 1;  // answers to each prompt

  bool stream = false;
  bool include_usage = false;  // OpenAI's last chunk with usage
  bool one_tool_call = false;  // parallel tool calls switched off: the first call ends the answer

  std::string user;  // the caller's own name for its user; fairness, never output
  engine::Priority priority = engine::Priority::kInteractive;

  // Responses: tools whose input is plain text; their calls have one argument, "input".
  std::vector<std::string> text_tools;
  std::vector<std::string> tool_namespaces;  // "namespace::name" is told apart again for these

  std::vector<std::string> ignored_fields;  // printable ASCII, for a header
  // Responses: the request's settings as its answers repeat them, a JSON object's text.
  std::string settings_json;

  int32_t choice_count() const {
    return n * (prompts.empty() ? 1 : static_cast<int32_t>(prompts.size()));
  }
};

// What counts where a request says nothing: the same for every API.
struct RequestDefaults {
  engine::SamplingOptions sampling = {};
  bool thinking = true;
  int32_t effort = kEffortDefault;
};

// The whole body of the API's POST.
Result<ApiRequest> parse_chat_request(std::string_view body, const RequestDefaults& defaults);
Result<ApiRequest> parse_completion_request(std::string_view body, const RequestDefaults& defaults);
Result<ApiRequest> parse_responses_request(std::string_view body, const RequestDefaults& defaults);

// Counting needs no max_tokens.
enum class MessagesUse : uint8_t { kGenerate, kCount };
Result<ApiRequest> parse_messages_request(std::string_view body, const RequestDefaults& defaults,
                                          MessagesUse use = MessagesUse::kGenerate);

// The value of the warning header, empty when there is nothing to warn of.
std::string ignored_fields_warning(const ApiRequest& request);

}  // namespace galley::serve
