// Shows that every part runs exactly once, for any thread and part count, also
// when jobs follow each other without a pause.
#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace galley {
namespace {

TEST(ThreadPool, RunsEachPartOnce) {
  for (const int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.thread_count(), threads);
    for (const int64_t parts : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> hits(static_cast<size_t>(parts));
      pool.run(parts, [&](int64_t part, int thread) {
        EXPECT_GE(thread, 0);
        EXPECT_LT(thread, threads);
        hits[static_cast<size_t>(part)].fetch_add(1);
      });
      for (const auto& hit : hits) EXPECT_EQ(hit.load(), 1);
    }
  }
}

TEST(ThreadPool, ManyShortJobs) {
  ThreadPool pool(3);
  std::atomic<int64_t> sum{0};
  for (int job = 0; job < 20000; ++job) {
    pool.run(4, [&](int64_t part, int) { sum.fetch_add(part, std::memory_order_relaxed); });
  }
  EXPECT_EQ(sum.load(), 20000 * 6);
}

// Parts of very different length: threads that finish early take from the others.
TEST(ThreadPool, UnevenParts) {
  ThreadPool pool(4);
  for (int job = 0; job < 200; ++job) {
    std::vector<std::atomic<int>> hits(64);
    std::atomic<int64_t> sink{0};
    pool.run(64, [&](int64_t part, int) {
      const int64_t spins = part < 16 ? 2000 : 1;  // all in the first thread's run
      for (int64_t i = 0; i < spins; ++i) sink.fetch_add(1, std::memory_order_relaxed);
      hits[static_cast<size_t>(part)].fetch_add(1);
    });
    for (const auto& hit : hits) ASSERT_EQ(hit.load(), 1);
  }
}

}  // namespace
}  // namespace galley
