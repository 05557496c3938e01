// Shows which differing choices pass as near-ties and which do not.
#include "verify/selection.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace galley::verify {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const std::vector<float> kScores = {10, 1, 5.0F, 4.95F, 7, -3};

ChoiceDifference selection(std::vector<int32_t> measured, std::vector<int32_t> expected,
                           std::vector<uint8_t> pool = {}) {
  return compare_selection(measured, expected, kScores, pool);
}

TEST(Selection, EqualChoices) {
  const auto result = selection({0, 2, 4}, {0, 2, 4});
  EXPECT_EQ(result.different, 0);
  EXPECT_EQ(result.illegitimate, 0);
  EXPECT_EQ(result.overlap(), 1.0);
}

TEST(Selection, ANearTieMayFlip) {
  const auto result = selection({0, 3, 4}, {0, 2, 4});  // 4.95 for 5, allowed 0.1
  EXPECT_EQ(result.different, 2);
  EXPECT_EQ(result.illegitimate, 0);
}

TEST(Selection, AnythingElseMayNot) {
  EXPECT_GT(selection({0, 1, 4}, {0, 2, 4}).illegitimate, 0);
  EXPECT_GT(selection({0, 2}, {0, 2, 4}).illegitimate, 0);
  EXPECT_GT(selection({0, 3, 4, 5}, {0, 2, 4}).illegitimate, 0);
  EXPECT_GT(selection({0, 2, 9}, {0, 2, 4}).illegitimate, 0);
  EXPECT_GT(selection({}, {0}).illegitimate, 0);
  // One more, although its score is a near-tie.
  EXPECT_GT(selection({0, 2, 3, 4}, {0, 2, 4}).illegitimate, 0);
}

TEST(Selection, TheKthIsTakenInsideThePool) {
  const std::vector<uint8_t> pool = {1, 1, 1, 0, 1, 1};
  EXPECT_GT(selection({0, 3, 4}, {0, 2, 4}, pool).illegitimate, 0);  // 3 is outside
  EXPECT_EQ(selection({0, 2, 4}, {0, 2, 4}, pool).illegitimate, 0);
}

ChoiceDifference pools(std::vector<uint8_t> measured, std::vector<uint8_t> expected) {
  return compare_pools(measured, expected, std::vector<float>{9, 1, 3, 2, 3.01F, 0, -kInfinity, 1},
                       2);
}

TEST(Pools, BlocksFlipOnlyNearTheKth) {
  EXPECT_EQ(pools({1, 1, 0, 0, 1, 1, 1, 1}, {1, 1, 0, 0, 1, 1, 1, 1}).different, 0);
  EXPECT_EQ(pools({1, 1, 1, 1, 0, 0, 1, 1}, {1, 1, 0, 0, 1, 1, 1, 1}).illegitimate, 0);
  EXPECT_GT(pools({0, 0, 1, 1, 1, 1, 1, 1}, {1, 1, 0, 0, 1, 1, 1, 1}).illegitimate, 0);
  EXPECT_GT(pools({1, 1, 1, 0, 0, 0, 1, 1}, {1, 1, 0, 0, 1, 1, 1, 1}).illegitimate, 0);  // torn
  EXPECT_GT(pools({1, 1, 1, 1, 1, 1, 0, 0}, {1, 1, 0, 0, 1, 1, 1, 1}).illegitimate, 0);  // forced
  EXPECT_GT(pools({1, 1, 1, 1, 1, 1, 1, 1}, {1, 1, 0, 0, 1, 1, 1, 1}).illegitimate, 0);  // one more
}

}  // namespace
}  // namespace galley::verify
