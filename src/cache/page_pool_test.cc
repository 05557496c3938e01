// The pool gives each page to one acquirer at a time, counts its holders, and
// reuses pages in the order in which they were freed.
#include "cache/page_pool.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace galley::cache {
namespace {

TEST(PagePool, EmptyPoolIsExhausted) {
  PagePool pool(0);
  const auto page = pool.acquire();
  ASSERT_FALSE(page);
  EXPECT_EQ(page.error().code, ErrorCode::kExhausted);
}

TEST(PagePool, LastHolderFrees) {
  PagePool pool(1);
  const PageId page = pool.acquire().value();
  pool.share(page);
  pool.release(page);
  EXPECT_FALSE(pool.acquire());
  pool.release(page);
  EXPECT_EQ(pool.acquire().value(), page);
}

TEST(PagePool, OldestFreedIsReusedFirst) {
  PagePool pool(3);
  const PageId a = pool.acquire().value();
  const PageId b = pool.acquire().value();
  pool.release(b);
  pool.release(a);
  EXPECT_EQ(pool.acquire().value().index, 2);
  EXPECT_EQ(pool.acquire().value(), b);
  EXPECT_EQ(pool.acquire().value(), a);
}

TEST(PagePool, RandomOperationsMatchASet) {
  const unsigned seed = 20260;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  PagePool pool(17);
  std::multiset<int32_t> held;
  for (int i = 0; i < 20000; ++i) {
    const auto choice = random() % 3;
    if (choice == 0) {
      const auto page = pool.acquire();
      const std::set<int32_t> distinct(held.begin(), held.end());
      ASSERT_EQ(page.has_value(), distinct.size() < 17);
      if (page) {
        ASSERT_EQ(held.count(page->index), 0U);
        held.insert(page->index);
      }
    } else if (!held.empty()) {
      auto it = held.begin();
      std::advance(it, random() % held.size());
      const int32_t index = *it;
      if (choice == 1) {
        pool.share(PageId{index});
        held.insert(index);
      } else {
        pool.release(PageId{index});
        held.erase(it);
      }
      ASSERT_EQ(pool.holders(PageId{index}), static_cast<int32_t>(held.count(index)));
    }
    const std::set<int32_t> distinct(held.begin(), held.end());
    ASSERT_EQ(pool.free_count(), 17 - static_cast<int32_t>(distinct.size()));
  }
}

}  // namespace
}  // namespace galley::cache
