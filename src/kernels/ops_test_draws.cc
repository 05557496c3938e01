// Tokens drawn from rows of logits, on backends that draw.
#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "base/random.h"
#include "kernels/ops_test_cases.h"

namespace galley::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The token whose share of the running sum of exp(logit / temperature) holds the request's unit,
// or the neighbours of a border that is nearer than rounding.
std::vector<int32_t> tokens_of(std::span<const float> logits, const DrawRequest& request) {
  float peak = -kInfinity;
  int32_t best = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] <= peak) continue;
    peak = logits[i];
    best = static_cast<int32_t>(i);
  }
  if (request.temperature < 1e-5F) return {best};
  std::vector<double> sums;
  double total = 0.0;
  for (const float logit : logits) {
    total += std::exp((static_cast<double>(logit) - peak) / request.temperature);
    sums.push_back(total);
  }
  const double target =
      random_unit(request.seed, static_cast<uint64_t>(request.position), request.stream) * total;
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < sums.size(); ++i) {
    const double begin = i == 0 ? 0.0 : sums[i - 1];
    if (target >= begin - 1e-5 * total && target <= sums[i] + 1e-5 * total && sums[i] > begin) {
      tokens.push_back(static_cast<int32_t>(i));
    }
  }
  return tokens;
}

TEST_P(OpsTest, DrawsAgree) {
  if (!ops().draws()) GTEST_SKIP() << ops().name() << " draws no tokens";
  Random random(31);
  for (const int64_t vocab : {5, 64, 4096, 4097, 20011}) {
    SCOPED_TRACE(testing::Message() << vocab << " tokens");
    const int64_t rows = 37;
    std::vector<float> logits = random.f32(rows * vocab);
    for (float& logit : logits) logit *= 4.0F;
    std::vector<DrawRequest> requests;
    for (int64_t r = 0; r < rows; ++r) {
      requests.push_back({.temperature = r % 4 == 0 ? 0.0F : 0.3F * static_cast<float>(r % 4),
                          .seed = static_cast<uint64_t>(r / 8),
                          .stream = static_cast<uint64_t>(r % 2),
                          .position = 1000 + r});
    }
    // Ties go to the lower token; a masked row's best; NaN; nothing finite.
    logits[0] = logits[vocab - 1] = 100.0F;
    for (int64_t i = 0; i + 1 < vocab; ++i) logits[vocab + i] = -kInfinity;
    logits[2 * vocab + 3] = std::numeric_limits<float>::quiet_NaN();
    for (int64_t i = 0; i < vocab; ++i) logits[3 * vocab + i] = -kInfinity;
    std::vector<DrawnToken> drawn(static_cast<size_t>(rows), DrawnToken{-7, -7, -7.0F});
    ops().draw(as_rows(logits, rows), requests, drawn.data());
    for (int64_t r = 0; r < rows; ++r) {
      const DrawnToken& token = drawn[static_cast<size_t>(r)];
      if (r == 2 || r == 3) {
        EXPECT_EQ(token.valid, 0) << r;
        continue;
      }
      ASSERT_EQ(token.valid, 1) << r;
      const std::span<const float> row(logits.data() + r * vocab, static_cast<size_t>(vocab));
      const std::vector<int32_t> expected = tokens_of(row, requests[static_cast<size_t>(r)]);
      EXPECT_NE(std::find(expected.begin(), expected.end(), token.token), expected.end())
          << "row " << r << " gave " << token.token << ", expected " << expected.front();
      // Alone as in company.
      DrawnToken alone;
      ops().draw(as_rows(logits, rows).slice(r, 1), {&requests[static_cast<size_t>(r)], 1}, &alone);
      EXPECT_EQ(alone.token, token.token) << r;
      EXPECT_EQ(alone.logprob, token.logprob) << r;
    }
    EXPECT_EQ(drawn[0].token, 0);
    EXPECT_EQ(drawn[1].token, vocab - 1);
  }
}

}  // namespace
}  // namespace galley::kernels
