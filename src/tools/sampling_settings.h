// The sampling flags that run, batch and others share.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/result.h"
#include "engine/sampling_options.h"
#include "tools/command.h"

namespace galley::tools {

void add_sampling_settings(Command& command, engine::SamplingOptions& sampling);

// "17=-5" adds -5 to the logit of token 17.
Result<std::pair<int32_t, float>> parse_logit_bias(const std::string& text);

}  // namespace galley::tools
