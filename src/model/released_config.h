// config.json of the released DeepSeek-V4.1-Flash, rewritten from the table of
// spec/model.md 1: what full-size tests, sparse checkpoints and benchmarks of
// the released shape are made of.
#pragma once

#include <string>

namespace galley::model {

std::string released_config_json();

}  // namespace galley::model
