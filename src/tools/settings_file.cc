#include "tools/settings_file.h"

#include <cstdlib>
#include <sstream>

#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include "base/file.h"

namespace galley::tools {
namespace {

constexpr size_t kSettingsBytesMax = 1 << 20;
constexpr std::string_view kVerbNames[] = {"run",  "batch",    "serve",   "route",
                                           "plan", "simulate", "bench",   "verify",
                                           "eval", "doctor",   "tokenize"};

std::string place(const std::string& path, int line) {
  return path + " line " + std::to_string(line);
}

bool is_verb(std::string_view name) {
  for (const std::string_view verb : kVerbNames) {
    if (verb == name) return true;
  }
  return false;
}

Result<std::string> as_text(const toml::node& node, const std::string& where) {
  if (const auto* text = node.as_string()) return text->get();
  std::ostringstream out;
  if (const auto* number = node.as_integer()) {
    out << number->get();
  } else if (const auto* real = node.as_floating_point()) {
    out.precision(17);
    out << real->get();
  } else if (const auto* flag = node.as_boolean()) {
    out << (flag->get() ? "true" : "false");
  } else {
    return Error{ErrorCode::kInvalid, where + ": a value must be a string, number or boolean"};
  }
  return out.str();
}

Result<void> take_values(const toml::table& table, const std::string& path, bool shared,
                         std::map<std::string, FileValue>& values) {
  for (const auto& [key, node] : table) {
    const int line = static_cast<int>(node.source().begin.line);
    const std::string name(key.str());
    if (shared && node.is_table()) continue;
    FileValue value{TRY(as_text(node, place(path, line) + ", key " + name)), line, shared};
    values[name] = std::move(value);
  }
  return {};
}

}  // namespace

Result<std::map<std::string, FileValue>> read_settings_file(const std::string& path,
                                                            std::string_view verb) {
  const std::string content = TRY(read_file(path, kSettingsBytesMax));
  const toml::parse_result parsed = toml::parse(content, path);
  if (!parsed) {
    return Error{ErrorCode::kInvalid,
                 place(path, static_cast<int>(parsed.error().source().begin.line)) + ": " +
                     std::string(parsed.error().description())};
  }
  const toml::table& root = parsed.table();
  std::map<std::string, FileValue> values;
  TRY(take_values(root, path, true, values));
  for (const auto& [key, node] : root) {
    if (node.is_table() && !is_verb(key.str())) {
      return Error{ErrorCode::kInvalid, place(path, static_cast<int>(node.source().begin.line)) +
                                            ": [" + std::string(key.str()) + "] is no verb"};
    }
  }
  if (const auto* table = root[verb].as_table()) TRY(take_values(*table, path, false, values));
  return values;
}

std::string default_settings_path() {
  if (exists("galley.toml")) return "galley.toml";
  const char* xdg = std::getenv("XDG_CONFIG_HOME");
  const char* home = std::getenv("HOME");
  std::string folder;
  if (xdg != nullptr && *xdg != '\0') {
    folder = xdg;
  } else if (home != nullptr && *home != '\0') {
    folder = std::string(home) + "/.config";
  } else {
    return "";
  }
  const std::string path = folder + "/galley/galley.toml";
  return exists(path) ? path : "";
}

}  // namespace galley::tools
