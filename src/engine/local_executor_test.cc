// The executor over a real (tiny, random) model: masks hold, and what a sequence
// gets does not depend on its company.
#include "engine/local_executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>
#include <new>
#include <thread>

#include "kernels/fast/fast_ops.h"
#include "kernels/forwarding_ops.h"
#include "kernels/plain/plain_ops.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define GALLEY_COUNTS_ALLOCATIONS 0  // the sanitizers own the allocator
#else
#define GALLEY_COUNTS_ALLOCATIONS 1
#endif

namespace {
std::atomic<int64_t> allocation_count{0};
}  // namespace

#if GALLEY_COUNTS_ALLOCATIONS
// The whole test program counts; the default array and sized forms call these.
// Not inlined, or the compiler sees malloc freed by delete.
[[gnu::noinline]] void* operator new(size_t size) {
  allocation_count.fetch_add(1, std::memory_order_relaxed);
  void* memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
#endif

namespace galley::engine {
namespace {

// Whether it computes on a thread of its own.
class LocalExecutorTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    model_ = model::Model::open(GALLEY_SOURCE_DIR "/tests/golden/g1-micro-text/checkpoint").value();
    ops_ = kernels::make_plain_ops(pool_);
  }

  static GenerateRequest request(uint64_t id) {
    GenerateRequest made;
    made.id = SequenceId{id};
    for (uint64_t i = 0; i < 3 + 9 * id; ++i) {
      made.prompt.push_back(static_cast<int32_t>((i * 13 + id * 7) % 500));
    }
    made.output_tokens_max = 6;
    made.sampling.seed = id;
    return made;
  }

  std::map<SequenceId, std::vector<int32_t>> generate(int32_t sequences_max, int32_t rows_max,
                                                      uint64_t first, uint64_t last) {
    GeneratorOptions options = generator_options(model_->config(), sequences_max, rows_max, 128);
    options.async_scheduling = GetParam();
    const auto executor = LocalExecutor::create(*model_, *ops_, options).value();
    Generator generator(*executor, options);
    for (uint64_t id = first; id <= last; ++id) {
      EXPECT_TRUE(generator.submit(request(id)).has_value());
    }
    std::map<SequenceId, std::vector<int32_t>> output;
    while (!generator.idle()) {
      const StepOutcome outcome = generator.step().value();
      for (const TokenEvent& event : outcome.events) output[event.id].push_back(event.token);
    }
    return output;
  }

  ThreadPool pool_{2};
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<kernels::Ops> ops_;
};

// Draws the last token of the vocabulary, whatever the logits.
class LastTokenOps final : public kernels::ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;
  bool draws() const override { return true; }
  void draw(kernels::Rows<const float> logits, std::span<const kernels::DrawRequest> requests,
            kernels::DrawnToken* tokens) override {
    ASSERT_EQ(std::ssize(requests), logits.rows);
    for (int64_t r = 0; r < logits.rows; ++r) {
      seen.push_back(requests[static_cast<size_t>(r)]);
      tokens[r] = {.token = static_cast<int32_t>(logits.cols - 1), .valid = 1};
    }
  }
  std::vector<kernels::DrawRequest> seen;
};

TEST_P(LocalExecutorTest, KernelsDrawWhatNeedsTheRawLogitsAlone) {
  GeneratorOptions options = generator_options(model_->config(), 4, 64, 128);
  options.async_scheduling = GetParam();
  const auto tokens_of = [&](kernels::Ops& ops) {
    const auto executor = LocalExecutor::create(*model_, ops, options).value();
    Generator generator(*executor, options);
    for (uint64_t id = 0; id < 4; ++id) {
      GenerateRequest made = request(id);
      if (id == 0) made.sampling.top_p = 0.9F;
      if (id == 0) made.sampling.top_k = 7;
      if (id == 1) made.sampling.logprob = true;
      if (id == 2) made.sampling.repetition_penalty = 1.1F;
      if (id == 3) made.sampling.temperature = 0.0F;
      EXPECT_TRUE(generator.submit(made).has_value());
    }
    std::map<SequenceId, std::vector<int32_t>> output;
    while (!generator.idle()) {
      const StepOutcome outcome = generator.step().value();
      for (const TokenEvent& event : outcome.events) output[event.id].push_back(event.token);
    }
    return output;
  };
  LastTokenOps drawing(*ops_);
  const auto drawn = tokens_of(drawing);
  const auto sampled = tokens_of(*ops_);
  const std::vector<int32_t> last(6, model_->config().vocab_size - 1);
  EXPECT_EQ(drawn.at(SequenceId{0}), last);
  EXPECT_EQ(drawn.at(SequenceId{3}), last);
  EXPECT_EQ(drawn.at(SequenceId{1}), sampled.at(SequenceId{1}));
  EXPECT_EQ(drawn.at(SequenceId{2}), sampled.at(SequenceId{2}));
  // Of sequence 0: 3 prompt tokens, then one more at each draw.
  std::vector<int64_t> positions;
  for (const kernels::DrawRequest& one : drawing.seen) {
    if (!one.is_cut()) continue;
    EXPECT_EQ(one.top_k, 7);
    EXPECT_EQ(one.top_p, 0.9F);
    positions.push_back(one.position);
  }
  EXPECT_EQ(positions, (std::vector<int64_t>{3, 4, 5, 6, 7, 8}));
}

TEST_P(LocalExecutorTest, CompanyChangesNothing) {
  const auto together = generate(3, 7, 0, 4);
  ASSERT_EQ(together.size(), 5U);
  for (uint64_t id = 0; id < 5; ++id) {
    const auto alone = generate(1, 64, id, id);
    EXPECT_EQ(alone.at(SequenceId{id}), together.at(SequenceId{id})) << id;
  }
}

TEST_P(LocalExecutorTest, DecodeStepsDoNotAllocate) {
  if (!GALLEY_COUNTS_ALLOCATIONS) GTEST_SKIP() << "a sanitizer owns the allocator";
  if (!kernels::machine_has(kernels::Isa::kAvx2)) GTEST_SKIP() << "no SIMD kernels here";
  const auto fast = kernels::make_fast_ops(pool_, kernels::best_isa());
  GeneratorOptions options = generator_options(model_->config(), 3, 16, 256);
  options.async_scheduling = GetParam();
  const auto executor = LocalExecutor::create(*model_, *fast, options).value();
  Generator generator(*executor, options);
  for (uint64_t id = 0; id < 3; ++id) {
    GenerateRequest made = request(id);
    made.output_tokens_max = 100;
    made.sampling.top_p = 0.9F;
    made.sampling.top_k = 50;
    made.sampling.frequency_penalty = 0.1F;
    made.sampling.top_logprobs = 3;
    ASSERT_TRUE(generator.submit(std::move(made)).has_value());
  }
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(generator.step().has_value());
  const int64_t before = allocation_count.load();
  ASSERT_GT(before, 0);
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(generator.step().has_value());
  EXPECT_EQ(allocation_count.load(), before);
  EXPECT_EQ(generator.running_count(), 3);
}

TEST_P(LocalExecutorTest, MasksHoldForTheStepTheyNameOnly) {
  GeneratorOptions options = generator_options(model_->config(), 1, 8, 64);
  options.async_scheduling = GetParam();
  const auto executor = LocalExecutor::create(*model_, *ops_, options).value();
  const SamplingOptions sampling;
  const int32_t prompt[] = {0, 5, 6};
  const int32_t pages[] = {0};
  executor->start({0, &sampling, prompt});
  std::vector<uint64_t> only(8);
  only[300 / 64] |= uint64_t{1} << (300 % 64);
  PlannedSequence planned;
  planned.rows.tokens = prompt;
  planned.rows.page_table = pages;
  planned.rows.logits_begin = 2;
  planned.samples = true;
  planned.masked = true;
  const auto run = [&](uint64_t step_id, uint64_t masked_step) {
    EXPECT_TRUE(executor->submit({step_id, {&planned, 1}}).has_value());
    executor->mask(masked_step, 0, only);
    return executor->collect().value().sampled[0].sampled.token;
  };
  EXPECT_EQ(run(1, 1), 300);
  EXPECT_NE(run(2, 1), 300);  // a mask that came too late is not taken for the next step
}

// The next row's mask follows from the token before it, which the host learns while that row is
// being computed.
TEST_P(LocalExecutorTest, AMaskMayComeWhileItsRowIsComputed) {
  GeneratorOptions options = generator_options(model_->config(), 1, 8, 64);
  options.async_scheduling = GetParam();
  const auto executor = LocalExecutor::create(*model_, *ops_, options).value();
  const SamplingOptions sampling;
  const int32_t prompt[] = {0, 5, 6};
  const int32_t pages[] = {0};
  const int32_t unknown[] = {0};
  executor->start({0, &sampling, prompt});
  PlannedSequence first;
  first.rows.tokens = prompt;
  first.rows.page_table = pages;
  first.rows.logits_begin = 2;
  first.samples = true;
  first.masked = true;
  PlannedSequence second = first;
  second.rows.first_position = 3;
  second.rows.tokens = unknown;
  second.rows.look_back = prompt;
  second.rows.logits_begin = 0;
  second.token_from = 1;
  ASSERT_TRUE(executor->submit({1, {&first, 1}}).has_value());
  ASSERT_TRUE(executor->submit({2, {&second, 1}}).has_value());
  std::vector<uint64_t> mask(8);
  int32_t token = 77;
  for (const uint64_t step_id : {1, 2}) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // the rows are done, and wait
    mask.assign(8, 0);
    mask[static_cast<size_t>(token / 64)] |= uint64_t{1} << (token % 64);
    executor->mask(step_id, 0, mask);
    EXPECT_EQ(executor->collect().value().sampled[0].sampled.token, token);
    token = 2 * token + 1;
  }
}

TEST_P(LocalExecutorTest, AStepAfterAFailedOneFailsToo) {
  GeneratorOptions options = generator_options(model_->config(), 1, 8, 64);
  options.async_scheduling = GetParam();
  const auto executor = LocalExecutor::create(*model_, *ops_, options).value();
  const SamplingOptions sampling;
  const int32_t wrong[] = {options.vocab_size};
  const int32_t pages[] = {0};
  executor->start({0, &sampling, {}});
  PlannedSequence planned;
  planned.rows.tokens = wrong;
  planned.rows.page_table = pages;
  planned.rows.logits_begin = 0;
  planned.samples = true;
  ASSERT_TRUE(executor->submit({1, {&planned, 1}}).has_value());
  PlannedSequence next = planned;
  next.rows.first_position = 1;
  next.rows.look_back = wrong;
  next.token_from = 1;
  ASSERT_TRUE(executor->submit({2, {&next, 1}}).has_value());
  EXPECT_EQ(executor->collect().error().code, ErrorCode::kInvalid);
  EXPECT_EQ(executor->collect().error().message,
            "step 2 takes a token of step 1, which gave none: it failed");
}

INSTANTIATE_TEST_SUITE_P(Scheduling, LocalExecutorTest, testing::Bool(), [](const auto& parameter) {
  return parameter.param ? "Asynchronous" : "InStep";
});

}  // namespace
}  // namespace galley::engine
