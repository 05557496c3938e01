// Where run and tokenize take their input from, as flags and as tokens.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "serve/codec.h"
#include "tools/command.h"

namespace galley::tools {

struct PromptInput {
  std::vector<std::string> words;  // joined with spaces; "-" or nothing: standard input
  std::string file;
  std::string ids;
  std::string messages_file;
  std::string system;
  bool chat = false;
  bool markup = false;

  bool is_conversation() const { return chat || !messages_file.empty(); }
  bool empty() const {
    return words.empty() && file.empty() && ids.empty() && messages_file.empty();
  }
  // What is wrong with the combination, or nothing.
  std::string problem() const;
};

void add_prompt_arguments(Command& command, PromptInput& input);

// Text from words, file or standard input.
Result<std::string> prompt_text(const PromptInput& input);

// Everything but bare text of `tokenize`: begins with BOS unless ids were given.
Result<serve::Prompt> encode_prompt(const PromptInput& input, const serve::ChatCodec& codec);

// "0, 17 254" -> {0, 17, 254}.
Result<std::vector<int32_t>> parse_ids(std::string_view text);

}  // namespace galley::tools
