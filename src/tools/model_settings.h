// The settings that name a model and a machine, shared by the verbs that compute.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "tools/command.h"

namespace galley::tools {

struct ModelSettings {
  std::string model;  // empty: models/nano, beside the current folder or the program
  std::string backend = "auto";
  int32_t threads = 0;  // 0: all that this process may use
};

void add_model_directory(Command& command, std::string& model);
void add_model_settings(Command& command, ModelSettings& settings);

// The directory to load: as given, or where models/nano is found.
Result<std::string> find_model(const std::string& given);

}  // namespace galley::tools
