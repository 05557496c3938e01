#include "serve/api_request_fields.h"

#include <algorithm>
#include <array>
#include <utility>

#include "serve/request_fields.h"

namespace galley::serve {
namespace {

// Sampling first, then tags of the caller that ask for nothing.
constexpr std::array<std::string_view, 19> kCommonFields = {
    "model",       "temperature",       "top_p",    "min_p",
    "top_k",       "presence_penalty",  "stream",   "repetition_penalty",
    "logit_bias",  "frequency_penalty", "seed",     "user",
    "user_id",     "safety_identifier", "priority", "metadata",
    "client_name", "service_tier",      "store"};

bool asks_for_nothing(const JsonValue& field) {
  const bool is_false = field.is_bool() && !field.as_bool().value();
  return field.is_null() || is_false ||
         ((field.is_array() || field.is_object()) && field.size() == 0);
}

// Into a header: printable ASCII, without the comma that separates.
std::string header_safe(std::string_view name) {
  std::string safe(name.substr(0, kIgnoredFieldBytesMax));
  for (char& c : safe) {
    if (c < 0x21 || c > 0x7e || c == ',' || c == '"' || c == '\\') c = '?';
  }
  return safe;
}

void note(std::string_view path, ApiRequest& request) {
  std::vector<std::string>& names = request.ignored_fields;
  if (names.size() > kIgnoredFieldsMax) return;
  names.push_back(names.size() == kIgnoredFieldsMax ? "..." : header_safe(path));
}

Result<engine::Priority> read_priority(const JsonValue& field) {
  const std::string_view name = TRY(field.as_string());
  if (name == "interactive") return engine::Priority::kInteractive;
  if (name == "batch") return engine::Priority::kBatch;
  if (name == "best_effort") return engine::Priority::kBestEffort;
  return field.error("must be interactive, batch or best_effort");
}

// engine::validate says "temperature is 3000, ..."; here the name is a path.
Result<void> check_sampling(const engine::SamplingOptions& sampling) {
  Result<void> checked = engine::validate(sampling, kInt32Max);
  if (checked) return checked;
  Error error = std::move(checked).error();
  const size_t space = error.message.find(' ');
  if (space == std::string::npos) return error;
  error.message = error.message.substr(0, space) + ":" + error.message.substr(space);
  return error;
}

}  // namespace

Result<JsonDocument> parse_body(std::string_view body) {
  if (body.find_first_not_of(" \t\r\n") == std::string_view::npos) {
    return Error{ErrorCode::kInvalid, "the body is empty; it must be a JSON object"};
  }
  JsonLimits limits;
  limits.bytes_max = kBodyBytesMax;
  limits.depth_max = kBodyDepthMax;
  limits.tree_bytes_max = kBodyTreeBytesMax;
  limits.unique_keys = true;
  limits.keep_order = true;  // the model is shown tools and arguments as they were written
  JsonDocument document = TRY(JsonDocument::parse(body, limits));
  if (!document.root().is_object()) return document.root().error("must be a JSON object");
  return document;
}

Result<std::string> read_name(const JsonValue& object, std::string_view key) {
  std::string name = TRY(read_string(object, key));
  if (name.size() <= kNameBytesMax) return name;
  return given(object, key)->error("is longer than " + std::to_string(kNameBytesMax) + " bytes");
}

Result<void> read_common(const JsonValue& body, ApiRequest& request) {
  // What other servers take beyond the APIs: without it the answer would be another one.
  TRY(refuse(
      body,
      {"guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs",
       "allowed_token_ids", "bad_words", "stop_token_ids", "prompt_logprobs", "use_beam_search"},
      "is not supported"));
  // The empty schema is not the absence of one: any JSON, but nothing else.
  if (const auto schema = given(body, "guided_json")) {
    return unsupported(*schema, "is not supported");
  }
  request.model = TRY(read_name(body, "model"));
  TRY(read_sampling(body, request.sampling));
  TRY(check_sampling(request.sampling));
  if (const auto seed = given(body, "seed")) {
    request.seed = static_cast<uint64_t>(TRY(seed->as_integer()));
    request.sampling.seed = *request.seed;
  }
  request.stream = TRY(read_bool(body, "stream", false));
  for (const std::string_view key : {"user", "user_id", "safety_identifier"}) {
    if (request.user.empty()) request.user = TRY(read_name(body, key));
  }
  if (const auto priority = given(body, "priority")) {
    request.priority = TRY(read_priority(*priority));
  }
  // OpenAI's "flex" trades speed for price, which is what batch priority does here.
  const std::string tier = TRY(read_name(body, "service_tier"));
  if (tier == "flex" && !given(body, "priority")) request.priority = engine::Priority::kBatch;
  // Nothing is ever stored for later retrieval.
  if (const auto store = given(body, "store"); store && TRY(store->as_bool())) {
    note_ignored(*store, request);
  }
  return {};
}

Result<void> read_length_wishes(const JsonValue& body, ApiRequest& request) {
  request.ignore_end = TRY(read_bool(body, "ignore_eos", false));
  request.output_tokens_min = TRY(read_int(body, "min_tokens", 0)).value_or(0);
  if (request.output_tokens_max && request.output_tokens_min > *request.output_tokens_max) {
    return given(body, "min_tokens")
        ->error("is " + std::to_string(request.output_tokens_min) + ", more than max_tokens, " +
                std::to_string(*request.output_tokens_max));
  }
  return {};
}

Result<void> read_stream_options(const JsonValue& body, ApiRequest& request) {
  const auto options = given(body, "stream_options");
  if (!options) return {};
  if (!options->is_object()) return options->error("must be an object");
  request.include_usage = TRY(read_bool(*options, "include_usage", false)) && request.stream;
  if (!request.stream) note_ignored(*options, request);
  note_unknown(*options, {"include_usage", "include_obfuscation"}, request);
  return {};
}

void note_unknown(const JsonValue& object, std::initializer_list<std::string_view> known,
                  ApiRequest& request, bool also_common) {
  for (const std::string& key : object.keys()) {
    const bool is_common = also_common && std::find(kCommonFields.begin(), kCommonFields.end(),
                                                    key) != kCommonFields.end();
    if (is_common || std::find(known.begin(), known.end(), key) != known.end()) continue;
    const std::optional<JsonValue> field = given(object, key);
    if (field) note_ignored(*field, request);
  }
}

void note_ignored(const JsonValue& field, ApiRequest& request) { note(field.path(), request); }

Result<void> refuse(const JsonValue& object, std::initializer_list<std::string_view> keys,
                    std::string_view reason) {
  for (const std::string_view key : keys) {
    const std::optional<JsonValue> field = object.find(key);
    if (field && !asks_for_nothing(*field)) return unsupported(*field, reason);
  }
  return {};
}

Error unsupported(const JsonValue& field, std::string_view reason) {
  Error error = field.error(reason);
  error.code = ErrorCode::kUnsupported;
  return error;
}

std::string ignored_fields_warning(const ApiRequest& request) {
  std::string names;
  for (const std::string& name : request.ignored_fields) {
    names.append(names.empty() ? "" : ", ").append(name);
  }
  if (names.empty()) return names;
  // The form of RFC 7234, 5.5: a code, an agent, a quoted text.
  std::string warning = R"(199 galley "ignored fields: )";
  return warning.append(names).append("\"");
}

}  // namespace galley::serve
