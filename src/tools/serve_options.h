// The settings of `galley serve`, and what of them a running server takes over
// when it is asked to read them again.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "engine/sampling_options.h"
#include "tools/command.h"
#include "tools/loaded_model.h"
#include "tools/model_settings.h"

namespace galley::tools {

struct ServeOptions {
  std::string host = "127.0.0.1";
  int32_t port = 8000;
  std::string model_names;  // with commas between
  int64_t context = 0;
  int64_t output_tokens_max = 0;
  std::string api_keys;
  bool insecure = false;
  std::string tls_certificate;
  std::string tls_key;
  std::string metrics_listen;
  std::string admin_socket;
  float drain_grace_s = 5;
  float drain_deadline_s = 600;
  float keep_alive_s = 5;
  float request_timeout_s = 0;
  float stuck_after_s = 60;
  int64_t body_mib_max = 16;
  int32_t connections_max = 4096;
  std::string log_level = "info";
  std::string log_format = "text";
  std::string state_dir;
  std::string preload = "auto";
  std::string new_key;
  ModelSettings model;
  EngineSettings engine;
  engine::SamplingOptions sampling;
};

// As they are when nothing says otherwise.
ServeOptions default_serve_options();
// Those on which the memory it takes depends, besides the engine's.
void add_serving_sizes(Command& command, ServeOptions& options);
void declare_serve_options(Command& command, ServeOptions& options);

// By long name, as they are in force.
using SettingValues = std::vector<std::pair<std::string, std::string>>;

struct ReadSettings {
  ServeOptions options;
  SettingValues values;
};
// From the same command line, the environment and the file as it is now; prints nothing.
Result<ReadSettings> read_serve_options_again(int argc, char** argv);

struct SettingsChange {
  std::vector<std::string> taken;
  std::vector<std::string> need_restart;
};
// What differs. Values that are taken over become those of `before`.
SettingsChange compare_settings(SettingValues& before, const SettingValues& after);
// The settings of these names from the one to the other.
void take_settings(const std::vector<std::string>& names, const ServeOptions& from,
                   ServeOptions& to);

// kInvalid with what does not go together.
Result<void> check_serve_options(const ServeOptions& options);

}  // namespace galley::tools
