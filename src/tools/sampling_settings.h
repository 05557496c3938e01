// The sampling flags that run, batch and serve share, and their defaults: those of the
// model's generation_config.json, else the ones that DeepSeek publishes with.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/result.h"
#include "engine/sampling_options.h"
#include "tools/command.h"

namespace galley::tools {

// `model` is the setting that names the model, as ModelSettings has it; lives longer than the
// command.
void add_sampling_settings(Command& command, engine::SamplingOptions& sampling,
                           const std::string& model);

// "17=-5" adds -5 to the logit of token 17.
Result<std::pair<int32_t, float>> parse_logit_bias(const std::string& text);

}  // namespace galley::tools
