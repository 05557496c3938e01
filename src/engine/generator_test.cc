// The generator over the fake executor: whatever the budget, batch or order, a
// sequence's tokens are those it gives alone; every plan is checked; no page or
// slot is lost. One step after the other, and planned ahead.
#include "engine/generator.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/random.h"
#include "engine/fake_executor.h"

namespace galley::engine {
namespace {

constexpr int32_t kVocab = 50;

// Whether steps are planned ahead.
class GeneratorTest : public testing::TestWithParam<bool> {};

GeneratorOptions small_options(bool async) {
  GeneratorOptions options;
  options.async_scheduling = async;
  options.sequences_max = 4;
  options.rows_max = 16;
  options.waiting_max = 100;
  options.page_tokens = 8;
  options.page_count = 40;
  options.vocab_size = kVocab;
  options.positions_max = 200;
  options.window = 16;
  return options;
}

GenerateRequest make_request(uint64_t id) {
  GenerateRequest request;
  request.id = SequenceId{id};
  const int32_t length = 1 + static_cast<int32_t>(random_unit(id, 0) * 60);
  for (int32_t i = 0; i < length; ++i) {
    request.prompt.push_back(
        static_cast<int32_t>(random_unit(id, 1 + static_cast<uint64_t>(i)) * kVocab));
  }
  request.output_tokens_max = 1 + static_cast<int32_t>(random_unit(id, 0, 1) * 40);
  request.stop_tokens = {7};
  return request;
}

std::span<const TokenEvent> events_of_step(Generator& generator) {
  return generator.step().value().events;
}

TEST_P(GeneratorTest, TokensDoNotDependOnBatchBudgetOrOrder) {
  for (const int32_t sequences_max : {1, 2, 4}) {
    for (const int32_t rows_max : {4, 5, 16, 100}) {
      GeneratorOptions options = small_options(GetParam());
      options.sequences_max = sequences_max;
      options.rows_max = rows_max;
      FakeExecutor executor(options);
      Generator generator(executor, options);
      for (uint64_t id = 0; id < 30; ++id) {
        ASSERT_TRUE(generator.submit(make_request((id * 7 + rows_max) % 30)).has_value());
      }
      std::map<uint64_t, std::vector<int32_t>> output;
      std::map<uint64_t, FinishReason> finish;
      for (int step = 0; step < 10000 && !generator.idle(); ++step) {
        for (const TokenEvent& event : events_of_step(generator)) {
          EXPECT_TRUE(event.has_token);
          output[static_cast<uint64_t>(event.id)].push_back(event.token);
          finish[static_cast<uint64_t>(event.id)] = event.finish;
        }
      }
      EXPECT_TRUE(generator.idle());
      EXPECT_EQ(generator.free_page_count(), options.page_count);
      for (uint64_t id = 0; id < 30; ++id) {
        EXPECT_EQ(output[id], fake_tokens(make_request(id), options));
        EXPECT_EQ(finish[id], output[id].back() == 7 ? FinishReason::kStop : FinishReason::kLength);
      }
    }
  }
}

TEST(Generator, LongPromptsDoNotHoldUpDecoding) {
  GeneratorOptions options = small_options(false);
  FakeExecutor executor(options);
  Generator generator(executor, options);
  GenerateRequest decoding = make_request(1);
  decoding.prompt.resize(1);
  decoding.output_tokens_max = 30;
  decoding.stop_tokens.clear();
  ASSERT_TRUE(generator.submit(decoding).has_value());
  EXPECT_EQ(generator.step().value().prefill_rows, 1);
  GenerateRequest prompt = make_request(2);
  prompt.prompt.assign(100, 3);
  ASSERT_TRUE(generator.submit(prompt).has_value());
  for (int i = 0; i < 6; ++i) {
    const StepOutcome outcome = generator.step().value();
    EXPECT_EQ(outcome.decode_rows, 1);
    EXPECT_EQ(outcome.prefill_rows, 15);
    ASSERT_EQ(outcome.events.size(), 1U);
    EXPECT_EQ(outcome.events[0].id, SequenceId{1});
  }
  EXPECT_EQ(executor.rows_most(), 16);
}

TEST_P(GeneratorTest, CancelFreesEverythingAndIsReportedOnce) {
  const GeneratorOptions options = small_options(GetParam());
  FakeExecutor executor(options);
  Generator generator(executor, options);
  for (uint64_t id = 0; id < 10; ++id) {
    GenerateRequest request = make_request(id);
    request.stop_tokens.clear();
    request.output_tokens_max = 50;
    ASSERT_TRUE(generator.submit(std::move(request)).has_value());
  }
  ASSERT_TRUE(generator.step().has_value());
  for (uint64_t id = 0; id < 10; ++id) generator.cancel(SequenceId{id});
  generator.cancel(SequenceId{99});
  std::set<SequenceId> cancelled;
  for (const TokenEvent& event : events_of_step(generator)) {
    EXPECT_FALSE(event.has_token);
    EXPECT_EQ(event.finish, FinishReason::kCancelled);
    EXPECT_TRUE(cancelled.insert(event.id).second);
  }
  EXPECT_EQ(cancelled.size(), 10U);
  EXPECT_EQ(generator.running_count() + generator.waiting_count(), 0);
  EXPECT_EQ(generator.free_page_count(), options.page_count);
  EXPECT_TRUE(events_of_step(generator).empty());
  EXPECT_TRUE(generator.idle());
}

TEST_P(GeneratorTest, UnusableLogitsEndOneSequenceOnly) {
  const GeneratorOptions options = small_options(GetParam());
  FakeExecutor executor(options);
  executor.fail_at(20);
  Generator generator(executor, options);
  GenerateRequest failing = make_request(1);
  failing.prompt.assign(20, 1);
  GenerateRequest fine = make_request(2);
  fine.prompt.assign(21, 1);
  ASSERT_TRUE(generator.submit(failing).has_value());
  ASSERT_TRUE(generator.submit(fine).has_value());
  std::map<SequenceId, FinishReason> finish;
  while (!generator.idle()) {
    for (const TokenEvent& event : events_of_step(generator)) finish[event.id] = event.finish;
  }
  EXPECT_EQ(finish[SequenceId{1}], FinishReason::kFailed);
  EXPECT_NE(finish[SequenceId{2}], FinishReason::kFailed);
}

TEST(Generator, RefusesWhatCanNeverRun) {
  GeneratorOptions options = small_options(false);
  options.waiting_max = 2;
  FakeExecutor executor(options);
  Generator generator(executor, options);
  const auto with = [](auto change) {
    GenerateRequest request = make_request(1);
    change(request);
    return request;
  };
  EXPECT_FALSE(generator.submit(with([](auto& r) { r.prompt.clear(); })).has_value());
  EXPECT_FALSE(generator.submit(with([](auto& r) { r.prompt[0] = kVocab; })).has_value());
  EXPECT_FALSE(generator.submit(with([](auto& r) { r.prompt[0] = -1; })).has_value());
  EXPECT_FALSE(generator.submit(with([](auto& r) { r.output_tokens_max = 0; })).has_value());
  EXPECT_FALSE(generator.submit(with([](auto& r) { r.output_tokens_max = 200; })).has_value());
  EXPECT_FALSE(generator.submit(with([](auto& r) { r.sampling.top_p = 2; })).has_value());
  EXPECT_TRUE(generator.submit(make_request(1)).has_value());
  EXPECT_EQ(generator.submit(make_request(1)).error().code, ErrorCode::kInvalid);  // same id
  EXPECT_TRUE(generator.submit(make_request(2)).has_value());
  EXPECT_EQ(generator.submit(make_request(3)).error().code, ErrorCode::kExhausted);
}

INSTANTIATE_TEST_SUITE_P(Scheduling, GeneratorTest, testing::Bool(), [](const auto& parameter) {
  return parameter.param ? "Asynchronous" : "InStep";
});

}  // namespace
}  // namespace galley::engine
