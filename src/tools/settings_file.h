// The TOML file behind the settings, flattened to text.
//
//   model = "models/nano"        # for every verb
//   [run]
//   temperature = 0.7            # for one verb
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace galley::tools {

// One value of the file as text, and the line that holds it.
struct FileValue {
  std::string text;
  int line = 0;
  bool shared = false;  // at the top of the file, not in the verb's table
};

// The values that concern `verb`, by key. Tables of other verbs are skipped; a table
// that is no verb, a nested value and a date are refused with their line.
Result<std::map<std::string, FileValue>> read_settings_file(const std::string& path,
                                                            std::string_view verb);

// What is in force when no file is named: galley.toml here, then in the user's
// configuration folder; empty when there is neither.
std::string default_settings_path();

}  // namespace galley::tools
