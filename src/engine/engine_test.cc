// The engine from many threads at once, over the fake executor: every accepted
// sequence gets its own tokens and exactly one end; cancelling, draining,
// stopping and a failing executor lose nobody. All of it one step after the other,
// and with a step planned while another is computed.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <random>

#include "base/random.h"
#include "engine/fake_executor.h"

namespace galley::engine {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

GeneratorOptions small_options(bool async) {
  GeneratorOptions options;
  options.sequences_max = 4;
  options.rows_max = 32;
  options.waiting_max = 100;
  options.page_tokens = 8;
  options.page_count = 60;
  options.vocab_size = 50;
  options.positions_max = 120;
  options.window = 16;
  options.async_scheduling = async;
  return options;
}

GenerateRequest make_request(SequenceId id) {
  const auto number = static_cast<uint64_t>(id);
  GenerateRequest request;
  request.id = id;
  const int32_t length = 1 + static_cast<int32_t>(random_unit(number, 0) * 60);
  for (int32_t i = 0; i < length; ++i) {
    request.prompt.push_back(
        static_cast<int32_t>(random_unit(number, 1 + static_cast<uint64_t>(i)) * 50));
  }
  request.output_tokens_max = 1 + static_cast<int32_t>(random_unit(number, 0, 1) * 40);
  return request;
}

// Collects; the end can be waited for.
class Collector final : public TokenSink {
 public:
  void on_event(const TokenEvent& event) override {
    EXPECT_EQ(finish_, FinishReason::kNone) << "an event after the end";
    if (event.has_token) tokens_.push_back(event.token);
    EXPECT_EQ(event.usage.output_tokens, static_cast<int32_t>(tokens_.size()));
    finish_ = event.finish;
    if (finish_ != FinishReason::kNone) end_.set_value();
  }
  // False: no end after a generous while.
  bool wait() { return end_.get_future().wait_for(seconds(30)) == std::future_status::ready; }

  // After wait().
  const std::vector<int32_t>& tokens() const { return tokens_; }
  FinishReason finish() const { return finish_; }

 private:
  std::vector<int32_t> tokens_;
  FinishReason finish_ = FinishReason::kNone;
  std::promise<void> end_;
};

// Whether scheduling is asynchronous.
class EngineTest : public testing::TestWithParam<bool> {};

TEST_P(EngineTest, ManyThreadsSubmitAndCancel) {
  const GeneratorOptions options = small_options(GetParam());
  FakeExecutor executor(options);
  Engine engine(executor, options);
  constexpr int kThreads = 6;
  constexpr int kEach = 150;
  std::atomic<int64_t> ended{0};
  std::atomic<int64_t> cancelled{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937 random(static_cast<uint32_t>(thread));
      for (int i = 0; i < kEach; ++i) {
        const GenerateRequest request = make_request(engine.next_id());
        const auto sink = std::make_shared<Collector>();
        const bool cancels = random() % 3 == 0;
        ASSERT_TRUE(engine.submit(request, sink).has_value());
        if (cancels) engine.cancel(request.id);
        if (cancels) engine.cancel(request.id);
        ASSERT_TRUE(sink->wait());
        std::vector<int32_t> expected = fake_tokens(request, options);
        if (sink->finish() == FinishReason::kCancelled) {
          ++cancelled;
          EXPECT_TRUE(cancels);
          ASSERT_LE(sink->tokens().size(), expected.size());
          expected.resize(sink->tokens().size());
        }
        EXPECT_EQ(sink->tokens(), expected);
        ++ended;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ended, kThreads * kEach);
  EXPECT_GT(cancelled, 0);
  ASSERT_TRUE(engine.drain(seconds(30)));
  const EngineStats stats = engine.stats();
  EXPECT_EQ(stats.running + stats.waiting, 0);
  EXPECT_EQ(stats.pages_free, options.page_count);
  EXPECT_EQ(stats.finished[static_cast<size_t>(FinishReason::kCancelled)], cancelled);
  EXPECT_EQ(stats.finished[static_cast<size_t>(FinishReason::kLength)],
            kThreads * kEach - cancelled);
}

// Looks until it sees `wanted`; false after a generous while.
bool looks_until(Engine& engine, EngineGlance& glance,
                 const std::function<bool(const EngineGlance&)>& wanted) {
  for (int i = 0; i < 3000; ++i) {
    glance = engine.glance();
    if (wanted(glance)) return true;
    std::this_thread::sleep_for(milliseconds(10));
  }
  return false;
}

TEST_P(EngineTest, AGlanceShowsWhoRunsAndWhatIsKept) {
  GeneratorOptions options = small_options(GetParam());
  options.prefix = PrefixReplay::kBounded;
  FakeExecutor executor(options);
  std::promise<void> second;
  std::promise<void> third;
  executor.on_collect(
      [a = second.get_future().share(), b = third.get_future().share()](int64_t step) {
        if (step == 2) a.wait();
        if (step == 3) b.wait();
        return Result<void>();
      });
  Engine engine(executor, options);
  EXPECT_TRUE(engine.glance().running.empty());
  GenerateRequest request = make_request(engine.next_id());
  request.prompt.assign(40, 7);  // two steps
  request.output_tokens_max = 20;
  const auto sink = std::make_shared<Collector>();
  ASSERT_TRUE(engine.submit(request, sink).has_value());

  // Asked for while the second step is under way, shown before the third.
  EngineGlance glance;
  const auto runs = [](const EngineGlance& seen) { return seen.running.size() == 1; };
  while (engine.stats().steps == 0) std::this_thread::sleep_for(milliseconds(1));
  engine.glance();
  second.set_value();
  ASSERT_TRUE(looks_until(engine, glance, runs));
  EXPECT_EQ(glance.running[0].id, request.id);
  EXPECT_GE(glance.running[0].computed, 32);
  EXPECT_FALSE(glance.running[0].replays);
  EXPECT_EQ(glance.running[0].usage.output_tokens, glance.running[0].computed == 40 ? 1 : 0);
  EXPECT_TRUE(glance.running[0].usage.admitted_at.has_value());
  EXPECT_LT(glance.pages_unused, options.page_count);
  third.set_value();
  ASSERT_TRUE(sink->wait());

  // An idle engine answers too.
  ASSERT_TRUE(looks_until(engine, glance, std::not_fn(runs)));
  EXPECT_TRUE(glance.running.empty());
  int32_t kept = 0;
  for (const int32_t pages : glance.pages_kept) kept += pages;
  EXPECT_EQ(kept, 7);  // 59 tokens whose KV is there, 8 a page
  EXPECT_EQ(kept + glance.pages_unused, options.page_count);
  EXPECT_EQ(kept, engine.stats().pages_cached);
}

TEST_P(EngineTest, RefusesAtTheDoorAndSaysWhy) {
  GeneratorOptions options = small_options(GetParam());
  options.waiting_max = 2;
  FakeExecutor executor(options);
  std::promise<void> go;
  executor.on_collect([future = go.get_future().share()](int64_t) {
    future.wait();
    return Result<void>();
  });
  Engine engine(executor, options);
  std::vector<std::shared_ptr<Collector>> sinks;
  const auto submit = [&](GenerateRequest request) {
    sinks.push_back(std::make_shared<Collector>());
    return engine.submit(std::move(request), sinks.back());
  };
  GenerateRequest wrong = make_request(engine.next_id());
  wrong.output_tokens_max = 1000;
  EXPECT_EQ(submit(wrong).error().code, ErrorCode::kInvalid);
  const SequenceId first = engine.next_id();
  ASSERT_TRUE(submit(make_request(first)).has_value());
  EXPECT_EQ(submit(make_request(first)).error().code, ErrorCode::kInvalid);
  ASSERT_TRUE(submit(make_request(engine.next_id())).has_value());
  EXPECT_EQ(submit(make_request(engine.next_id())).error().code, ErrorCode::kExhausted);
  EXPECT_FALSE(engine.drain(milliseconds(1)));
  EXPECT_EQ(submit(make_request(engine.next_id())).error().code, ErrorCode::kCancelled);
  EXPECT_EQ(engine.stats().state, EngineState::kDraining);
  go.set_value();
  EXPECT_TRUE(engine.drain(seconds(30)));
  EXPECT_EQ(engine.stats().finished[static_cast<size_t>(FinishReason::kLength)], 2);
}

TEST_P(EngineTest, AStuckStepShowsInTheStats) {
  const GeneratorOptions options = small_options(GetParam());
  FakeExecutor executor(options);
  std::promise<void> go;
  executor.on_collect([future = go.get_future().share()](int64_t) {
    future.wait();
    return Result<void>();
  });
  Engine engine(executor, options);
  EXPECT_EQ(engine.stats().since_progress.count(), 0);
  const auto sink = std::make_shared<Collector>();
  ASSERT_TRUE(engine.submit(make_request(engine.next_id()), sink).has_value());
  std::this_thread::sleep_for(milliseconds(60));
  EXPECT_GT(engine.stats().since_progress, milliseconds(20));
  go.set_value();
  ASSERT_TRUE(sink->wait());
  ASSERT_TRUE(engine.drain(seconds(30)));
  engine.stop();
  EXPECT_EQ(engine.stats().since_progress.count(), 0);
}

TEST_P(EngineTest, StopEndsWhatRunsAndWaits) {
  const GeneratorOptions options = small_options(GetParam());
  FakeExecutor executor(options);
  Engine engine(executor, options);
  std::vector<std::shared_ptr<Collector>> sinks;
  for (int i = 0; i < 50; ++i) {
    GenerateRequest request = make_request(engine.next_id());
    request.output_tokens_max = 50;
    sinks.push_back(std::make_shared<Collector>());
    ASSERT_TRUE(engine.submit(std::move(request), sinks.back()).has_value());
  }
  engine.stop();
  int64_t cancelled = 0;
  for (const auto& sink : sinks) {
    ASSERT_TRUE(sink->wait());
    cancelled += sink->finish() == FinishReason::kCancelled ? 1 : 0;
  }
  EXPECT_GT(cancelled, 0);
  EXPECT_EQ(engine.stats().state, EngineState::kStopped);
  EXPECT_EQ(engine.submit(make_request(engine.next_id()), sinks[0]).error().code,
            ErrorCode::kCancelled);
  engine.stop();
}

TEST_P(EngineTest, AFailingExecutorEndsEverybodyLoudly) {
  const GeneratorOptions options = small_options(GetParam());
  FakeExecutor executor(options);
  executor.on_collect([](int64_t step) -> Result<void> {
    if (step == 5) return Error{ErrorCode::kIo, "the device is gone"};
    return {};
  });
  Engine engine(executor, options);
  std::vector<std::shared_ptr<Collector>> sinks;
  for (int i = 0; i < 20; ++i) {
    GenerateRequest request = make_request(engine.next_id());
    request.output_tokens_max = 50;
    sinks.push_back(std::make_shared<Collector>());
    const Result<void> accepted = engine.submit(std::move(request), sinks.back());
    if (!accepted) sinks.pop_back();
  }
  ASSERT_FALSE(sinks.empty());
  for (const auto& sink : sinks) {
    ASSERT_TRUE(sink->wait());
    EXPECT_EQ(sink->finish(), FinishReason::kFailed);
  }
  ASSERT_TRUE(engine.drain(seconds(30)));
  EXPECT_EQ(engine.stats().state, EngineState::kFailed);
  EXPECT_EQ(engine.failure(), "the device is gone");
  const Result<void> refused = engine.submit(make_request(engine.next_id()), sinks[0]);
  EXPECT_EQ(refused.error().message, "the engine has failed: the device is gone");
}

INSTANTIATE_TEST_SUITE_P(Scheduling, EngineTest, testing::Bool(), [](const auto& parameter) {
  return parameter.param ? "Asynchronous" : "InStep";
});

}  // namespace
}  // namespace galley::engine
