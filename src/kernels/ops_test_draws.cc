// Tokens drawn from rows of logits, on backends that draw.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "base/random.h"
#include "kernels/ops_test_cases.h"

namespace galley::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The tokens that may be drawn: where the request's unit falls in the running sum, by token, of
// exp(logit / temperature) over those that stay, or a neighbour of a border that is nearer than
// rounding. Sorts everything, in double.
std::vector<int32_t> tokens_of(std::span<const float> logits, const DrawRequest& request) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater<>(), [&](int32_t token) { return logits[token]; });
  if (request.temperature < 1e-5F) return {order.front()};
  const auto weight = [&](int32_t token) {
    return std::exp((static_cast<double>(logits[token]) - logits[order.front()]) /
                    request.temperature);
  };
  std::vector<double> reached;  // with each of the best
  for (const int32_t token : order) {
    if (weight(token) < request.min_p || weight(token) < 1e-37) break;
    if (request.top_k > 0 && std::ssize(reached) == request.top_k) break;
    reached.push_back((reached.empty() ? 0.0 : reached.back()) + weight(token));
  }
  const double wanted = request.top_p * reached.back();
  std::vector<int32_t> tokens;
  // One more or one less where the share that the last one completes is met within rounding.
  for (const double slack : {-1e-6, 1e-6}) {
    const auto end = std::ranges::lower_bound(reached, wanted * (1.0 + slack));
    const auto count = std::min(end - reached.begin() + 1, std::ssize(reached));
    std::vector<int32_t> kept(order.begin(), order.begin() + count);
    std::ranges::sort(kept);
    const double total = reached[static_cast<size_t>(count) - 1];
    const double target =
        random_unit(request.seed, static_cast<uint64_t>(request.position), request.stream) * total;
    double sum = 0.0;
    for (const int32_t token : kept) {
      const double begin = sum;
      sum += weight(token);
      if (target >= begin - 1e-5 * total && target <= sum + 1e-5 * total) tokens.push_back(token);
    }
  }
  return tokens;
}

// Some rows from everything, some from the best alone.
void cut(DrawRequest& request, int64_t row) {
  if (row % 3 == 0) return;
  if (row % 3 == 1) request.top_p = 0.5F + 0.06F * static_cast<float>(row % 8);
  if (row % 5 < 2) request.top_k = 1 + static_cast<int32_t>(row * 7 % 60);
  if (row % 7 < 3) request.min_p = 0.02F;
}

TEST_P(OpsTest, DrawsAgree) {
  if (!ops().draws()) GTEST_SKIP() << ops().name() << " draws no tokens";
  Random random(31);
  for (const int64_t vocab : {5, 64, 4096, 4097, 8192, 8193, 20011, 129280, 140001}) {
    SCOPED_TRACE(testing::Message() << vocab << " tokens");
    const int64_t rows = 37;
    std::vector<float> logits = random.f32(rows * vocab);
    for (float& logit : logits) logit *= 4.0F;
    // Rows of few different logits, whose equals are divided by their tokens.
    for (int64_t i = 0; i < 6 * vocab; ++i) {
      float& logit = logits[static_cast<size_t>(31 * vocab + i)];
      logit = std::round(logit * 0.5F) - 1.0F;  // -0 among them
    }
    std::vector<DrawRequest> requests;
    for (int64_t r = 0; r < rows; ++r) {
      requests.push_back({.temperature = r % 4 == 0 ? 0.0F : 0.3F * static_cast<float>(r % 4),
                          .seed = static_cast<uint64_t>(r / 8),
                          .stream = static_cast<uint64_t>(r % 2),
                          .position = 1000 + r});
      cut(requests.back(), r);
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
