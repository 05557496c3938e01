// A verb's command line and its settings.
//
// A setting is looked for in the flags, then as GALLEY_NAME in the environment,
// then in a TOML file, then in what the verb may know besides (the model's own
// wishes), and else keeps its default; `--show-config` prints every value and where
// it came from. An argument exists on the command line only.
// The command-line library stays behind this header: it throws, and it is slow
// to compile.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace galley::tools {

class Command {
 public:
  // Limits what an option accepts; returned by the functions that add one.
  class Option {
   public:
    Option& range(double low, double high);
    Option& choices(std::vector<std::string> values);
    Option& group(const std::string& title);  // heading in --help
    Option& value_name(const std::string& name);
    Option& required();

   private:
    friend class Command;
    // Both are CLI11's, owned by the command.
    Option(void* option, void* required) : option_(option), required_(required) {}
    void* option_;
    void* required_;
  };

  // `summary` is the first sentence of --help, `examples` its last section.
  Command(std::string verb, const std::string& summary, const std::string& examples);
  ~Command();
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  // `flags` is "--long" or "-s,--long". The target's present value is the default and
  // lives longer than the command.
  Option setting(const std::string& flags, std::string& target, const std::string& help);
  Option setting(const std::string& flags, int32_t& target, const std::string& help);
  Option setting(const std::string& flags, int64_t& target, const std::string& help);
  Option setting(const std::string& flags, uint64_t& target, const std::string& help);
  Option setting(const std::string& flags, float& target, const std::string& help);
  Option setting(const std::string& flags, bool& target, const std::string& help);

  // `flags` as above, or a bare word for a positional argument.
  Option argument(const std::string& flags, std::string& target, const std::string& help);
  Option argument(const std::string& flags, int32_t& target, const std::string& help);
  Option argument(const std::string& flags, bool& target, const std::string& help);
  Option argument(const std::string& flags, std::vector<std::string>& target,
                  const std::string& help);

  // Values for settings that nothing else gave, as texts by their long names, and where they stand.
  struct Fallback {
    std::string source;
    std::vector<std::pair<std::string, std::string>> values;
  };
  // Asked once all settings that were given are in their targets. An error ends the verb with
  // exit code 1: what is wrong is not the command line.
  void fall_back_on(std::function<Result<Fallback>()> read);

  // Reads everything. An exit code when the verb is over: help was asked for, or the
  // input is wrong and one line on stderr said so.
  std::optional<int> parse(int argc, char** argv);

  // Reads everything as parse() does, for a second look at files that may have changed: prints
  // nothing, an error is the one line that parse() would print. Not for a command that was parsed.
  Result<void> reread(int argc, char** argv);
  // Every setting by its long name and as it is now, in the order of their declaration.
  std::vector<std::pair<std::string, std::string>> values() const;

  // True when a flag, the environment or the file gave the setting of this long name.
  bool given(const std::string& name) const;

  // Prints "galley VERB: message" on stderr; returns the exit code that fits.
  int fail(const Error& error) const;
  int usage(const std::string& message) const;

 private:
  struct State;
  Option wrap(void* option);
  std::unique_ptr<State> state_;
};

}  // namespace galley::tools
