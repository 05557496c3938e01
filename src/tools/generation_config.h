// generation_config.json of a model's directory: how its makers want it sampled.
//
// Gives texts for settings of the same meaning, so that they pass the checks that
// flags pass. What is not about sampling (ids of tokens, lengths) is not read: ids
// come from the tokenizer, lengths from the settings.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace galley::tools {

// (long name of the setting, its value as text).
using GenerationDefaults = std::vector<std::pair<std::string, std::string>>;

// `do_sample` false is temperature 0, whatever else is said; null is absent.
Result<GenerationDefaults> parse_generation_config(std::string_view text);

}  // namespace galley::tools
