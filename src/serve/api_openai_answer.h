// What answers of chat and plain completions have in common: the object's head,
// chunks of one choice, usage in a chunk without choices, and [DONE].
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "serve/api_answer_parts.h"

namespace galley::serve {

// The names that tell the two APIs apart.
struct OpenAiNames {
  std::string_view id_prefix;
  std::string_view object;
  std::string_view chunk;
};

class OpenAiEncoder : public FoldingEncoder {
 protected:
  OpenAiEncoder(const ApiRequest& request, AnswerHead head, const OpenAiNames& names);

  // What each choice begins with.
  virtual void begin_choices() = 0;
  // The choice's own member, as {"message": ...} or {"text": ...}.
  virtual Json whole_choice(size_t index) = 0;
  // Of a choice, since the last time; asked for or not.
  virtual Json logprobs_json(size_t index) = 0;

  // A chunk of one choice: `member` is its JSON text, "" for `finish` means not yet. What is there
  // of log-probabilities rides on it. This runs for every token: all is text that is ready.
  void write_chunk(size_t index, std::string_view key, std::string_view member,
                   std::string_view finish = "");

  void begin() final;
  void end(const AnswerUsage& usage) final;
  void broken(const ApiError& error) final;
  std::string whole(const AnswerUsage& usage) final;

 private:
  Json object(std::string_view kind) const;

  OpenAiNames names_;
  bool logprobs_;
  bool include_usage_;
  std::string chunk_head_;
};

}  // namespace galley::serve
