// Steps that are submitted while the one before runs give the tokens of steps that wait for each
// other: with tokens that only the device knows, chunked prompts, sequences that come and go, and
// some whose tokens the host samples. So do steps with dead rows in the place of sequences that
// have ended; with a device, the bundled model's sequences together are compared with each of them
// alone.
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "driver.h"
#include "engine/generator.h"
#include "engine/local_executor.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/forwarding_ops.h"
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
  std::vector<int64_t> rows;  // of each step
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
  Outcome run(kernels::Ops& ops, bool async, uint64_t count, const std::vector<uint64_t>& on_host,
              int32_t sequences = 3) {
    engine::GeneratorOptions options =
        engine::generator_options(model_->config(), sequences, sequences > 3 ? 512 : 16, 96);
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

  Outcome run_late(int polls, uint64_t count, const std::vector<uint64_t>& on_host,
                   int32_t sequences = 3) {
    kernels::PretendedDevice device(int64_t{4} << 30);
    LateOps late(*ops_, device, polls);
    Outcome result = run(late, true, count, on_host, sequences);
    result.overlapped = late.overlapped();
    result.awaited = late.awaited();
    result.rows = late.rows();
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

TEST_P(StepsInFlight, DeadRowsChangeNoToken) {
  constexpr int32_t kSequences = 12;
  const Outcome expected = run(*ops_, false, kSequences, {}, kSequences);
  for (const int polls : {kMany, kNever}) {
    const Outcome late = run_late(polls, kSequences, {}, kSequences);
    EXPECT_EQ(late.tokens, expected.tokens);
    // Two sequences end with every step from the fourth on.
    EXPECT_GE(std::ranges::count(late.rows, kSequences), 5) << ::testing::PrintToString(late.rows);
  }
}

// Counts what it hands on.
class CountingOps final : public kernels::ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;
  void spread(std::span<const kernels::SourceRow> sources, int64_t hidden, int32_t copies,
              kernels::Rows<kernels::Bf16> streams) override {
    rows_.push_back(streams.rows);
    ForwardingOps::spread(sources, hidden, copies, streams);
  }
  const std::vector<int64_t>& rows() const { return rows_; }

 private:
  std::vector<int64_t> rows_;
};

TEST(StepsOfADevice, DeadRowsChangeNoToken) {
  auto device = kernels::cuda::make_cuda_ops(0);
  if (!device) GTEST_SKIP() << device.error().message;
  const auto model = model::Model::open(GALLEY_SOURCE_DIR "/models/nano").value();
  CountingOps ops(**device);
  constexpr int32_t kSequences = 70;
  const auto tokens_of = [&](int32_t sequences) {
    engine::GeneratorOptions options =
        engine::generator_options(model->config(), sequences, 2048, 256);
    options.async_scheduling = true;
    const auto executor = engine::LocalExecutor::create(*model, ops, options).value();
    engine::Generator generator(*executor, options);
    for (uint64_t id = 0; id < kSequences; ++id) {
      engine::GenerateRequest one;
      one.id = engine::SequenceId{id};
      for (uint64_t i = 0; i < 9 + id % 13; ++i) {
        one.prompt.push_back(static_cast<int32_t>(100 + (i * 31 + id * 7) % 500));
      }
      one.output_tokens_max = static_cast<int32_t>(60 + id % 29);
      one.sampling.temperature = 0;
      EXPECT_TRUE(generator.submit(std::move(one)).has_value());
    }
    std::map<engine::SequenceId, std::vector<int32_t>> tokens;
    while (!generator.idle()) {
      const auto outcome = generator.step();
      EXPECT_TRUE(outcome.has_value()) << outcome.error().message;
      if (!outcome) break;
      for (const engine::TokenEvent& event : outcome->events) {
        tokens[event.id].push_back(event.token);
      }
    }
    return tokens;
  };
  const auto together = tokens_of(kSequences);
  // 59 steps have them all. Without dead rows no others do.
  EXPECT_GT(std::ranges::count(ops.rows(), kSequences), 65);
  EXPECT_EQ(together, tokens_of(1));
}

INSTANTIATE_TEST_SUITE_P(Models, StepsInFlight, ::testing::Values("g1-micro-text", "g2-micro-full"),
                         [](const auto& parameter) {
                           return std::string(parameter.param).substr(0, 2);
                         });

}  // namespace
}  // namespace galley::testing
