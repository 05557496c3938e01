// An answer's control tokens as single bytes that no UTF-8 text contains.
//
// So the automaton reads one string, and markup that the model spelled out of
// ordinary tokens is only text (spec/chat.md 5, recommendation e).
#pragma once

#include <string>
#include <string_view>

#include "serve/control_text.h"

namespace galley::serve {

constexpr char kDsmlMark = '\xF8';
constexpr char kThinkMark = '\xF9';
constexpr char kEndThinkMark = '\xFA';

// The token's text; empty for any other byte.
inline std::string_view mark_text(char byte) {
  switch (byte) {
    case kDsmlMark:
      return kDsml;
    case kThinkMark:
      return kThink;
    case kEndThinkMark:
      return kEndThink;
    default:
      return "";
  }
}

inline bool is_mark(char byte) { return !mark_text(byte).empty(); }

// Marks as their tokens' text.
inline std::string unmarked(std::string_view text) {
  std::string plain;
  for (const char byte : text) {
    if (is_mark(byte)) {
      plain += mark_text(byte);
    } else {
      plain += byte;
    }
  }
  return plain;
}

}  // namespace galley::serve
