// Steps that are submitted while the one before runs give the tokens of steps that wait for each
// other: with tokens that only the device knows, chunked prompts, sequences that come and go, and
// some whose tokens the host samples.
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "driver.h"
#include "engine/generator.h"
#include "engine/local_executor.h"
#include "kernels/pretended_device.h"
#include "late_ops.h"

namespace galley::testing {
namespace {

constexpr int kNever = 0;         // no step is ahead
constexpr int kMany = 1'000'000;  // every plan comes in time

struct Outcome {
  std::map<engine::SequenceId, std::vector<int32_t>> tokens;
  int64_t overlapped = 0;
  int64_t awaited = 0;
};

class StepsInFlight : public ::testing::TestWithParam<const char*> {
 protected:
  StepsInFlight() : model_(golden_model(GetParam())), ops_(make_ops("plain", pool_)) {}

  engine::GenerateRequest request(uint64_t id, bool on_host) const {
    engine::GenerateRequest made;
    made.id = engine::SequenceId{id};
    for (uint64_t i = 0; i < 3 + 11 * (id % 5); ++i) {
      made.prompt.push_back(static_cast<int32_t>((i * 13 + id * 7) % 500));
    }
    made.output_tokens_max = static_cast<int32_t>(4 + id % 7);
    made.sampling.temperature = 0;
    if (on_host) made.sampling.repetition_penalty = 1.2F;
    return made;
  }

  // `on_host`: which of the requests the kernels cannot draw.
  Outcome run(kernels::Ops& ops, bool async, uint64_t count, const std::vector<uint64_t>& on_host) {
    engine::GeneratorOptions options = engine::generator_options(model_->config(), 3, 16, 96);
    options.async_scheduling = async;
    const auto executor = engine::LocalExecutor::create(*model_, ops, options).value();
    engine::Generator generator(*executor, options);
    for (uint64_t id = 0; id < count; ++id) {
      const bool host = std::ranges::find(on_host, id) != on_host.end();
      EXPECT_TRUE(generator.submit(request(id, host)).has_value());
    }
    Outcome result;
    while (!generator.idle()) {
      const auto outcome = generator.step();
      EXPECT_TRUE(outcome.has_value()) << outcome.error().message;
      if (!outcome) break;
      for (const engine::TokenEvent& event : outcome->events) {
        result.tokens[event.id].push_back(event.token);
      }
    }
    return result;
  }

  Outcome run_late(int polls, uint64_t count, const std::vector<uint64_t>& on_host) {
    kernels::PretendedDevice device(int64_t{4} << 30);
    LateOps late(*ops_, device, polls);
    Outcome result = run(late, true, count, on_host);
    result.overlapped = late.overlapped();
    result.awaited = late.awaited();
    return result;
  }

  ThreadPool pool_{2};
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<kernels::Ops> ops_;
};

TEST_P(StepsInFlight, TheTokensAreThoseOfStepsThatWait) {
  const Outcome expected = run(*ops_, false, 8, {});
  const Outcome ahead = run_late(kMany, 8, {});
  EXPECT_EQ(ahead.tokens, expected.tokens);
  EXPECT_GT(ahead.overlapped, 8);
  EXPECT_GT(ahead.awaited, 4);
  const Outcome behind = run_late(kNever, 8, {});
  EXPECT_EQ(behind.tokens, expected.tokens);
  EXPECT_EQ(behind.overlapped, 0);
}

TEST_P(StepsInFlight, SoTheyAreBesideTokensOfTheHost) {
  const std::vector<uint64_t> on_host = {1, 2, 6};
  const Outcome expected = run(*ops_, false, 8, on_host);
  const Outcome ahead = run_late(kMany, 8, on_host);
  EXPECT_EQ(ahead.tokens, expected.tokens);
  EXPECT_GT(ahead.overlapped, 0);
  EXPECT_EQ(run_late(kMany, 3, {0, 1, 2}).tokens, run(*ops_, false, 3, {0, 1, 2}).tokens);
}

INSTANTIATE_TEST_SUITE_P(Models, StepsInFlight, ::testing::Values("g1-micro-text", "g2-micro-full"),
                         [](const auto& parameter) {
                           return std::string(parameter.param).substr(0, 2);
                         });

}  // namespace
}  // namespace galley::testing
