// The sampling flags that run, batch and others share.
#pragma once

#include "engine/sampling_options.h"
#include "tools/command.h"

namespace galley::tools {

void add_sampling_settings(Command& command, engine::SamplingOptions& sampling);

}  // namespace galley::tools
