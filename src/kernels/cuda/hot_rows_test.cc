// Every row that a lookup reads is the right one: a cache that follows HotRows, compared with the
// table over random calls. What a call reads or fills is not given away within it.
#include "kernels/cuda/hot_rows.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace galley::kernels::cuda {
namespace {

TEST(HotRows, ReadsTheRowsOfTheTable) {
  std::mt19937 random(3);
  for (const int64_t places : {1, 8, 64, 1000}) {
    HotRows rows(places);
    EXPECT_LE(rows.places(), std::max<int64_t>(8, places));
    std::vector<int64_t> kept(static_cast<size_t>(rows.places()),
                              -1);  // contents: the row's number
    int64_t cells = 0;
    for (int call = 0; call < 300; ++call) {
      rows.begin_call();
      std::vector<int64_t> wanted;
      std::vector<HotRows::Found> found;
      std::vector<int64_t> staged;
      for (int i = 0; i < 40; ++i) {
        // Some rows often, most of them hardly ever.
        const auto row = static_cast<int64_t>(random() % (random() % 4 == 0 ? 100'000 : 60));
        wanted.push_back(row);
        found.push_back(rows.find(row));
        if (found.back().staged == std::ssize(staged)) staged.push_back(row);
        ++cells;
      }
      ASSERT_EQ(rows.staged_count(), std::ssize(staged));
      // As the kernel does it, in the worst order: everything is kept before anything is read.
      std::set<int32_t> filled;
      for (const HotRows::Found& one : found) {
        if (one.place < 0 || one.staged < 0) continue;
        EXPECT_TRUE(filled.insert(one.place).second) << "filled twice in a call";
        kept[static_cast<size_t>(one.place)] = staged[static_cast<size_t>(one.staged)];
      }
      for (size_t i = 0; i < found.size(); ++i) {
        const HotRows::Found& one = found[i];
        ASSERT_TRUE(one.place >= 0 || one.staged >= 0);
        const int64_t read = one.staged >= 0 ? staged[static_cast<size_t>(one.staged)]
                                             : kept[static_cast<size_t>(one.place)];
        ASSERT_EQ(read, wanted[i]) << "call " << call;
      }
    }
    EXPECT_EQ(rows.hits() + rows.misses(), cells);
    if (places == 1000) {
      EXPECT_GT(rows.hits(), cells / 2);  // sixty rows are three quarters of all
    }
  }
}

TEST(HotRows, TheLeastRecentlyUsedGivesWay) {
  HotRows rows(8);  // one set
  for (int64_t row = 0; row < 8; ++row) {
    rows.begin_call();
    EXPECT_GE(rows.find(row).staged, 0);
  }
  rows.begin_call();
  EXPECT_EQ(rows.find(0).staged, -1);  // touched again: 1 is now the oldest
  rows.begin_call();
  const HotRows::Found ninth = rows.find(100);
  EXPECT_GE(ninth.place, 0);
  rows.begin_call();
  EXPECT_EQ(rows.find(0).staged, -1);
  EXPECT_GE(rows.find(1).staged, 0);
}

TEST(HotRows, ACallThatFillsItsSetGoesPastIt) {
  HotRows rows(8);
  rows.begin_call();
  for (int64_t row = 0; row < 12; ++row) {
    const HotRows::Found found = rows.find(row);
    EXPECT_EQ(found.staged, row);
    EXPECT_EQ(found.place >= 0, row < 8);
  }
  // Brought already: read from there, not from the place that is being filled.
  const HotRows::Found again = rows.find(3);
  EXPECT_EQ(again.place, -1);
  EXPECT_EQ(again.staged, 3);
}

}  // namespace
}  // namespace galley::kernels::cuda
