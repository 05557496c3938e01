#include "serve/prompt_writer.h"

#include <utility>

#include "serve/control_text.h"

namespace galley::serve {

Result<void> PromptWriter::flush() {
  if (pending_.empty()) return {};
  const std::vector<int32_t> encoded =
      TRY(tokenizer_->encode(pending_, model::Markup::kPlain, budget_));
  ids_.insert(ids_.end(), encoded.begin(), encoded.end());
  pending_.clear();
  return {};
}

Result<void> PromptWriter::token(std::string_view spelling) {
  const std::optional<int32_t> id = tokenizer_->added_id(spelling);
  if (!id) {
    return Error{ErrorCode::kUnsupported,
                 "the tokenizer has no control token " + std::string(spelling)};
  }
  TRY(flush());
  ids_.push_back(*id);
  if (budget_ != nullptr) ++budget_->seen;
  return {};
}

Result<void> PromptWriter::markup(std::string_view own) {
  while (!own.empty()) {
    size_t at = own.size();
    std::string_view found;
    for (const std::string_view spelling : {kDsml, kThink, kEndThink}) {
      const size_t begin = own.find(spelling);
      if (begin >= at) continue;
      at = begin;
      found = spelling;
    }
    text(own.substr(0, at));
    if (found.empty()) return {};
    TRY(token(found));
    own.remove_prefix(at + found.size());
  }
  return {};
}

Result<std::vector<int32_t>> PromptWriter::finish() {
  TRY(flush());
  return std::move(ids_);
}

}  // namespace galley::serve
