// Shows which bytes are UTF-8 and how broken ones are replaced, whole and byte
// by byte: both must give the same text.
#include "base/utf8.h"

#include <gtest/gtest.h>

namespace galley {
namespace {

constexpr const char* kR = "\xEF\xBF\xBD";

std::string byte_by_byte(std::string_view bytes) {
  std::string out;
  std::string held;
  for (const char byte : bytes) {
    held += byte;
    held.erase(0, append_utf8(held, true, out));
    EXPECT_LE(held.size(), 3U);
  }
  append_utf8(held, false, out);
  return out;
}

TEST(Utf8, KnowsValidText) {
  for (const char* text : {"", "a", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80",
                           "\xF4\x8F\xBF\xBF", "\xED\x9F\xBF"}) {
    EXPECT_TRUE(is_utf8(text)) << text;
    EXPECT_EQ(to_utf8(text), text);
    EXPECT_EQ(byte_by_byte(text), text);
  }
}

TEST(Utf8, ReplacesMaximalParts) {
  const std::string r = kR;
  const std::pair<std::string, std::string> cases[] = {
      {"\x80", r},                          // a continuation alone
      {"\xC0\xAF", r + r},                  // overlong
      {"\xE0\x80\x80", r + r + r},          // overlong
      {"\xED\xA0\x80", r + r + r},          // surrogate
      {"\xF4\x90\x80\x80", r + r + r + r},  // beyond U+10FFFF
      {"\xE2\x82", r},                      // cut off
      {"\xF0\x9F\x98", r},                  // cut off
      {"\xF0\x9F\x98"
       "a",
       r + "a"},  // cut off inside
      {"\xE2\x82\xE2\x82\xAC", r + "\xE2\x82\xAC"},
      {"a\xFF"
       "b",
       "a" + r + "b"},
  };
  for (const auto& [bytes, text] : cases) {
    EXPECT_FALSE(is_utf8(bytes));
    EXPECT_EQ(to_utf8(bytes), text);
    EXPECT_EQ(byte_by_byte(bytes), text);
  }
}

TEST(Utf8, EveryTwoByteTextIsTheSameBothWays) {
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      const std::string bytes = {static_cast<char>(first), static_cast<char>(second), 'x'};
      EXPECT_EQ(byte_by_byte(bytes), to_utf8(bytes));
      EXPECT_TRUE(is_utf8(to_utf8(bytes)));
    }
  }
}

}  // namespace
}  // namespace galley
