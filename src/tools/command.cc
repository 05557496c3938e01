#include "tools/command.h"

#include <CLI/CLI.hpp>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "base/check.h"
#include "tools/exit_code.h"
#include "tools/settings_file.h"

namespace galley::tools {
namespace {

// "-t,--temperature" -> "temperature"; a positional keeps its name.
std::string long_name(const std::string& flags) {
  const size_t dashes = flags.find("--");
  return dashes == std::string::npos ? flags : flags.substr(dashes + 2);
}

// "top-k" -> "GALLEY_TOP_K"
std::string environment_name(const std::string& name) {
  std::string result = "GALLEY_";
  for (const char c : name) {
    result += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return result;
}

std::string one_line(std::string text) {
  for (char& c : text) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

template <class T>
std::string as_toml(const T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    return nlohmann::json(value).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  } else if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (std::is_same_v<T, float>) {
    char text[32];
    std::snprintf(text, sizeof text, "%.7g", static_cast<double>(value));
    return text;
  } else {
    return std::to_string(value);
  }
}

std::string plain_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.10g", value);
  return text;
}

CLI::Option& cli(void* option) { return *static_cast<CLI::Option*>(option); }

}  // namespace

struct Command::State {
  struct Setting {
    std::string name;
    CLI::Option* option;
    std::function<std::string()> show;
    std::string source = "default";
    bool fell_back = false;

    bool given() const { return source != "default" && !fell_back; }
  };

  std::string verb;
  std::string section;  // of the settings file
  CLI::App app;
  std::string config_path;
  bool show_config = false;
  std::vector<Setting> settings;
  std::vector<CLI::Option*> required;
  std::function<Result<Fallback>()> fallback;

  template <class T>
  CLI::Option* add(const std::string& flags, T& target, const std::string& help) {
    if constexpr (std::is_same_v<T, bool>) {
      return app.add_flag(flags, target, help);
    } else {
      CLI::Option* option = app.add_option(flags, target, help);
      if constexpr (std::is_same_v<T, std::vector<std::string>>) {
        // A flag that may repeat takes one value each time, not all that follow.
        if (flags.starts_with('-')) option->allow_extra_args(false);
      }
      if constexpr (std::is_same_v<T, std::string>) {
        option->type_name("TEXT");
      } else if constexpr (!std::is_same_v<T, std::vector<std::string>>) {
        option->type_name("NUMBER");
      }
      return option;
    }
  }

  template <class T>
  CLI::Option* add_setting(const std::string& flags, T& target, const std::string& help) {
    CLI::Option* option = add(flags, target, help);
    option->group("Settings");
    if constexpr (!std::is_same_v<T, bool>) option->capture_default_str();
    if constexpr (std::is_same_v<T, std::string>) {
      if (target.empty()) option->default_str("");
    }
    settings.push_back({long_name(flags), option, [&target] { return as_toml(target); }});
    return option;
  }

  // Gives the option a value that did not come from the command line.
  Result<void> assign(Setting& setting, const std::string& text, const std::string& source) {
    try {
      setting.option->add_result(text);
      setting.option->run_callback();
    } catch (const CLI::Error& error) {
      return Error{ErrorCode::kInvalid, source + ": " + one_line(error.what())};
    }
    setting.source = source;
    return {};
  }

  Result<void> layer() {
    std::map<std::string, FileValue> file;
    if (config_path.empty()) {
      const char* named = std::getenv("GALLEY_CONFIG");
      config_path = named != nullptr && *named != '\0' ? named : default_settings_path();
    }
    if (!config_path.empty()) file = TRY(read_settings_file(config_path, section));
    for (Setting& setting : settings) {
      const std::string variable = environment_name(setting.name);
      const char* text = std::getenv(variable.c_str());
      const auto entry = file.find(setting.name);
      if (setting.option->count() > 0) {
        setting.source = "flag --" + setting.name;
      } else if (text != nullptr && *text != '\0') {
        TRY(assign(setting, text, "environment " + variable));
      } else if (entry != file.end()) {
        TRY(assign(setting, entry->second.text,
                   config_path + " line " + std::to_string(entry->second.line)));
      }
      if (entry != file.end()) file.erase(entry);
    }
    // What stands at the top of the file is for every verb, so this one need not know it.
    for (const auto& [name, value] : file) {
      if (value.shared) continue;
      return Error{ErrorCode::kInvalid, config_path + " line " + std::to_string(value.line) +
                                            ": galley " + verb + " has no setting \"" + name +
                                            "\"; `galley " + verb + " --show-config` lists them"};
    }
    return {};
  }

  Result<void> fall_back() {
    if (!fallback) return {};
    const Fallback known = TRY(fallback());
    for (const auto& [name, text] : known.values) {
      const auto setting = std::find_if(settings.begin(), settings.end(),
                                        [&](const Setting& each) { return each.name == name; });
      CHECK(setting != settings.end());
      if (setting->given()) continue;
      TRY(assign(*setting, text, known.source));
      setting->fell_back = true;
    }
    return {};
  }

  void print_settings() const {
    size_t width = 0;
    for (const Setting& setting : settings) width = std::max(width, setting.name.size());
    std::printf("[%s]\n", section.c_str());
    for (const Setting& setting : settings) {
      const std::string line =
          setting.name + std::string(width - setting.name.size(), ' ') + " = " + setting.show();
      std::printf("%-44s # %s\n", line.c_str(), setting.source.c_str());
    }
  }
};

Command::Option& Command::Option::range(double low, double high) {
  const std::string bounds = plain_number(low) + " to " + plain_number(high);
  cli(option_).check([low, high, bounds](const std::string& text) -> std::string {
    double value = 0;
    if (!CLI::detail::lexical_cast(text, value)) return "\"" + text + "\" is not a number";
    // Also refuses NaN.
    if (value >= low && value <= high) return "";
    return text + " is out of range, must be from " + bounds;
  });
  cli(option_).type_name(bounds);
  return *this;
}

Command::Option& Command::Option::choices(std::vector<std::string> values) {
  cli(option_).check(CLI::IsMember(std::move(values)));
  return *this;
}

Command::Option& Command::Option::group(const std::string& title) {
  cli(option_).group(title);
  return *this;
}

Command::Option& Command::Option::value_name(const std::string& name) {
  cli(option_).type_name(name);
  return *this;
}

Command::Option& Command::Option::required() {
  static_cast<std::vector<CLI::Option*>*>(required_)->push_back(&cli(option_));
  return *this;
}

Command::Command(std::string verb, const std::string& summary, const std::string& examples)
    : state_(std::make_unique<State>()) {
  state_->verb = std::move(verb);
  state_->section = state_->verb;
  std::replace(state_->section.begin(), state_->section.end(), ' ', '-');
  CLI::App& app = state_->app;
  app.name("galley " + state_->verb);
  app.description(summary);
  app.footer(
      "Examples:\n" + examples +
      "\nA setting --some-name may also stand as GALLEY_SOME_NAME in the environment, or as\n"
      "some-name in galley.toml under [" +
      state_->section + "]; flags win over the environment, it over the file.\n");
  app.get_formatter()->column_width(36);
  app.set_help_flag("-h,--help", "Print this and exit");
  app.add_option("--config", state_->config_path,
                 "Settings file (default: ./galley.toml, then ~/.config/galley/galley.toml)")
      ->type_name("FILE");
  app.add_flag("--show-config", state_->show_config,
               "Print the settings in force and where each came from, and exit");
}

Command::~Command() = default;

Command::Option Command::setting(const std::string& flags, std::string& target,
                                 const std::string& help) {
  return wrap(state_->add_setting(flags, target, help));
}
Command::Option Command::setting(const std::string& flags, int32_t& target,
                                 const std::string& help) {
  return wrap(state_->add_setting(flags, target, help));
}
Command::Option Command::setting(const std::string& flags, int64_t& target,
                                 const std::string& help) {
  return wrap(state_->add_setting(flags, target, help));
}
Command::Option Command::setting(const std::string& flags, uint64_t& target,
                                 const std::string& help) {
  return wrap(state_->add_setting(flags, target, help));
}
Command::Option Command::setting(const std::string& flags, float& target, const std::string& help) {
  return wrap(state_->add_setting(flags, target, help));
}
Command::Option Command::setting(const std::string& flags, bool& target, const std::string& help) {
  return wrap(state_->add_setting(flags, target, help));
}

Command::Option Command::argument(const std::string& flags, std::string& target,
                                  const std::string& help) {
  return wrap(state_->add(flags, target, help));
}
Command::Option Command::argument(const std::string& flags, int32_t& target,
                                  const std::string& help) {
  return wrap(state_->add(flags, target, help));
}
Command::Option Command::argument(const std::string& flags, bool& target, const std::string& help) {
  return wrap(state_->add(flags, target, help));
}
Command::Option Command::argument(const std::string& flags, std::vector<std::string>& target,
                                  const std::string& help) {
  return wrap(state_->add(flags, target, help));
}

Command::Option Command::wrap(void* option) { return Option(option, &state_->required); }

std::optional<int> Command::parse(int argc, char** argv) {
  try {
    state_->app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    std::fputs(state_->app.help().c_str(), stdout);
    return kExitOk;
  } catch (const CLI::Error& error) {
    return usage(one_line(error.what()) + "; see `galley " + state_->verb + " --help`");
  }
  const Result<void> layered = state_->layer();
  if (!layered) return usage(layered.error().message);
  const Result<void> fell_back = state_->fall_back();
  if (!fell_back) return fail(fell_back.error());
  if (state_->show_config) {
    state_->print_settings();
    return kExitOk;
  }
  for (const CLI::Option* option : state_->required) {
    if (option->count() > 0) continue;
    return usage(option->get_name() + " is required; see `galley " + state_->verb + " --help`");
  }
  return std::nullopt;
}

Result<void> Command::reread(int argc, char** argv) {
  try {
    state_->app.parse(argc, argv);
  } catch (const CLI::Error& error) {
    return Error{ErrorCode::kInvalid, one_line(error.what())};
  }
  TRY(state_->layer());
  return state_->fall_back();
}

void Command::fall_back_on(std::function<Result<Fallback>()> read) {
  state_->fallback = std::move(read);
}

std::vector<std::pair<std::string, std::string>> Command::values() const {
  std::vector<std::pair<std::string, std::string>> values;
  for (const State::Setting& setting : state_->settings) {
    values.emplace_back(setting.name, setting.show());
  }
  return values;
}

bool Command::given(const std::string& name) const {
  for (const State::Setting& setting : state_->settings) {
    if (setting.name == name) return setting.given();
  }
  return false;
}

int Command::fail(const Error& error) const {
  std::fprintf(stderr, "galley %s: %s\n", state_->verb.c_str(), one_line(error.message).c_str());
  return exit_code_of(error.code);
}

int Command::usage(const std::string& message) const {
  std::fprintf(stderr, "galley %s: %s\n", state_->verb.c_str(), one_line(message).c_str());
  return kExitUsage;
}

}  // namespace galley::tools
