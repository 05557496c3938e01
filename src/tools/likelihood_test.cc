// The likelihood of a text against one row at a time and a log-softmax in double
// precision; and that windows share nothing.
#include "tools/likelihood.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/thread_pool.h"
#include "engine/local_executor.h"
#include "tools/backend.h"

namespace galley::tools {
namespace {

class LikelihoodTest : public testing::Test {
 protected:
  void SetUp() override {
    backend_ = make_backend("auto", 2).value();
    model_ = model::Model::open(GALLEY_SOURCE_DIR "/tests/golden/g1-micro-text/checkpoint").value();
    for (int32_t i = 0; i < 100; ++i) tokens_.push_back((i * 37 + 11) % 500);
  }

  double measured(std::span<const int32_t> tokens, int64_t window) {
    return Likelihood::create(*model_, *backend_.ops, window, 0)
        .value()
        ->nats(tokens, [](int64_t) { return true; })
        .value();
  }

  // One window, by decode steps.
  double plain(std::span<const int32_t> tokens) {
    const auto sizes = engine::generator_options(model_->config(), 1, 1, 256);
    model::KvOptions kv;
    kv.page_tokens = sizes.page_tokens;
    auto cache =
        model::KvCache::create(model_->config(), kv, sizes.page_count, 1, kernels::host_memory())
            .value();
    model::StepOptions options;
    options.replay = model::DecoderReplay::kOff;
    auto step = model::Step::create(*model_, *cache, *backend_.ops, options).value();
    std::vector<int32_t> pages(sizes.page_count);
    std::iota(pages.begin(), pages.end(), 0);
    std::vector<int32_t> input = {0};
    input.insert(input.end(), tokens.begin(), tokens.end());
    double nats = 0;
    for (size_t i = 0; i < tokens.size(); ++i) {
      model::SequencePlan plan;
      plan.first_position = static_cast<int64_t>(i);
      plan.tokens = std::span<const int32_t>(input).subspan(i, 1);
      plan.look_back = std::span<const int32_t>(input).first(i);
      plan.page_table = std::span<const int32_t>(pages).first(i / sizes.page_tokens + 1);
      plan.logits_begin = 0;
      const model::StepResult result = step->run({&plan, 1}).value();
      const float* logits = result.logits.row(0);
      double total = 0;
      for (int32_t token = 0; token < model_->config().vocab_size; ++token) {
        total += std::exp(static_cast<double>(logits[token]));
      }
      nats += std::log(total) - static_cast<double>(logits[tokens[i]]);
    }
    return nats;
  }

  Backend backend_;
  std::unique_ptr<model::Model> model_;
  std::vector<int32_t> tokens_;
};

TEST_F(LikelihoodTest, OneRowAtATimeAgrees) {
  EXPECT_NEAR(measured(tokens_, 101), plain(tokens_), 1e-3);
}

TEST_F(LikelihoodTest, WindowsShareNothing) {
  const std::span<const int32_t> tokens = tokens_;
  EXPECT_NEAR(measured(tokens, 41),
              plain(tokens.first(40)) + plain(tokens.subspan(40, 40)) + plain(tokens.subspan(80)),
              1e-3);
}

TEST_F(LikelihoodTest, StopsWhenAsked) {
  const auto likelihood = Likelihood::create(*model_, *backend_.ops, 11, 0).value();
  EXPECT_EQ(likelihood->nats(tokens_, [](int64_t done) { return done < 50; }).error().code,
            ErrorCode::kCancelled);
  EXPECT_FALSE(Likelihood::create(*model_, *backend_.ops, 1, 0).has_value());
}

}  // namespace
}  // namespace galley::tools
