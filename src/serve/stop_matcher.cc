#include "serve/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace galley::serve {
namespace {

// The longest beginning of `text` that ends with this byte, after `matched` bytes of it.
size_t advance(const std::string& text, const std::vector<size_t>& fallback, size_t matched,
               char byte) {
  while (matched > 0 && text[matched] != byte) matched = fallback[matched - 1];
  return text[matched] == byte ? matched + 1 : 0;
}

}  // namespace

StopMatcher::StopMatcher(std::vector<std::string> stops) {
  for (std::string& stop : stops) {
    Sequence sequence;
    sequence.fallback.assign(stop.size(), 0);
    for (size_t i = 1; i < stop.size(); ++i) {
      sequence.fallback[i] = advance(stop, sequence.fallback, sequence.fallback[i - 1], stop[i]);
    }
    sequence.text = std::move(stop);
    sequences_.push_back(std::move(sequence));
  }
}

std::optional<std::string> StopMatcher::push(char byte) {
  const Sequence* complete = nullptr;
  for (Sequence& sequence : sequences_) {
    sequence.matched = advance(sequence.text, sequence.fallback, sequence.matched, byte);
    if (sequence.matched < sequence.text.size()) continue;
    if (complete == nullptr || sequence.text.size() > complete->text.size()) complete = &sequence;
  }
  if (complete == nullptr) return std::nullopt;
  std::string text = complete->text;
  reset();
  return text;
}

size_t StopMatcher::partial() const {
  size_t longest = 0;
  for (const Sequence& sequence : sequences_) longest = std::max(longest, sequence.matched);
  return longest;
}

void StopMatcher::reset() {
  for (Sequence& sequence : sequences_) sequence.matched = 0;
}

}  // namespace galley::serve
