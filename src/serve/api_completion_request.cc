// POST /v1/completions: raw prompts, and filling in the middle with `suffix`.
#include "serve/api_request.h"
#include "serve/api_request_fields.h"
#include "serve/request_fields.h"

namespace galley::serve {
namespace {

Result<RawPrompt> read_prompt(const JsonValue& value) {
  RawPrompt prompt;
  if (value.is_string()) {
    prompt.text = std::string(TRY(value.as_string()));
  } else if (value.is_array()) {
    prompt.ids = TRY(read_ids(value));
  } else {
    return value.error("must be a string, a list of token ids, or a list of those");
  }
  return prompt;
}

// "prompt" is one text, one list of ids, or a list of either.
Result<std::vector<RawPrompt>> read_prompts(const JsonValue& body) {
  std::vector<RawPrompt> prompts;
  const JsonValue field = TRY(body.at("prompt"));
  const bool is_list = field.is_array() && field.size() > 0 && !field.item(0).is_integer();
  if (!is_list) {
    prompts.push_back(TRY(read_prompt(field)));
    return prompts;
  }
  if (field.size() > kChoicesMax) {
    return field.error("has " + std::to_string(field.size()) + " prompts, at most " +
                       std::to_string(kChoicesMax) + " are taken in one request");
  }
  for (size_t i = 0; i < field.size(); ++i) prompts.push_back(TRY(read_prompt(field.item(i))));
  return prompts;
}

Result<void> read_logprobs(const JsonValue& body, engine::SamplingOptions& sampling) {
  const auto count = TRY(read_int(body, "logprobs", 0, engine::kTopLogprobsMax));
  sampling.logprob = count.has_value();
  sampling.top_logprobs = count.value_or(0);
  return {};
}

Result<void> read_choices(const JsonValue& body, ApiRequest& request) {
  request.n = TRY(read_int(body, "n", 1, kChoicesMax)).value_or(1);
  if (request.choice_count() > kChoicesMax) {
    return body.at("n")->error("asks with " + std::to_string(request.prompts.size()) +
                               " prompts for more than " + std::to_string(kChoicesMax) +
                               " answers");
  }
  const auto best_of = TRY(read_int(body, "best_of", 1)).value_or(request.n);
  if (best_of != request.n) {
    return unsupported(*given(body, "best_of"), "is not supported; leave it out or set it to n");
  }
  return {};
}

Result<void> read_middle(const JsonValue& body, ApiRequest& request) {
  request.echo = TRY(read_bool(body, "echo", false));
  if (request.echo && request.sampling.logprob) {
    return unsupported(*given(body, "echo"),
                       "is not supported together with logprobs: log-probabilities of the prompt "
                       "are not computed");
  }
  const auto suffix = given(body, "suffix");
  if (!suffix) return {};
  request.suffix = std::string(TRY(suffix->as_string()));
  for (size_t i = 0; i < request.prompts.size(); ++i) {
    if (request.prompts[i].ids.empty()) continue;
    return unsupported(*suffix, "needs prompts that are text, not token ids");
  }
  if (request.echo) return unsupported(*suffix, "is not supported together with echo");
  return {};
}

}  // namespace

Result<ApiRequest> parse_completion_request(std::string_view text,
                                            const RequestDefaults& defaults) {
  const JsonDocument document = TRY(parse_body(text));
  const JsonValue body = document.root();
  ApiRequest request;
  request.api = Api::kCompletions;
  request.sampling = defaults.sampling;
  TRY(read_common(body, request));
  request.prompts = TRY(read_prompts(body));
  request.output_tokens_max = TRY(read_int(body, "max_tokens", 1));
  TRY(read_length_wishes(body, request));
  request.stop_texts = TRY(read_stop_texts(body, "stop"));
  TRY(read_logprobs(body, request.sampling));
  TRY(read_choices(body, request));
  TRY(read_middle(body, request));
  TRY(read_stream_options(body, request));
  TRY(refuse(body, {"messages"}, "belongs to /v1/chat/completions; here the field is prompt"));
  TRY(refuse(body, {"response_format", "tools"}, "is not supported for raw prompts"));
  note_unknown(
      body,
      {"prompt", "max_tokens", "min_tokens", "ignore_eos", "stop", "logprobs", "n", "best_of",
       "echo", "suffix", "stream_options", "messages", "response_format", "tools"},
      request, true);
  return request;
}

}  // namespace galley::serve
