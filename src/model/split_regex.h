// One "Split" of a tokenizer.json: cuts a text into what a pattern matches and
// the gaps between.
//
// The patterns are written for Oniguruma; the subset that means the same under
// PCRE2 is translated and anything else refused. Immutable after compile; any
// thread may split.
#pragma once

#include <cstddef>
#include <limits>
#include <memory>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace galley::model {

class SplitRegex {
 public:
  static Result<SplitRegex> compile(std::string_view pattern);

  SplitRegex(SplitRegex&&) noexcept;
  SplitRegex& operator=(SplitRegex&&) noexcept;
  ~SplitRegex();

  // Appends the pieces of `text`, which must be UTF-8. Nothing is lost: the pieces joined
  // are the text. kInvalid when matching needs more memory than is reasonable. Stops looking once
  // there are more than `pieces_max`.
  Result<void> split(std::string_view text, std::vector<std::string_view>& pieces,
                     size_t pieces_max = std::numeric_limits<size_t>::max()) const;

 private:
  struct Compiled;
  explicit SplitRegex(std::unique_ptr<const Compiled> compiled);

  std::unique_ptr<const Compiled> compiled_;
};

}  // namespace galley::model
