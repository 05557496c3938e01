// The numbers of a load test: percentiles by rank, failures apart, goodput by both limits.
#include "tools/load_result.h"

#include <gtest/gtest.h>

namespace galley::tools {
namespace {

TEST(LoadResult, PercentilesAreValuesThatWereSeen) {
  std::vector<double> values;
  for (int i = 100; i >= 1; --i) values.push_back(i);
  EXPECT_EQ(percentile(values, 0.5), 50);
  EXPECT_EQ(percentile(values, 0.99), 99);
  EXPECT_EQ(percentile(values, 1), 100);
  EXPECT_EQ(percentile({7}, 0.5), 7);
  EXPECT_EQ(percentile({}, 0.5), 0);
}

TEST(LoadResult, GoodIsWithinBothLimitsAndFailuresNever) {
  std::vector<LoadSample> samples(4);
  for (LoadSample& sample : samples) {
    sample.first_token_s = 0.5;
    sample.total_s = 1.5;
    sample.output_tokens = 11;  // 0.1 s a token after the first
    sample.prompt_tokens = 20;
  }
  samples[1].first_token_s = 1.2;  // the first token is late
  samples[2].total_s = 2.6;        // the others are slow
  samples[3].failed = true;
  samples[3].failure = "503";
  const auto sum = summarise(samples, 2.0, {.first_token_s = 1.0, .per_token_s = 0.101});
  EXPECT_EQ(sum.requests, 4);
  EXPECT_EQ(sum.failed, 1);
  EXPECT_EQ(sum.first_failure, "503");
  EXPECT_DOUBLE_EQ(sum.good_share, 0.25);
  EXPECT_DOUBLE_EQ(sum.good_requests_per_s, 0.5);
  EXPECT_DOUBLE_EQ(sum.requests_per_s, 1.5);
  EXPECT_DOUBLE_EQ(sum.output_tokens_per_s, 16.5);
  EXPECT_EQ(sum.prompt_tokens, 60);
  EXPECT_DOUBLE_EQ(sum.first_token_s.most, 1.2);
}

TEST(LoadResult, PrefillKeepsAShareOfItsLoneRate) {
  const auto sample = [](double first_token_s, int64_t cached) {
    LoadSample made;
    made.prompt_tokens = 2000;
    made.cached_tokens = cached;
    made.first_token_s = first_token_s;
    return made;
  };
  const std::vector<LoadSample> alone = {sample(0.4, 0), sample(0.5, 0), sample(9, 0)};
  std::vector<LoadSample> beside = {sample(1, 0), sample(1, 1000), sample(0.8, 0), sample(1, 0)};
  beside[3].failed = true;
  beside[3].failure = "429";
  const PrefillSummary sum = summarise_prefill(alone, beside);
  EXPECT_EQ(sum.prompts, 4);
  EXPECT_EQ(sum.failed, 1);
  EXPECT_EQ(sum.first_failure, "429");
  EXPECT_EQ(sum.tokens_each, 2000);
  EXPECT_DOUBLE_EQ(sum.lone_tokens_per_s, 4000);
  EXPECT_DOUBLE_EQ(sum.tokens_per_s, 2000);
  EXPECT_DOUBLE_EQ(sum.kept_share, 0.5);
  EXPECT_DOUBLE_EQ(sum.first_token_s.median, 1);
  EXPECT_EQ(summarise_prefill({}, {}).kept_share, 0);
}

}  // namespace
}  // namespace galley::tools
