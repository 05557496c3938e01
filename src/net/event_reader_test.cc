// Events come out whole and in order, however the bytes were cut.
#include "net/event_reader.h"

#include <gtest/gtest.h>

#include <vector>

namespace galley::net {
namespace {

constexpr std::string_view kStream =
    ": wait\n\ndata: {\"a\":1}\r\n\r\nevent: delta\ndata: one\ndata:two\n\n\n\nid: 4\n\ndata:\n\n"
    "data: [DONE]\n\n";

TEST(EventReader, EveryCutGivesTheSameEvents) {
  const std::vector<std::string> expected = {"{\"a\":1}", "one\ntwo", "", "[DONE]"};
  for (size_t step = 1; step <= kStream.size(); ++step) {
    std::vector<std::string> events;
    EventReader reader([&](std::string_view data) { events.emplace_back(data); });
    for (size_t at = 0; at < kStream.size(); at += step) {
      ASSERT_TRUE(reader.push(kStream.substr(at, step)));
    }
    EXPECT_EQ(events, expected) << "pieces of " << step;
  }
}

TEST(EventReader, ALineWithoutEndIsRefused) {
  EventReader reader([](std::string_view) { FAIL(); });
  const std::string piece(size_t{1} << 20, 'x');
  size_t pieces = 0;
  while (reader.push(piece)) ASSERT_LT(++pieces, 32U);
  EXPECT_EQ(pieces, kEventLineBytesMax / piece.size());
}

}  // namespace
}  // namespace galley::net
