#include "serve/json_content.h"

#include <algorithm>
#include <optional>
#include <string_view>

namespace galley::serve {
namespace {

constexpr std::string_view kOpenFences[] = {"```json\n", "```\n"};
constexpr std::string_view kCloseFence = "\n```";

bool begins_fence(std::string_view text) {
  return std::any_of(std::begin(kOpenFences), std::end(kOpenFences),
                     [&](std::string_view fence) { return fence.starts_with(text); });
}

// How many of the last bytes may begin the closing fence.
size_t fence_bytes(std::string_view text) {
  size_t bytes = std::min(text.size(), kCloseFence.size());
  while (!text.ends_with(kCloseFence.substr(0, bytes))) --bytes;
  return bytes;
}

}  // namespace

void JsonContent::push(char byte, std::string& out) {
  if (!stop_.empty()) return;
  in_json_ ? push_json(byte, out) : push_prose(byte, out);
}

void JsonContent::push_prose(char byte, std::string& out) {
  held_ += byte;
  if (std::find(std::begin(kOpenFences), std::end(kOpenFences), held_) != std::end(kOpenFences)) {
    held_.clear();
    in_json_ = true;
    return;
  }
  if (begins_fence(held_)) return;
  const bool opens = byte == '{' || byte == '[';
  size_t prose = 1;  // bytes that can be no part of a fence
  while (!begins_fence(std::string_view(held_).substr(prose))) ++prose;
  held_.erase(0, prose);
  if (opens) prose = prose > 1 ? prose - 1 : 0;
  if (prose > 0 && !std::exchange(in_prose_run_, true)) out += ' ';
  if (!opens) return;
  in_json_ = true;
  push_json(byte, out);
}

void JsonContent::push_json(char byte, std::string& out) {
  in_prose_run_ = false;
  held_ += byte;
  if (std::optional<std::string> stop = matcher_.push(byte)) {
    out.append(held_, 0, held_.size() - stop->size());
    held_.clear();
    stop_ = *std::move(stop);
    return;
  }
  if (held_.ends_with(kCloseFence)) {
    out.append(held_, 0, held_.size() - kCloseFence.size());
    held_.clear();
    matcher_.reset();
    in_json_ = false;
    return;
  }
  const size_t ready = held_.size() - std::max(matcher_.partial(), fence_bytes(held_));
  out.append(held_, 0, ready);
  held_.erase(0, ready);
}

void JsonContent::finish(std::string& out) {
  if (in_json_) {
    out += held_;
  } else if (!held_.empty() && !in_prose_run_) {
    out += ' ';
  }
  held_.clear();
}

}  // namespace galley::serve
