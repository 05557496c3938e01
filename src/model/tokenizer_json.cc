// Reads tokenizer.json. simdjson, since a full vocabulary is megabytes and this
// is on the way to the first token.
#include <simdjson.h>

#include <algorithm>
#include <array>

#include "model/byte_level.h"
#include "model/tokenizer_data.h"

namespace galley::model {
namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::key_value_pair;
using simdjson::dom::object;

constexpr size_t kFileBytesMax = size_t{64} << 20;
constexpr size_t kDepthMax = 16;
constexpr int64_t kIdMax = (1 << 22) - 1;
constexpr int64_t kIdsFree =
    1 << 16;  // ids may have this many gaps, so that memory follows the file
constexpr size_t kSplitsMax = 16;
constexpr size_t kTokenBytesMax = 1 << 16;

Error invalid(std::string_view field, std::string_view reason) {
  return {ErrorCode::kInvalid, std::string(field) + ": " + std::string(reason)};
}
Error unsupported(std::string_view field, std::string_view reason) {
  return {ErrorCode::kUnsupported, std::string(field) + ": " + std::string(reason)};
}

Error json_error(simdjson::error_code code) {
  if (code == simdjson::UTF8_ERROR) return {ErrorCode::kInvalid, "not UTF-8"};
  return {ErrorCode::kInvalid, std::string("not valid JSON: ") + simdjson::error_message(code)};
}

bool absent_or_null(object from, const char* key) {
  element value;
  return from[key].get(value) != simdjson::SUCCESS || value.is_null();
}

Result<object> object_at(object from, const char* key, const std::string& field) {
  object value;
  if (from[key].get(value) != simdjson::SUCCESS) return invalid(field, "must be an object");
  return value;
}

Result<std::string_view> string_at(object from, const char* key, const std::string& field) {
  std::string_view value;
  if (from[key].get(value) != simdjson::SUCCESS) return invalid(field, "must be a string");
  return value;
}

// A switch that must be off: absent, null, false or an empty string.
Result<void> require_off(object from, const char* key, const std::string& field) {
  element value;
  if (from[key].get(value) != simdjson::SUCCESS || value.is_null()) return {};
  bool flag = true;
  if (value.get(flag) == simdjson::SUCCESS && !flag) return {};
  std::string_view text = "x";
  if (value.get(text) == simdjson::SUCCESS && text.empty()) return {};
  return unsupported(field, "is not supported");
}

Result<bool> flag_at(object from, const char* key, const std::string& field, bool when_absent) {
  element value;
  if (from[key].get(value) != simdjson::SUCCESS) return when_absent;
  bool flag = false;
  if (value.get(flag) != simdjson::SUCCESS) return invalid(field, "must be true or false");
  return flag;
}

Result<void> require_type(object from, std::string_view type, const std::string& field) {
  const std::string_view found = TRY(string_at(from, "type", field + ".type"));
  if (found != type) {
    return unsupported(field + ".type", "is \"" + std::string(found.substr(0, 80)) + "\", only \"" +
                                            std::string(type) + "\" is supported");
  }
  return {};
}

Result<void> check_normalizer(object root) {
  if (absent_or_null(root, "normalizer")) return {};
  const object normalizer = TRY(object_at(root, "normalizer", "normalizer"));
  TRY(require_type(normalizer, "Sequence", "normalizer"));
  array list;
  if (normalizer["normalizers"].get(list) != simdjson::SUCCESS || list.size() != 0) {
    return unsupported("normalizer.normalizers", "only an empty list is supported");
  }
  return {};
}

// It would only shift offsets, which nobody asks for here.
Result<void> check_post_processor(object root) {
  if (absent_or_null(root, "post_processor")) return {};
  const object processor = TRY(object_at(root, "post_processor", "post_processor"));
  return require_type(processor, "ByteLevel", "post_processor");
}

Result<SplitRegex> read_split(object step, const std::string& field) {
  TRY(require_type(step, "Split", field));
  const object pattern = TRY(object_at(step, "pattern", field + ".pattern"));
  std::string_view regex;
  if (pattern["Regex"].get(regex) != simdjson::SUCCESS) {
    return unsupported(field + ".pattern", "only a Regex is supported");
  }
  if (TRY(string_at(step, "behavior", field + ".behavior")) != "Isolated") {
    return unsupported(field + ".behavior", "only \"Isolated\" is supported");
  }
  TRY(require_off(step, "invert", field + ".invert"));
  auto split = SplitRegex::compile(regex);
  if (!split) return with_context(std::move(split).error(), field);
  return split;
}

Result<void> read_pre_tokenizer(object root, Tokenizer::Data& data) {
  const object outer = TRY(object_at(root, "pre_tokenizer", "pre_tokenizer"));
  TRY(require_type(outer, "Sequence", "pre_tokenizer"));
  array steps;
  if (outer["pretokenizers"].get(steps) != simdjson::SUCCESS || steps.size() == 0 ||
      steps.size() > kSplitsMax) {
    return invalid("pre_tokenizer.pretokenizers", "must list 1 to 16 steps");
  }
  size_t index = 0;
  for (const element value : steps) {
    const std::string field = "pre_tokenizer.pretokenizers[" + std::to_string(index) + "]";
    object step;
    if (value.get(step) != simdjson::SUCCESS) return invalid(field, "must be an object");
    if (++index < steps.size()) {
      data.splits.push_back(TRY(read_split(step, field)));
      continue;
    }
    TRY(require_type(step, "ByteLevel", field));
    TRY(require_off(step, "add_prefix_space", field + ".add_prefix_space"));
    if (TRY(flag_at(step, "use_regex", field + ".use_regex", true))) {
      return unsupported(field + ".use_regex", "only false is supported");
    }
  }
  return {};
}

size_t list_size(object from, const char* key) {
  element value;
  if (from[key].get(value) != simdjson::SUCCESS) return 0;
  if (value.is_object()) return value.get_object().value_unsafe().size();
  return value.is_array() ? value.get_array().value_unsafe().size() : 0;
}

// Makes room for `id`; false when the id has a token already.
bool place(Tokenizer::Data& data, int64_t id, Tokenizer::Data::Token token) {
  const auto index = static_cast<size_t>(id);
  if (index >= data.tokens.size()) data.tokens.resize(index + 1);
  if (!data.tokens[index].text.empty()) return false;
  data.tokens[index] = std::move(token);
  return true;
}

Result<NameMap<int32_t>> read_vocab(object model, Tokenizer::Data& data) {
  const object vocab = TRY(object_at(model, "vocab", "model.vocab"));
  NameMap<int32_t> ids;
  ids.reserve(vocab.size());
  for (const key_value_pair entry : vocab) {
    int64_t id = 0;
    if (entry.value.get(id) != simdjson::SUCCESS || id < 0 || id > data.id_max) {
      return invalid("model.vocab", "an id is not an integer in 0.." + std::to_string(data.id_max));
    }
    if (entry.key.empty() || entry.key.size() > kTokenBytesMax) {
      return invalid("model.vocab", "id " + std::to_string(id) + " has a string of " +
                                        std::to_string(entry.key.size()) + " bytes");
    }
    if (!ids.try_emplace(std::string(entry.key), static_cast<int32_t>(id)).second) {
      return invalid("model.vocab", "id " + std::to_string(id) + " has the string of another id");
    }
    std::string text(entry.key);
    std::string bytes = bytes_of_symbols(text).value_or(text);
    if (!place(data, id, {std::move(text), std::move(bytes), false})) {
      return invalid("model.vocab", "id " + std::to_string(id) + " is given twice");
    }
  }
  return ids;
}

Result<std::pair<std::string_view, std::string_view>> read_pair(element value,
                                                                const std::string& field) {
  std::string_view text;
  if (value.get(text) == simdjson::SUCCESS) {
    const size_t space = text.find(' ');
    if (space == std::string_view::npos) return invalid(field, "must be two strings");
    return std::pair(text.substr(0, space), text.substr(space + 1));
  }
  array both;
  std::string_view left;
  std::string_view right;
  if (value.get(both) != simdjson::SUCCESS || both.size() != 2 ||
      both.at(0).get(left) != simdjson::SUCCESS || both.at(1).get(right) != simdjson::SUCCESS) {
    return invalid(field, "must be two strings");
  }
  return std::pair(left, right);
}

Result<void> read_merges(object model, const NameMap<int32_t>& ids, Tokenizer::Data& data) {
  array merges;
  if (model["merges"].get(merges) != simdjson::SUCCESS) {
    return invalid("model.merges", "must be an array");
  }
  std::array<int32_t, 256> byte_ids = {};
  const std::array<std::string, 256> symbols = byte_symbols();
  for (size_t byte = 0; byte < 256; ++byte) {
    const auto found = ids.find(symbols[byte]);
    if (found == ids.end()) {
      return unsupported("model.vocab", "has no symbol for byte " + std::to_string(byte));
    }
    byte_ids[byte] = found->second;
  }
  data.bpe.emplace(byte_ids);
  size_t index = 0;
  std::string joined;
  for (const element value : merges) {
    const std::string field = "model.merges[" + std::to_string(index++) + "]";
    const auto [left, right] = TRY(read_pair(value, field));
    joined.assign(left).append(right);
    const auto left_id = ids.find(left);
    const auto right_id = ids.find(right);
    const auto merged_id = ids.find(joined);
    if (left_id == ids.end() || right_id == ids.end() || merged_id == ids.end()) {
      return invalid(field, "its parts and their join must be in the vocabulary");
    }
    if (!data.bpe->add_merge(left_id->second, right_id->second, merged_id->second)) {
      return invalid(field, "is given twice");
    }
  }
  return {};
}

Result<NameMap<int32_t>> read_model(object root, Tokenizer::Data& data) {
  const object model = TRY(object_at(root, "model", "model"));
  TRY(require_type(model, "BPE", "model"));
  const size_t entries = list_size(model, "vocab") + list_size(root, "added_tokens");
  data.id_max = std::min(kIdMax, kIdsFree + 2 * static_cast<int64_t>(entries));
  for (const char* key : {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                          "fuse_unk", "byte_fallback", "ignore_merges"}) {
    TRY(require_off(model, key, std::string("model.") + key));
  }
  NameMap<int32_t> ids = TRY(read_vocab(model, data));
  TRY(read_merges(model, ids, data));
  return ids;
}

Result<void> read_added_token(element value, const std::string& field,
                              const NameMap<int32_t>& vocab, Tokenizer::Data& data) {
  object token;
  if (value.get(token) != simdjson::SUCCESS) return invalid(field, "must be an object");
  int64_t id = 0;
  if (token["id"].get(id) != simdjson::SUCCESS || id < 0 || id > data.id_max) {
    return invalid(field + ".id", "must be an integer in 0.." + std::to_string(data.id_max));
  }
  const std::string_view content = TRY(string_at(token, "content", field + ".content"));
  if (content.empty() || content.size() > kTokenBytesMax) {
    return invalid(field + ".content", "has " + std::to_string(content.size()) + " bytes");
  }
  for (const char* key : {"single_word", "lstrip", "rstrip"}) {
    TRY(require_off(token, key, field + "." + key));
  }
  const bool special = TRY(flag_at(token, "special", field + ".special", false));
  const bool normalized = TRY(flag_at(token, "normalized", field + ".normalized", !special));
  const auto number = static_cast<int32_t>(id);
  if (!data.added_ids.try_emplace(std::string(content), number).second) {
    return invalid(field + ".content", "is given twice");
  }
  const auto in_vocab = vocab.find(content);
  const bool known = in_vocab != vocab.end() && in_vocab->second == number;
  if (in_vocab != vocab.end() && !known) {
    return invalid(field + ".id", "is " + std::to_string(id) +
                                      ", the vocabulary gives this string id " +
                                      std::to_string(in_vocab->second));
  }
  if (known) {
    // It decodes to its text, whatever bytes its characters could spell.
    data.tokens[static_cast<size_t>(id)].bytes = content;
    data.tokens[static_cast<size_t>(id)].is_added = true;
  } else if (!place(data, id, {std::string(content), std::string(content), true})) {
    return invalid(field + ".id", std::to_string(id) + " is given twice");
  }
  (normalized ? data.normalized_added : data.exact_added).add(content, number);
  data.added.push_back({number, std::string(content), special});
  return {};
}

Result<void> read_added_tokens(object root, const NameMap<int32_t>& vocab, Tokenizer::Data& data) {
  if (absent_or_null(root, "added_tokens")) return {};
  array list;
  if (root["added_tokens"].get(list) != simdjson::SUCCESS) {
    return invalid("added_tokens", "must be an array");
  }
  size_t index = 0;
  for (const element value : list) {
    TRY(read_added_token(value, "added_tokens[" + std::to_string(index++) + "]", vocab, data));
  }
  std::sort(data.added.begin(), data.added.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  return {};
}

}  // namespace

Result<void> read_tokenizer_json(std::string_view json, Tokenizer::Data& data) {
  if (json.size() > kFileBytesMax) {
    return Error{ErrorCode::kInvalid, std::to_string(json.size()) + " bytes long, at most " +
                                          std::to_string(kFileBytesMax) + " are accepted"};
  }
  simdjson::dom::parser parser(kFileBytesMax + 64);
  const simdjson::error_code sized = parser.allocate(json.size() + 64, kDepthMax);
  if (sized != simdjson::SUCCESS) return json_error(sized);
  element document;
  const simdjson::error_code parsed = parser.parse(json.data(), json.size()).get(document);
  if (parsed != simdjson::SUCCESS) return json_error(parsed);
  object root;
  if (document.get(root) != simdjson::SUCCESS) return invalid("top level", "must be an object");

  for (const char* key : {"truncation", "padding"}) TRY(require_off(root, key, key));
  TRY(check_normalizer(root));
  TRY(read_pre_tokenizer(root, data));
  TRY(check_post_processor(root));
  const object decoder = TRY(object_at(root, "decoder", "decoder"));
  TRY(require_type(decoder, "ByteLevel", "decoder"));
  const NameMap<int32_t> vocab = TRY(read_model(root, data));
  TRY(read_added_tokens(root, vocab, data));
  for (const Tokenizer::Data::Token& token : data.tokens) {
    data.token_bytes_max = std::max(data.token_bytes_max, token.bytes.size());
  }
  return {};
}

}  // namespace galley::model
