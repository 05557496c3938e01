#include "tools/sampling_settings.h"

#include <charconv>

#include "base/file.h"
#include "tools/generation_config.h"
#include "tools/model_settings.h"

namespace galley::tools {
namespace {

constexpr size_t kConfigBytesMax = size_t{1} << 20;

// What the model's directory says; nothing when it says nothing. A model that is not there is
// for those to tell who open it.
Result<Command::Fallback> wishes_of(const std::string& model) {
  const Result<std::string> directory = find_model(model);
  if (!directory) return Command::Fallback();
  Command::Fallback wishes = {*directory + "/generation_config.json", {}};
  if (!exists(wishes.source)) return wishes;
  const std::string text = TRY(read_file(wishes.source, kConfigBytesMax));
  Result<GenerationDefaults> values = parse_generation_config(text);
  if (!values) return with_context(values.error(), wishes.source);
  wishes.values = *std::move(values);
  return wishes;
}

}  // namespace

void add_sampling_settings(Command& command, engine::SamplingOptions& sampling,
                           const std::string& model) {
  // What the release was measured with (spec/chat.md 6).
  sampling.temperature = 1.0F;
  sampling.top_p = 0.95F;
  command.fall_back_on([&model] { return wishes_of(model); });
  constexpr const char* kGroup = "Sampling settings";
  command.setting("-t,--temperature", sampling.temperature, "0 = always the best token")
      .range(0, 100)
      .group(kGroup);
  command.setting("--top-k", sampling.top_k, "Keep the k best tokens; 0 = all")
      .range(0, 1e9)
      .group(kGroup)
      .value_name("K");
  command.setting("--top-p", sampling.top_p, "Keep the fewest best tokens whose share reaches p")
      .range(1e-9, 1)
      .group(kGroup)
      .value_name("0 to 1");
  command.setting("--min-p", sampling.min_p, "Drop tokens less than p times as likely as the best")
      .range(0, 1)
      .group(kGroup);
  command
      .setting("--repetition-penalty", sampling.repetition_penalty,
               "Above 1: tokens of prompt and answer become less likely")
      .range(1e-3, 100)
      .group(kGroup)
      .value_name("X");
  command
      .setting("--frequency-penalty", sampling.frequency_penalty,
               "Taken from a token's logit for every time it was produced")
      .range(-100, 100)
      .group(kGroup)
      .value_name("X");
  command
      .setting("--presence-penalty", sampling.presence_penalty,
               "Taken once from the logit of a token that was produced")
      .range(-100, 100)
      .group(kGroup)
      .value_name("X");
  command.setting("--seed", sampling.seed, "The same seed gives the same answer")
      .group(kGroup)
      .value_name("N");
}

Result<std::pair<int32_t, float>> parse_logit_bias(const std::string& text) {
  const char* end = text.data() + text.size();
  int32_t token = 0;
  const auto [equals, token_code] = std::from_chars(text.data(), end, token);
  if (token_code == std::errc() && equals != end && *equals == '=') {
    float bias = 0;
    const auto [rest, bias_code] = std::from_chars(equals + 1, end, bias);
    if (bias_code == std::errc() && rest == end) return std::pair(token, bias);
  }
  return Error{ErrorCode::kInvalid,
               "--logit-bias: \"" + text + "\" is not TOKEN=VALUE, e.g. 17=-5"};
}

}  // namespace galley::tools
