#include "serve/stop_text.h"

#include <optional>

namespace galley::serve {

std::string StopText::push(std::string_view piece) {
  for (const char byte : piece) {
    if (stopped()) return "";
    held_ += byte;
    std::optional<std::string> stop = matcher_.push(byte);
    if (!stop) continue;
    held_.resize(held_.size() - stop->size());
    stop_ = *std::move(stop);
    return std::exchange(held_, "");
  }
  const size_t ready_bytes = held_.size() - matcher_.partial();
  std::string ready = held_.substr(0, ready_bytes);
  held_.erase(0, ready_bytes);
  return ready;
}

}  // namespace galley::serve
