// Stop sequences against a search of the whole text, for every way to cut it.
#include "serve/stop_text.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.h"

namespace galley::serve {
namespace {

TEST(StopText, HoldsBackOnlyWhatMayStop) {
  StopText stop({"STOP", "\n\n"});
  EXPECT_EQ(stop.push("ab"), "ab");
  EXPECT_EQ(stop.push("cST"), "c");
  EXPECT_EQ(stop.push("x"), "STx");
  EXPECT_EQ(stop.push("\n"), "");
  EXPECT_EQ(stop.push("S\n"), "\nS");
  EXPECT_FALSE(stop.stopped());
  EXPECT_EQ(stop.push("\nmore"), "");
  EXPECT_TRUE(stop.stopped());
  EXPECT_EQ(stop.push("never"), "");
  EXPECT_EQ(stop.finish(), "");

  StopText unfinished({"STOP"});
  EXPECT_EQ(unfinished.push("aSTO"), "a");
  EXPECT_EQ(unfinished.finish(), "STO");
}

TEST(StopText, AnyCutGivesTheSame) {
  // Two letters only: beginnings overlap all the time.
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    uint64_t draws = 0;
    const auto draw = [&](int below) {
      return static_cast<int>(random_unit(seed, draws++) * below);
    };
    const auto word = [&](int length) {
      std::string text;
      for (int i = 0; i < length; ++i) text += static_cast<char>('a' + draw(2));
      return text;
    };
    const std::string text = word(draw(30));
    std::vector<std::string> stops;
    for (int i = 1 + draw(3); i > 0; --i) stops.push_back(word(2 + draw(5)));
    size_t end = text.size();
    for (const std::string& stop : stops) end = std::min(end, text.find(stop));
    StopText stop(stops);
    std::string got;
    for (size_t at = 0; at < text.size();) {
      const size_t count = std::min<size_t>(1 + draw(4), text.size() - at);
      got += stop.push(std::string_view(text).substr(at, count));
      at += count;
    }
    got += stop.finish();
    EXPECT_EQ(stop.stopped(), end < text.size()) << seed;
    EXPECT_TRUE(text.starts_with(got)) << seed;
    StopText byte_wise(stops);
    std::string reference;
    for (const char c : text) reference += byte_wise.push(std::string_view(&c, 1));
    reference += byte_wise.finish();
    EXPECT_EQ(got, reference) << seed;
  }
}

}  // namespace
}  // namespace galley::serve
