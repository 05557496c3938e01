#include "base/utf8.h"

#include <cstdint>

namespace galley {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

struct Sequence {
  size_t length = 0;      // bytes that belong together
  bool complete = false;  // a whole code point
  bool cut_off = false;   // a right beginning that the end of the text cuts
};

// The first code point or the maximal broken part of a text that is not empty.
// Ranges of the second byte: Unicode 15, table 3-7.
Sequence first_sequence(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {1, true, false};
  size_t length = 0;
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;  // no surrogates
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;  // up to U+10FFFF
  } else {
    return {1, false, false};
  }
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {i, false, true};
    if (byte(i) < low || byte(i) > high) return {i, false, false};
    low = 0x80;
    high = 0xBF;
  }
  return {length, true, false};
}

}  // namespace

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const Sequence sequence = first_sequence(text);
    if (!sequence.complete) return false;
    text.remove_prefix(sequence.length);
  }
  return true;
}

size_t append_utf8(std::string_view bytes, bool more_may_come, std::string& out) {
  size_t used = 0;
  while (used < bytes.size()) {
    const std::string_view rest = bytes.substr(used);
    const Sequence sequence = first_sequence(rest);
    if (sequence.cut_off && more_may_come) break;
    out += sequence.complete ? rest.substr(0, sequence.length) : kReplacement;
    used += sequence.length;
  }
  return used;
}

std::string to_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  append_utf8(bytes, false, text);
  return text;
}

}  // namespace galley
