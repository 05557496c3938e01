// One line, UTF-8, and an end.
#include "base/shown_text.h"

#include <gtest/gtest.h>

namespace galley {
namespace {

TEST(ShownText, StaysInItsLine) {
  EXPECT_EQ(shown_text("cat"), "\"cat\"");
  EXPECT_EQ(shown_text("a\n\"b\"\x1b[2J"), "\"a\\n\\\"b\\\"\\u001b[2J\"");
  EXPECT_EQ(shown_text("猫\xff!"), "\"猫!\"");
}

TEST(ShownText, HasAnEndThatBreaksNoCharacter) {
  EXPECT_EQ(shown_text(std::string(64, 'a')), '"' + std::string(64, 'a') + '"');
  EXPECT_EQ(shown_text(std::string(65, 'a')), '"' + std::string(64, 'a') + "...\"");
  EXPECT_EQ(shown_text(std::string(63, 'a') + "猫"), '"' + std::string(63, 'a') + "...\"");
}

}  // namespace
}  // namespace galley
