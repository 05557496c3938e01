// The pool against a trivially right model: no block is given twice or lost, held
// snapshots stay, and room is made least recently used first.
#include "cache/snapshot_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace galley::cache {
namespace {

TEST(SnapshotPool, RoomIsMadeLeastRecentlyUsedFirst) {
  SnapshotPool pool(10, 8);
  EXPECT_FALSE(pool.take(11).has_value());
  for (int32_t page = 0; page < 3; ++page) {
    const SnapshotId id = pool.take(3).value();
    pool.tie(id, PageId{page}, {.exact = page == 1, .window_floor = page});
    pool.release(id);
  }
  EXPECT_EQ(pool.used_blocks(), 9);
  // A use makes 0 the newest; 1 is held, so 2 goes.
  pool.hold(*pool.of_page(PageId{0}));
  pool.release(*pool.of_page(PageId{0}));
  const SnapshotId held = *pool.of_page(PageId{1});
  pool.hold(held);
  const SnapshotId resume = pool.take(4).value();
  EXPECT_TRUE(pool.of_page(PageId{0}).has_value());
  EXPECT_FALSE(pool.of_page(PageId{2}).has_value());
  EXPECT_EQ(pool.evictions(), 1);
  EXPECT_TRUE(pool.state(held).exact);
  EXPECT_EQ(pool.state(held).window_floor, 1);
  EXPECT_FALSE(pool.take(7).has_value()) << "three are held by somebody, four are not";
  EXPECT_TRUE(pool.of_page(PageId{0}).has_value()) << "a refusal costs nobody anything";
  // Held through the end of its page.
  pool.drop(PageId{1});
  EXPECT_FALSE(pool.of_page(PageId{1}).has_value());
  EXPECT_EQ(pool.blocks(held).size(), 3U);
  pool.release(held);
  pool.release(resume);
  EXPECT_EQ(pool.used_blocks(), 3);
}

TEST(SnapshotPool, AnotherSnapshotOfAPageTakesItsPlace) {
  SnapshotPool pool(10, 2);
  const SnapshotId first = pool.take(2).value();
  pool.tie(first, PageId{1}, {});
  pool.release(first);
  const SnapshotId second = pool.take(2).value();
  pool.tie(second, PageId{1}, {.exact = true});
  pool.release(second);
  EXPECT_EQ(pool.used_blocks(), 2);
  EXPECT_TRUE(pool.state(*pool.of_page(PageId{1})).exact);
  pool.drop(PageId{1});
  EXPECT_EQ(pool.used_blocks(), 0);
}

TEST(SnapshotPool, RandomHistoriesLoseNoBlock) {
  std::mt19937 random(5);
  SnapshotPool pool(40, 12);
  std::map<int32_t, int> holders;  // of ids that the test holds
  for (int step = 0; step < 100'000; ++step) {
    const auto page = PageId{static_cast<int32_t>(random() % 12)};
    switch (random() % 5) {
      case 0:
      case 1: {
        const auto wanted = static_cast<int32_t>(1 + random() % 12);
        const auto id = pool.take(wanted);
        if (!id) break;
        ASSERT_EQ(std::ssize(pool.blocks(*id)), wanted);
        ASSERT_FALSE(holders.contains(id->index));
        holders[id->index] = 1;
        if (random() % 2 == 0) pool.tie(*id, page, {});
        break;
      }
      case 2:
        if (const auto id = pool.of_page(page)) {
          pool.hold(*id);
          ++holders[id->index];
        }
        break;
      case 3:
        pool.drop(page);
        break;
      default:
        if (holders.empty()) break;
        auto one = holders.begin();
        std::advance(one, random() % holders.size());
        pool.release(SnapshotId{one->first});
        if (--one->second == 0) holders.erase(one);
    }
    std::set<int32_t> live;
    for (const auto& [id, count] : holders) live.insert(id);
    for (int32_t i = 0; i < 12; ++i) {
      if (const auto id = pool.of_page(PageId{i})) live.insert(id->index);
    }
    std::set<int32_t> blocks;
    size_t sum = 0;
    for (const int32_t id : live) {
      const std::span<const int32_t> own = pool.blocks(SnapshotId{id});
      blocks.insert(own.begin(), own.end());
      sum += own.size();
    }
    ASSERT_EQ(blocks.size(), sum) << "a block given twice";
    ASSERT_EQ(pool.used_blocks(), static_cast<int32_t>(sum)) << "a block lost";
  }
}

}  // namespace
}  // namespace galley::cache
