#include "tools/generation_config.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/json.h"

namespace galley::tools {
namespace {

// The shortest text that is this number again.
std::string number_text(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

std::optional<JsonValue> find_value(const JsonValue& root, std::string_view key) {
  std::optional<JsonValue> value = root.find(key);
  if (value && value->is_null()) value.reset();
  return value;
}

}  // namespace

Result<GenerationDefaults> parse_generation_config(std::string_view text) {
  const JsonDocument document = TRY(JsonDocument::parse(text));
  const JsonValue root = document.root();
  if (!root.is_object()) return Error{ErrorCode::kInvalid, "must be a JSON object"};
  constexpr std::pair<std::string_view, std::string_view> kNumbers[] = {
      {"temperature", "temperature"},
      {"top_p", "top-p"},
      {"min_p", "min-p"},
      {"repetition_penalty", "repetition-penalty"}};
  GenerationDefaults defaults;
  const auto greedy = find_value(root, "do_sample");
  const bool samples = !greedy || TRY(greedy->as_bool());
  for (const auto& [key, setting] : kNumbers) {
    const auto value = find_value(root, key);
    if (value) defaults.emplace_back(setting, number_text(TRY(value->as_number())));
  }
  if (const auto value = find_value(root, "top_k")) {
    // Some write -1 for all.
    const int64_t top_k = TRY(value->as_integer(-1));
    defaults.emplace_back("top-k", std::to_string(std::max<int64_t>(0, top_k)));
  }
  if (samples) return defaults;
  std::erase_if(defaults, [](const auto& one) { return one.first == "temperature"; });
  defaults.emplace_back("temperature", "0");
  return defaults;
}

}  // namespace galley::tools
