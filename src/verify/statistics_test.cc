// Shows the statistics on numbers worked out by hand, and that a NaN never
// passes for a small error.
#include "verify/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace galley::verify {
namespace {

using Logits = kernels::Rows<const float>;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(Statistics, EqualLogitsDeviateByNothing) {
  const std::vector<float> logits = {1, 2, 3, -1, 0, 4};
  const auto result = compare_logits(Logits(logits.data(), 2, 3), Logits(logits.data(), 2, 3));
  EXPECT_EQ(result.rows, 2);
  EXPECT_EQ(result.rel_rms, 0);
  EXPECT_EQ(result.mean_kl, 0);
  EXPECT_EQ(result.flips, 0);
}

TEST(Statistics, RelativeRmsDividesByTheSpreadOfTheExpectedLogits) {
  const std::vector<float> expected = {-2, 2, -2, 2};  // standard deviation 2
  const std::vector<float> measured = {-1, 3, -1, 3};  // everything off by 1
  const auto result = compare_logits(Logits(measured.data(), 2, 2), Logits(expected.data(), 2, 2));
  EXPECT_DOUBLE_EQ(result.rel_rms, 0.5);
  EXPECT_NEAR(result.mean_kl, 0, 1e-12);  // a shift changes no probability
}

TEST(Statistics, DivergenceOfTwoCoins) {
  const std::vector<float> expected = {0, 0};
  const std::vector<float> measured = {0, std::log(3.0F)};
  const auto result = compare_logits(Logits(measured.data(), 1, 2), Logits(expected.data(), 1, 2));
  EXPECT_NEAR(result.mean_kl, 0.5 * std::log(2.0) + 0.5 * std::log(2.0 / 3.0), 1e-6);
}

TEST(Statistics, FlipsReportTheExpectedGap) {
  const std::vector<float> expected = {0, 3, 1, 5, 4.5F, 0};
  const std::vector<float> measured = {4, 3, 1, 5, 4.5F, 0};
  const auto result = compare_logits(Logits(measured.data(), 2, 3), Logits(expected.data(), 2, 3));
  EXPECT_EQ(result.flips, 1);
  EXPECT_DOUBLE_EQ(result.flip_fraction, 0.5);
  EXPECT_DOUBLE_EQ(result.flip_gap, 2);
}

TEST(Statistics, NanIsAnInfiniteError) {
  const std::vector<float> expected = {0, 3, 1};
  const std::vector<float> measured = {0, 3, kNan};
  const auto result = compare_logits(Logits(measured.data(), 1, 3), Logits(expected.data(), 1, 3));
  EXPECT_TRUE(std::isinf(result.rel_rms));
  EXPECT_TRUE(std::isinf(result.mean_kl));
  EXPECT_EQ(result.flips, 1);
  EXPECT_TRUE(std::isinf(relative_error(measured, expected)));
  EXPECT_TRUE(std::isinf(quantile({0, relative_error(measured, expected)}, 0.99)));
}

TEST(Statistics, RowsTakeTheirWorstPart) {
  const std::vector<float> expected = {3, 4, 0, 10};
  const std::vector<float> measured = {3, 4, 0, 9};
  EXPECT_DOUBLE_EQ(worst_part_error(measured, expected, 2), 0.1);
  EXPECT_TRUE(std::isinf(relative_error(std::vector<float>{1}, std::vector<float>{0})));
  EXPECT_EQ(relative_error(std::vector<float>{0}, std::vector<float>{0}), 0);
}

TEST(Statistics, QuantilesInterpolate) {
  EXPECT_DOUBLE_EQ(quantile({4, 1, 3, 2}, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(quantile({0, 10}, 0.99), 9.9);
  EXPECT_DOUBLE_EQ(quantile({7}, 0.99), 7);
  EXPECT_EQ(quantile({}, 0.5), 0);
  EXPECT_DOUBLE_EQ(share_above(std::vector<double>{0.1, 0.2, 0.3, 0.4}, 0.2), 0.5);
}

}  // namespace
}  // namespace galley::verify
