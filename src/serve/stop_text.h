// Ends a text at the first of several stop sequences while it arrives in pieces.
//
// Text that may turn out to begin a stop sequence is held back; the sequence
// itself is never handed on. The result does not depend on how the text is cut.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace galley::serve {

constexpr size_t kStopTextsMax = 16;
constexpr size_t kStopTextBytesMax = 256;

class StopText {
 public:
  // None of them empty.
  explicit StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // What became final with this piece; nothing once stopped.
  std::string push(std::string_view piece);
  // What was held back, when the text ended without a stop.
  std::string finish();

  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;  // shorter than the longest stop
  bool stopped_ = false;
};

}  // namespace galley::serve
