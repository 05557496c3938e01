#include "serve/stop_text.h"

#include <algorithm>
#include <utility>

namespace galley::serve {
namespace {

// Bytes at the end of `text` that some stop begins with, at most one less than all of it.
size_t possible_beginning(std::string_view text, const std::vector<std::string>& stops) {
  size_t longest = 0;
  for (const std::string& stop : stops) {
    for (size_t length = std::min(text.size(), stop.size() - 1); length > longest; --length) {
      if (text.ends_with(std::string_view(stop).substr(0, length))) longest = length;
    }
  }
  return longest;
}

}  // namespace

std::string StopText::push(std::string_view piece) {
  if (stopped_) return "";
  held_ += piece;
  // The one that is complete first, as if bytes came one by one; of those, the longest.
  size_t best_begin = 0;
  size_t best_end = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t begin = held_.find(stop);
    if (begin == std::string::npos) continue;
    const size_t end = begin + stop.size();
    if (end > best_end || (end == best_end && begin >= best_begin)) continue;
    best_begin = begin;
    best_end = end;
  }
  if (best_end != std::string::npos) {
    stopped_ = true;
    held_.resize(best_begin);
    return std::exchange(held_, "");
  }
  const size_t kept = possible_beginning(held_, stops_);
  std::string ready = held_.substr(0, held_.size() - kept);
  held_.erase(0, ready.size());
  return ready;
}

std::string StopText::finish() { return std::exchange(held_, ""); }

}  // namespace galley::serve
