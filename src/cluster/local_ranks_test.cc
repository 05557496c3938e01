// Ranks that are threads: everybody gets everybody's value in every meeting, and whoever waits for
// a rank that left is told.
#include "cluster/local_ranks.h"

#include <gtest/gtest.h>

#include <thread>

namespace galley::cluster {
namespace {

TEST(LocalRanks, EveryRankGetsEveryValueOfEveryMeeting) {
  constexpr int32_t kRanks = 3;
  constexpr int64_t kMeetings = 500;
  LocalRanks all(kRanks);
  std::vector<int64_t> wrong(kRanks, 0);
  {
    std::vector<std::jthread> threads;
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank, self = all.join(rank)] {
        EXPECT_EQ(self->rank(), rank);
        EXPECT_EQ(self->size(), kRanks);
        for (int64_t i = 0; i < kMeetings; ++i) {
          const auto values = self->exchange(10 * i + rank);
          const std::vector<int64_t> expected = {10 * i, 10 * i + 1, 10 * i + 2};
          if (!values || *values != expected) ++wrong[static_cast<size_t>(rank)];
        }
      });
    }
  }
  // The last rank to be destroyed leaves after all meetings.
  EXPECT_EQ(wrong, std::vector<int64_t>(kRanks, 0));
}

TEST(LocalRanks, RoomsAreTheOthersAddresses) {
  LocalRanks all(2);
  std::byte rooms[2] = {};
  std::vector<std::byte*> seen;
  const auto first = all.join(0);
  std::jthread other([&, self = all.join(1)] { static_cast<void>(self->share(&rooms[1])); });
  seen = first->share(&rooms[0]).value();
  EXPECT_EQ(seen, (std::vector<std::byte*>{&rooms[0], &rooms[1]}));
}

TEST(LocalRanks, WhoLeavesIsNotWaitedFor) {
  LocalRanks all(2);
  const auto first = all.join(0);
  std::jthread other([self = all.join(1)]() mutable { self.reset(); });
  EXPECT_FALSE(first->exchange(1));
  EXPECT_FALSE(first->exchange(2));
}

}  // namespace
}  // namespace galley::cluster
