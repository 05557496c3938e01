#include "server/trace_context.h"

#include <algorithm>

namespace galley::server {
namespace {

bool is_lower_hex(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool is_zero(std::string_view text) {
  return text.find_first_not_of('0') == std::string_view::npos;
}

}  // namespace

bool is_request_id(std::string_view text) {
  return !text.empty() && text.size() <= kRequestIdBytesMax &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return c > 0x20 && c < 0x7F && c != '"' && c != '\\' && c != '=';
         });
}

std::string random_hex(std::mt19937_64& random, int digits) {
  std::string text;
  while (static_cast<int>(text.size()) < digits) {
    uint64_t bits = random();
    for (int i = 0; i < 16 && static_cast<int>(text.size()) < digits; ++i, bits >>= 4U) {
      text += "0123456789abcdef"[bits & 15U];
    }
  }
  return text;
}

std::optional<TraceParent> parse_traceparent(std::string_view text) {
  // A later version may append fields; what this one knows stands at the same places.
  constexpr size_t kSize = 55;
  if (text.size() < kSize || text[2] != '-' || text[35] != '-' || text[52] != '-') {
    return std::nullopt;
  }
  const std::string_view version = text.substr(0, 2);
  if (!is_lower_hex(version) || version == "ff") return std::nullopt;
  if (version == "00" ? text.size() != kSize : text.size() > kSize && text[kSize] != '-') {
    return std::nullopt;
  }
  TraceParent trace = {std::string(text.substr(3, 32)), std::string(text.substr(36, 16)),
                       std::string(text.substr(53, 2))};
  for (const std::string& part : {trace.trace_id, trace.parent_id, trace.flags}) {
    if (!is_lower_hex(part)) return std::nullopt;
  }
  if (is_zero(trace.trace_id) || is_zero(trace.parent_id)) return std::nullopt;
  return trace;
}

std::string format_traceparent(const TraceParent& trace) {
  return "00-" + trace.trace_id + "-" + trace.parent_id + "-" + trace.flags;
}

}  // namespace galley::server
