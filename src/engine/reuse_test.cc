// Prefix reuse and preemption over a real (tiny, random) model: after an exact hit
// and after preemption every log-probability has the bits of a lone cold run; a
// bounded hit is approximate, reported, and the same whatever the chunks.
#include <gtest/gtest.h>

#include <map>

#include "engine/generator.h"
#include "engine/local_executor.h"
#include "kernels/fast/fast_ops.h"

namespace galley::engine {
namespace {

// Every token with its log-probability, so that one different bit of a logit shows.
struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  Usage usage;
};

class Reuse : public testing::Test {
 protected:
  void SetUp() override {
    if (!kernels::machine_has(kernels::Isa::kAvx2)) GTEST_SKIP() << "plain kernels are too slow";
    model_ = model::Model::open(GALLEY_SOURCE_DIR "/tests/golden/g1-micro-text/checkpoint").value();
    ops_ = kernels::make_fast_ops(pool_, kernels::best_isa());
  }

  static constexpr int64_t kPositions = 400;

  static GenerateRequest long_request(uint64_t id, int32_t prompt_tokens, int32_t output_tokens) {
    GenerateRequest made;
    made.id = SequenceId{id};
    for (int32_t i = 0; i < prompt_tokens; ++i) made.prompt.push_back((i * i * 13 + i * 7) % 500);
    made.output_tokens_max = output_tokens;
    made.sampling.seed = 5;
    made.sampling.logprob = true;
    made.sampling.repetition_penalty = 1.1F;
    made.sampling.frequency_penalty = 0.2F;
    return made;
  }

  GeneratorOptions options(PrefixReplay prefix) const {
    GeneratorOptions made = generator_options(model_->config(), 3, 40, kPositions);
    made.prefix = prefix;
    return made;
  }

  // One after the other, or all at once.
  std::map<uint64_t, Answer> answers(const GeneratorOptions& with,
                                     const std::vector<GenerateRequest>& requests, bool at_once) {
    const auto executor = LocalExecutor::create(*model_, *ops_, with).value();
    Generator generator(*executor, with);
    std::map<uint64_t, Answer> out;
    const auto run = [&] {
      while (!generator.idle()) {
        const StepOutcome outcome = generator.step().value();
        for (const TokenEvent& event : outcome.events) {
          Answer& answer = out[static_cast<uint64_t>(event.id)];
          answer.tokens.push_back(event.token);
          answer.logprobs.push_back(event.logprob);
          answer.usage = event.usage;
        }
      }
    };
    for (const GenerateRequest& request : requests) {
      EXPECT_TRUE(generator.submit(request).has_value());
      if (!at_once) run();
    }
    run();
    return out;
  }

  Answer cold(GenerateRequest request) {
    const auto id = static_cast<uint64_t>(request.id);
    return answers(options(PrefixReplay::kOff), {std::move(request)}, true).at(id);
  }

  ThreadPool pool_{2};
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<kernels::Ops> ops_;
};

TEST_F(Reuse, AnExactHitGivesTheAnswerOfAColdRun) {
  std::vector<GenerateRequest> requests = {long_request(1, 250, 4)};
  for (uint64_t id = 2; id < 6; ++id) {
    requests.push_back(long_request(id, 170 + static_cast<int32_t>(id) * 17, 6));
  }
  requests.back().prompt[200] = 3;
  const auto warm = answers(options(PrefixReplay::kExact), requests, false);
  for (const GenerateRequest& request : requests) {
    const auto id = static_cast<uint64_t>(request.id);
    const Answer alone = cold(request);
    EXPECT_EQ(warm.at(id).tokens, alone.tokens) << id;
    EXPECT_EQ(warm.at(id).logprobs, alone.logprobs) << id;
    EXPECT_EQ(warm.at(id).usage.cached_tokens > 0, id > 1);
  }
  // The next turn of a conversation finds prompt and answer.
  GenerateRequest first = long_request(1, 250, 30);
  GenerateRequest next = long_request(2, 250, 6);
  const std::vector<int32_t> answer = cold(first).tokens;
  next.prompt.insert(next.prompt.end(), answer.begin(), answer.end());
  const Answer turn = answers(options(PrefixReplay::kExact), {first, next}, false).at(2);
  EXPECT_EQ(turn.usage.cached_tokens, 272);
  EXPECT_EQ(turn.usage.miss, MissReason::kNone);
  EXPECT_EQ(turn.logprobs, cold(next).logprobs);
}

TEST_F(Reuse, ABoundedHitIsCheapRepeatableAndReported) {
  const std::vector<GenerateRequest> requests = {long_request(1, 250, 2), long_request(2, 250, 8)};
  const Answer hit = answers(options(PrefixReplay::kBounded), requests, false).at(2);
  EXPECT_EQ(hit.usage.cached_tokens, 240);
  EXPECT_EQ(hit.usage.replayed_tokens, model_->config().window);
  EXPECT_NE(hit.logprobs, cold(requests[1]).logprobs) << "it is approximate";
  GeneratorOptions other = options(PrefixReplay::kBounded);
  other.rows_max = 7;  // other chunks, the same start: the same bits
  EXPECT_EQ(answers(other, requests, false).at(2).logprobs, hit.logprobs);
}

TEST_F(Reuse, PreemptionChangesNoBit) {
  for (const PrefixReplay prefix :
       {PrefixReplay::kOff, PrefixReplay::kBounded, PrefixReplay::kExact}) {
    GeneratorOptions tight = options(prefix);
    tight.growth_tokens = 8;
    tight.page_count = 22;  // of 16 tokens; each of the three may need 9
    std::vector<GenerateRequest> requests;
    for (uint64_t id = 1; id <= 3; ++id) {
      requests.push_back(long_request(id, 60, 80));
      requests.back().prompt[0] = static_cast<int32_t>(id);  // nothing is shared
      requests.back().sampling.seed = id;
    }
    const auto squeezed = answers(tight, requests, true);
    EXPECT_GT(squeezed.at(3).usage.preemptions, 0);
    for (const GenerateRequest& request : requests) {
      const auto id = static_cast<uint64_t>(request.id);
      EXPECT_EQ(squeezed.at(id).logprobs, cold(request).logprobs) << id;
    }
  }
}

}  // namespace
}  // namespace galley::engine
