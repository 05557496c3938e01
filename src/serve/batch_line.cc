#include "serve/batch_line.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <span>
#include <utility>

#include "base/json.h"
#include "serve/api_json.h"
#include "serve/message_json.h"
#include "serve/request_fields.h"

namespace galley::serve {
namespace {

// "model", "user" and "metadata" name things for the caller's own use.
constexpr std::string_view kLineFields[] = {"custom_id",
                                            "prompt",
                                            "messages",
                                            "ids",
                                            "max_tokens",
                                            "temperature",
                                            "top_k",
                                            "top_p",
                                            "min_p",
                                            "seed",
                                            "repetition_penalty",
                                            "frequency_penalty",
                                            "logit_bias",
                                            "stop",
                                            "presence_penalty",
                                            "stop_tokens",
                                            "model",
                                            "user",
                                            "metadata"};
constexpr auto kBodyFields = std::span(kLineFields).subspan(1);  // all but custom_id
constexpr std::string_view kEnvelopeFields[] = {"custom_id", "method", "url", "body", "metadata"};

JsonLimits line_limits(size_t bytes_max) {
  JsonLimits limits;
  limits.bytes_max = bytes_max;
  limits.unique_keys = true;
  limits.keep_order = true;
  return limits;
}

Result<void> take_sampling(const JsonValue& body, engine::SamplingOptions& sampling) {
  TRY(read_sampling(body, sampling));
  if (const auto field = given(body, "seed")) {
    sampling.seed = static_cast<uint64_t>(TRY(field->as_integer()));
  }
  return {};
}

// Exactly one of prompt, messages and ids.
Result<void> take_input(const JsonValue& body, BatchRequest& request) {
  int count = 0;
  if (const auto field = given(body, "prompt")) {
    request.text = std::string(TRY(field->as_string()));
    ++count;
  }
  if (const auto field = given(body, "messages")) {
    request.conversation = TRY(parse_messages(*field));
    ++count;
  }
  if (const auto field = given(body, "ids")) {
    request.ids = TRY(read_ids(*field));
    ++count;
  }
  if (count == 1) return {};
  return body.error(count == 0 ? "needs \"prompt\", \"messages\" or \"ids\""
                               : "has more than one of \"prompt\", \"messages\" and \"ids\"");
}

Result<void> take_stops(const JsonValue& body, BatchRequest& request) {
  if (const auto field = given(body, "stop_tokens")) {
    for (const int64_t id : TRY(field->as_integers(0, kInt32Max))) {
      request.stop_tokens.push_back(static_cast<int32_t>(id));
    }
  }
  request.stop_texts = TRY(read_stop_texts(body, "stop"));
  return {};
}

// Refuses what would be ignored, but for fields that ask for nothing.
Result<void> check_fields(const JsonValue& object, std::span<const std::string_view> known) {
  for (const std::string& key : object.keys()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const JsonValue field = TRY(object.at(key));
    const bool is_one = field.is_integer() && field.raw() == 1;
    const bool is_false = field.is_bool() && field.raw() == false;
    if (field.is_null() || (key == "n" && is_one) || (key == "stream" && is_false)) continue;
    return field.error("is not supported here");
  }
  return {};
}

Result<std::string> take_custom_id(const JsonValue& root) {
  const JsonValue field = TRY(root.at("custom_id"));
  const std::string_view id = TRY(field.as_string());
  if (id.empty()) return field.error("is empty");
  if (id.size() > kCustomIdBytesMax) {
    return field.error("is longer than " + std::to_string(kCustomIdBytesMax) + " bytes");
  }
  return std::string(id);
}

std::string hex(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

std::string as_line(const Json& json) { return json_text(json) + "\n"; }

}  // namespace

Result<BatchRequest> parse_batch_line(std::string_view line,
                                      const engine::SamplingOptions& defaults) {
  const JsonDocument document = TRY(JsonDocument::parse(line, line_limits(kBatchLineBytesMax)));
  const JsonValue root = document.root();
  if (!root.is_object()) return root.error("must be a JSON object");
  BatchRequest request;
  request.sampling = defaults;
  request.custom_id = TRY(take_custom_id(root));
  const std::optional<JsonValue> envelope = root.find("body");
  const JsonValue body = envelope ? *envelope : root;
  if (!body.is_object()) return body.error("must be an object");
  TRY(check_fields(body, envelope ? std::span<const std::string_view>(kBodyFields)
                                  : std::span<const std::string_view>(kLineFields)));
  if (envelope) TRY(check_fields(root, kEnvelopeFields));
  TRY(take_input(body, request));
  TRY(take_sampling(body, request.sampling));
  request.output_tokens_max = TRY(read_int(body, "max_tokens", 1));
  TRY(take_stops(body, request));
  return request;
}

std::optional<std::string> custom_id_of(std::string_view line) {
  const Result<JsonDocument> document = JsonDocument::parse(line, line_limits(kBatchLineBytesMax));
  if (!document) return std::nullopt;
  const Result<std::string> id = take_custom_id(document->root());
  if (!id) return std::nullopt;
  return *id;
}

Result<BatchRecord> parse_batch_record(std::string_view line) {
  const JsonDocument document = TRY(JsonDocument::parse(line, line_limits(kBatchRecordBytesMax)));
  const JsonValue root = document.root();
  if (!root.is_object()) return root.error("must be a JSON object");
  BatchRecord record;
  const JsonValue id = TRY(root.at("custom_id"));
  if (!id.is_null()) record.custom_id = std::string(TRY(id.as_string()));
  const std::optional<JsonValue> error = root.find("error");
  record.failed = error.has_value();
  if (!record.failed) {
    if (record.custom_id.empty()) return id.error("is missing");
    const JsonValue text = TRY(root.at("text"));
    TRY(text.as_string());
    return record;
  }
  const JsonValue line_number = TRY(root.at("line"));
  record.line_number = TRY(line_number.as_integer(1));
  const JsonValue hash = TRY(root.at("line_hash"));
  const std::string_view digits = TRY(hash.as_string());
  const auto [end, code] =
      std::from_chars(digits.data(), digits.data() + digits.size(), record.line_hash, 16);
  if (code != std::errc() || end != digits.data() + digits.size()) {
    return hash.error("must be 16 hexadecimal digits");
  }
  return record;
}

uint64_t hash_line(std::string_view line) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : line) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

std::string answer_line(const std::string& custom_id, const BatchAnswer& answer) {
  Json json;
  json["custom_id"] = custom_id;
  json["text"] = answer.text;
  json["finish_reason"] = answer.finish_reason;
  json["ids"] = answer.ids;
  json["usage"] = {{"prompt_tokens", answer.prompt_tokens},
                   {"completion_tokens", answer.ids.size()}};
  return as_line(json);
}

std::string error_line(const std::optional<std::string>& custom_id, int64_t line_number,
                       uint64_t line_hash, std::string_view message) {
  Json json;
  json["custom_id"] = nullptr;
  if (custom_id) json["custom_id"] = *custom_id;
  json["line"] = line_number;
  json["line_hash"] = hex(line_hash);
  json["error"] = {{"message", message}};
  return as_line(json);
}

}  // namespace galley::serve
