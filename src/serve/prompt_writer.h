// Writes a prompt as token ids: control tokens by id, everything between two of
// them as one piece of plain text.
//
// Text is encoded with markup off, so what a user wrote never becomes a control
// token; and in one piece, since the tokens of a text depend on its neighbours
// (".\n\n" is one token).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/tokenizer.h"

namespace galley::serve {

class PromptWriter {
 public:
  // The tokenizer must outlive the writer, and so must the budget, if there is one.
  explicit PromptWriter(const model::Tokenizer& tokenizer, model::TokenBudget* budget = nullptr)
      : tokenizer_(&tokenizer), budget_(budget) {}

  void text(std::string_view plain) { pending_ += plain; }

  // The control token spelled so; kUnsupported when the tokenizer has none.
  Result<void> token(std::string_view spelling);

  // Text of our own in which ｜DSML｜, <think> and </think> are control tokens.
  Result<void> markup(std::string_view own);

  Result<std::vector<int32_t>> finish();

 private:
  Result<void> flush();

  const model::Tokenizer* tokenizer_;
  model::TokenBudget* budget_;  // null: none
  std::string pending_;
  std::vector<int32_t> ids_;
};

}  // namespace galley::serve
