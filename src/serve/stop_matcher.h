// Finds the first of several stop sequences in a text that comes byte by byte.
//
// Knuth, Morris and Pratt 1977: each byte costs a constant a sequence, however
// the text is cut.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace galley::serve {

class StopMatcher {
 public:
  // None of them empty.
  explicit StopMatcher(std::vector<std::string> stops);

  // The sequence that this byte completes, the longest if several; counting starts anew then.
  std::optional<std::string> push(char byte);
  // How many of the last bytes may turn out to begin a sequence.
  size_t partial() const;
  void reset();
  bool empty() const { return sequences_.empty(); }

 private:
  struct Sequence {
    std::string text;
    std::vector<size_t> fallback;  // [i]: longest proper border of the first i + 1 bytes
    size_t matched = 0;
  };
  std::vector<Sequence> sequences_;
};

}  // namespace galley::serve
