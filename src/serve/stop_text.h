// Ends a text at the first of several stop sequences while it arrives in pieces.
//
// Text that may turn out to begin a stop sequence is held back; the sequence
// itself is never handed on. The result does not depend on how the text is cut.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/stop_matcher.h"

namespace galley::serve {

constexpr size_t kStopTextsMax = 16;
constexpr size_t kStopTextBytesMax = 256;

class StopText {
 public:
  // None of them empty.
  explicit StopText(std::vector<std::string> stops) : matcher_(std::move(stops)) {}

  // What became final with this piece; nothing once stopped.
  std::string push(std::string_view piece);
  // What was held back, when the text ended without a stop.
  std::string finish() { return std::exchange(held_, ""); }

  bool stopped() const { return !stop_.empty(); }
  // The sequence that ended the text; empty before.
  const std::string& stop() const { return stop_; }

 private:
  StopMatcher matcher_;
  std::string held_;  // shorter than the longest stop
  std::string stop_;
};

}  // namespace galley::serve
