#include "model/rope_cache.h"

#include <gtest/gtest.h>

#include <vector>

namespace galley::model {
namespace {

TEST(RopeCache, HasTheTablesBitsSeenBeforeOrNot) {
  const kernels::RopeOptions options = {
      .rotary = 64, .theta = 160000.0, .original_positions = 65536, .factor = 16.0};
  const int64_t limit = RopeCache::kPositionsMax;
  // Twice the same, in the last kept row, and past it.
  const std::vector<int64_t> positions = {0, 5, 5, 77, limit - 1, limit, limit + 1, 900000, 0};
  const auto rows = std::ssize(positions);
  std::vector<float> expected[2];
  for (auto& values : expected) values.resize(static_cast<size_t>(rows * 32));
  kernels::RopeTable(options).fill(positions, kernels::Rows<float>(expected[0].data(), rows, 32),
                                   kernels::Rows<float>(expected[1].data(), rows, 32));
  for (const int64_t positions_max : {int64_t{0}, int64_t{6}, int64_t{1} << 20}) {
    RopeCache cache(options, positions_max);
    for (int turn = 0; turn < 2; ++turn) {
      std::vector<float> cos(expected[0].size(), -7.0F);
      std::vector<float> sin(expected[1].size(), -7.0F);
      cache.fill(positions, kernels::Rows<float>(cos.data(), rows, 32),
                 kernels::Rows<float>(sin.data(), rows, 32));
      EXPECT_EQ(cos, expected[0]) << positions_max;
      EXPECT_EQ(sin, expected[1]) << positions_max;
    }
  }
}

}  // namespace
}  // namespace galley::model
