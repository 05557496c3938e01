#include "serve/request_fields.h"

#include <charconv>

#include "base/shown_text.h"
#include "serve/stop_text.h"

namespace galley::serve {
namespace {

Result<void> read_float(const JsonValue& object, std::string_view key, float& target) {
  const std::optional<JsonValue> field = given(object, key);
  if (field) target = static_cast<float>(TRY(field->as_number()));
  return {};
}

Result<void> read_logit_bias(const JsonValue& object, engine::SamplingOptions& sampling) {
  const std::optional<JsonValue> field = given(object, "logit_bias");
  if (!field) return {};
  if (!field->is_object()) return field->error("must be an object of token ids and numbers");
  if (field->size() > engine::kLogitBiasMax) {
    return field->error("has more than " + std::to_string(engine::kLogitBiasMax) + " entries");
  }
  sampling.logit_bias.clear();
  for (const std::string& key : field->keys()) {
    int32_t id = 0;
    const auto [end, code] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (code != std::errc() || end != key.data() + key.size() || id < 0) {
      return field->error("has a key that is no token id: " + shown_text(key));
    }
    const JsonValue bias = TRY(field->at(key));
    sampling.logit_bias.emplace_back(id, static_cast<float>(TRY(bias.as_number())));
  }
  return {};
}

}  // namespace

std::optional<JsonValue> given(const JsonValue& object, std::string_view key) {
  std::optional<JsonValue> field = object.find(key);
  if (field && field->is_null()) return std::nullopt;
  return field;
}

Result<std::optional<int32_t>> read_int(const JsonValue& object, std::string_view key,
                                        int32_t smallest, int32_t largest) {
  const std::optional<JsonValue> field = given(object, key);
  if (!field) return std::optional<int32_t>();
  return std::optional<int32_t>(static_cast<int32_t>(TRY(field->as_integer(smallest, largest))));
}

Result<bool> read_bool(const JsonValue& object, std::string_view key, bool fallback) {
  const std::optional<JsonValue> field = given(object, key);
  return field ? field->as_bool() : Result<bool>(fallback);
}

Result<std::string> read_string(const JsonValue& object, std::string_view key) {
  const std::optional<JsonValue> field = given(object, key);
  return field ? std::string(TRY(field->as_string())) : std::string();
}

Result<std::vector<JsonValue>> read_list(const JsonValue& object, std::string_view key,
                                         size_t most) {
  std::vector<JsonValue> items;
  const std::optional<JsonValue> field = given(object, key);
  if (!field) return items;
  if (!field->is_array()) return field->error("must be a list");
  if (field->size() > most) {
    return field->error("has " + std::to_string(field->size()) + " entries, at most " +
                        std::to_string(most) + " are taken");
  }
  for (size_t i = 0; i < field->size(); ++i) items.push_back(field->item(i));
  return items;
}

Result<void> read_sampling(const JsonValue& object, engine::SamplingOptions& sampling) {
  TRY(read_float(object, "temperature", sampling.temperature));
  TRY(read_float(object, "top_p", sampling.top_p));
  TRY(read_float(object, "min_p", sampling.min_p));
  TRY(read_float(object, "repetition_penalty", sampling.repetition_penalty));
  TRY(read_float(object, "frequency_penalty", sampling.frequency_penalty));
  TRY(read_float(object, "presence_penalty", sampling.presence_penalty));
  sampling.top_k = TRY(read_int(object, "top_k", 0)).value_or(sampling.top_k);
  return read_logit_bias(object, sampling);
}

Result<std::vector<std::string>> read_stop_texts(const JsonValue& object, std::string_view key) {
  std::vector<std::string> texts;
  const std::optional<JsonValue> field = given(object, key);
  if (!field) return texts;
  const size_t count = field->is_array() ? field->size() : 1;
  if (count > kStopTextsMax) {
    return field->error("has more than " + std::to_string(kStopTextsMax) + " sequences");
  }
  for (size_t i = 0; i < count; ++i) {
    const JsonValue item = field->is_array() ? field->item(i) : *field;
    const std::string_view text = TRY(item.as_string());
    if (text.empty() || text.size() > kStopTextBytesMax) {
      return item.error("must have 1 to " + std::to_string(kStopTextBytesMax) + " bytes");
    }
    texts.emplace_back(text);
  }
  return texts;
}

Result<std::vector<int32_t>> read_ids(const JsonValue& list) {
  std::vector<int32_t> ids;
  for (const int64_t id : TRY(list.as_integers(0, kInt32Max))) {
    ids.push_back(static_cast<int32_t>(id));
  }
  if (ids.empty()) return list.error("has no token");
  return ids;
}

}  // namespace galley::serve
