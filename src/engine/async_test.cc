// Planning a step while the one before it is computed changes nothing that anybody
// gets: over a real (tiny, random) model, for every pair of features, tokens and
// log-probabilities have the bits of one step after the other; over the fake
// executor, what ends, gives way or comes while a step is in flight.
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "engine/fake_executor.h"
#include "engine/generator.h"
#include "engine/local_executor.h"
#include "kernels/fast/fast_ops.h"

namespace galley::engine {
namespace {

using std::chrono::seconds;

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;  // of the token, then of the best
  FinishReason finish = FinishReason::kNone;
  Usage usage;
};

// Requests, the engine they run on, and what happens to them meanwhile.
struct Scene {
  GeneratorOptions options;
  std::vector<GenerateRequest> requests;
  size_t first = 1;                         // submitted alone, before the others
  int32_t every = 0;                        // the others one every so many steps; 0 = at once
  std::map<uint64_t, size_t> cancelled_at;  // by id: with so many tokens
};

struct Feature {
  const char* name;
  std::function<void(Scene&)> add;
};

template <class Change>
std::function<void(Scene&)> each(Change change) {
  return [change](Scene& scene) {
    for (GenerateRequest& request : scene.requests) change(request);
  };
}

const std::vector<Feature>& features() {
  static const std::vector<Feature> all = {
      {"greedy", each([](GenerateRequest& r) { r.sampling.temperature = 0; })},
      {"nucleus", each([](GenerateRequest& r) {
         r.sampling.top_p = 0.9F;
         r.sampling.top_k = 40;
       })},
      {"penalties", each([](GenerateRequest& r) {
         r.sampling.repetition_penalty = 1.2F;
         r.sampling.frequency_penalty = 0.4F;
         r.sampling.presence_penalty = 0.3F;
       })},
      {"logit bias", each([](GenerateRequest& r) {
         r.sampling.logit_bias = {{17, 4.0F}, {300, -5.0F}};
       })},
      {"several answers", each([](GenerateRequest& r) {
         r.sampling.seed = 9;
         r.sampling.stream = static_cast<uint64_t>(r.id) % 3;
       })},
      {"stop tokens", each([](GenerateRequest& r) {
         for (int32_t token = 0; token < kStopTokensMax; ++token) {
           r.stop_tokens.push_back(token * 31);
         }
       })},
      {"least length",  // with stop tokens, of which it holds some back
       each([](GenerateRequest& r) {
         for (int32_t token = 0; token < 500; token += 31) r.sampling.held_back.push_back(token);
         r.sampling.held_back_before = static_cast<int64_t>(r.prompt.size()) + 4;
       })},
      {"log-probabilities", each([](GenerateRequest& r) { r.sampling.top_logprobs = 5; })},
      {"one token", each([](GenerateRequest& r) {
         if (static_cast<uint64_t>(r.id) % 2 == 0) r.output_tokens_max = 1;
       })},
      {"cancel",  // also how a stop string ends a sequence
       [](Scene& scene) {
         scene.cancelled_at = {{2, 1}, {3, 4}, {5, 6}};
       }},
      {"deadline", each([](GenerateRequest& r) {
         if (static_cast<uint64_t>(r.id) % 3 == 0) r.deadline = TimePoint{} + seconds(9);
       })},
      {"priorities", each([](GenerateRequest& r) {
         r.priority = static_cast<Priority>(2 - static_cast<uint64_t>(r.id) % 3);
         r.tenant = static_cast<uint64_t>(r.id) % 2;
       })},
      {"bounded prefixes", [](Scene& s) { s.options.prefix = PrefixReplay::kBounded; }},
      {"exact prefixes", [](Scene& s) { s.options.prefix = PrefixReplay::kExact; }},
      {"preemption",
       [](Scene& s) {
         for (GenerateRequest& request : s.requests) request.output_tokens_max += 20;
         s.options.page_count = 15;  // of 16 tokens
         s.options.growth_tokens = 4;
       }},
      {"small steps", [](Scene& s) { s.options.rows_max = 9; }},
      {"arrivals", [](Scene& s) { s.every = 2; }},
  };
  return all;
}

class Async : public testing::Test {
 protected:
  void SetUp() override {
    if (!kernels::machine_has(kernels::Isa::kAvx2)) GTEST_SKIP() << "plain kernels are too slow";
    model_ = model::Model::open(GALLEY_SOURCE_DIR "/tests/golden/g1-micro-text/checkpoint").value();
    ops_ = kernels::make_fast_ops(pool_, kernels::best_isa());
  }

  Scene scene() const {
    Scene made;
    made.options = generator_options(model_->config(), 3, 40, 256);
    for (uint64_t id = 1; id <= 6; ++id) {
      GenerateRequest request;
      request.id = SequenceId{id};
      // Three families, so that some share a prefix; and each its own end.
      for (int32_t i = 0; i < 56; ++i) {
        request.prompt.push_back((i * i * 13 + static_cast<int32_t>(id % 3)) % 500);
      }
      for (uint64_t i = 0; i < 5 * id; ++i) {
        request.prompt.push_back(static_cast<int32_t>((id * 50 + i) % 500));
      }
      request.output_tokens_max = 6 + static_cast<int32_t>(id);
      request.sampling.seed = id;
      request.sampling.logprob = true;
      made.requests.push_back(std::move(request));
    }
    return made;
  }

  std::map<uint64_t, Answer> play(const Scene& scene, bool async) {
    GeneratorOptions options = scene.options;
    options.async_scheduling = async;
    const auto executor = LocalExecutor::create(*model_, *ops_, options).value();
    Generator generator(*executor, options);
    std::map<uint64_t, Answer> answers;
    size_t next = 0;
    const auto submit = [&] { EXPECT_TRUE(generator.submit(scene.requests[next++]).has_value()); };
    int64_t steps = 0;
    const auto step = [&] {
      const StepOutcome outcome = generator.step(TimePoint{} + seconds(++steps)).value();
      for (const TokenEvent& event : outcome.events) take(event, scene, generator, answers);
    };
    while (next < scene.first) submit();
    while (!generator.idle()) step();
    while (next < scene.requests.size() || !generator.idle()) {
      while (next < scene.requests.size() && scene.every == 0) submit();
      if (next < scene.requests.size() && steps % scene.every == 0) submit();
      step();
    }
    EXPECT_EQ(generator.free_page_count(), options.page_count);
    preemptions_ += generator.scheduler().counts().preemptions;
    wasted_ += generator.scheduler().counts().wasted_rows;
    return answers;
  }

  static void take(const TokenEvent& event, const Scene& scene, Generator& generator,
                   std::map<uint64_t, Answer>& answers) {
    const auto id = static_cast<uint64_t>(event.id);
    Answer& answer = answers[id];
    EXPECT_EQ(answer.finish, FinishReason::kNone) << "an event after the end";
    if (event.has_token) {
      answer.tokens.push_back(event.token);
      answer.logprobs.push_back(event.logprob);
      for (const TokenLogprob& best : event.top_logprobs) answer.logprobs.push_back(best.logprob);
    }
    answer.finish = event.finish;
    answer.usage = event.usage;
    const auto cancel = scene.cancelled_at.find(id);
    if (cancel != scene.cancelled_at.end() && cancel->second == answer.tokens.size()) {
      generator.cancel(event.id);
    }
  }

  // Who was cut short by others' doing has the beginning of the same.
  void expect_same(const Answer& ahead, const Answer& plain) {
    if (ahead.usage.cached_tokens != plain.usage.cached_tokens) return;  // bounded: another start
    ++compared_;
    hits_ += plain.usage.cached_tokens > 0 ? 1 : 0;
    const auto cut = [](const Answer& answer) {
      return answer.finish == FinishReason::kDeadline || answer.finish == FinishReason::kCancelled;
    };
    if (!cut(ahead) && !cut(plain)) {
      EXPECT_EQ(ahead.finish, plain.finish);
      EXPECT_EQ(ahead.tokens, plain.tokens);
      EXPECT_EQ(ahead.logprobs, plain.logprobs);
      return;
    }
    const auto begins_alike = [](const auto& a, const auto& b) {
      return std::equal(a.begin(), a.begin() + std::min(std::ssize(a), std::ssize(b)), b.begin());
    };
    EXPECT_TRUE(begins_alike(ahead.tokens, plain.tokens));
    EXPECT_TRUE(begins_alike(ahead.logprobs, plain.logprobs));
  }

  ThreadPool pool_{1};  // beside the test's own thread
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<kernels::Ops> ops_;
  int64_t compared_ = 0;
  int64_t hits_ = 0;
  int64_t preemptions_ = 0;
  int64_t wasted_ = 0;
};

TEST_F(Async, EveryPairOfFeaturesGivesTheBitsOfOneStepAfterTheOther) {
  int64_t scenes = 0;
  for (size_t a = 0; a < features().size(); ++a) {
    for (size_t b = a; b < features().size(); ++b) {
      SCOPED_TRACE(std::string(features()[a].name) + " and " + features()[b].name);
      Scene both = scene();
      features()[a].add(both);
      if (b != a) features()[b].add(both);
      const auto plain = play(both, false);
      const auto ahead = play(both, true);
      ASSERT_EQ(ahead.size(), both.requests.size());
      for (const auto& [id, answer] : ahead) {
        SCOPED_TRACE(id);
        expect_same(answer, plain.at(id));
      }
      ++scenes;
      if (HasFailure()) return;
    }
  }
  // What must have happened to show anything.
  EXPECT_GT(compared_, scenes * 6 * 95 / 100);
  EXPECT_GT(hits_, 30);
  EXPECT_GT(preemptions_, 20);
  EXPECT_GT(wasted_, 50);
}

// --- over the fake executor --------------------------------------------------

GeneratorOptions small_options(bool async) {
  GeneratorOptions options;
  options.async_scheduling = async;
  options.sequences_max = 2;
  options.rows_max = 64;
  options.page_tokens = 4;
  options.page_count = 40;
  options.vocab_size = 50;
  options.positions_max = 120;
  options.window = 6;
  options.layers = 4;
  options.decoder_source = 2;
  options.growth_tokens = 4;
  options.prefix = PrefixReplay::kExact;
  return options;
}

GenerateRequest small_request(uint64_t id, int32_t prompt_tokens, int32_t output_tokens) {
  GenerateRequest request;
  request.id = SequenceId{id};
  for (int32_t i = 0; i < prompt_tokens; ++i) {
    request.prompt.push_back((i * 7 + static_cast<int32_t>(id)) % 50);
  }
  request.output_tokens_max = output_tokens;
  return request;
}

std::vector<int32_t> run_alone(Generator& generator, const GenerateRequest& request, Usage& usage) {
  EXPECT_TRUE(generator.submit(request).has_value());
  std::vector<int32_t> tokens;
  while (!generator.idle()) {
    const StepOutcome outcome = generator.step().value();
    for (const TokenEvent& event : outcome.events) {
      if (event.has_token) tokens.push_back(event.token);
      usage = event.usage;
    }
  }
  return tokens;
}

TEST(AsyncGenerator, ATokenIsToldWhileTheNextIsInFlight) {
  const GeneratorOptions options = small_options(true);
  FakeExecutor executor(options);
  Generator generator(executor, options);
  ASSERT_TRUE(generator.submit(small_request(1, 10, 3)).has_value());
  EXPECT_TRUE(generator.step().value().events.empty());  // nothing is over yet
  for (int token = 1; token <= 3; ++token) {
    EXPECT_EQ(generator.in_flight(), 1);
    const StepOutcome outcome = generator.step().value();
    ASSERT_EQ(outcome.events.size(), 1U);
    EXPECT_EQ(outcome.events[0].usage.output_tokens, token);
    EXPECT_EQ(outcome.events[0].finish, token == 3 ? FinishReason::kLength : FinishReason::kNone);
  }
  EXPECT_TRUE(generator.idle());  // its length was foreseen: no row was wasted
  EXPECT_EQ(generator.scheduler().counts().wasted_rows, 0);
}

TEST(AsyncGenerator, WhatRanPastAnEndIsDroppedAndNeverFound) {
  for (const int32_t prompt_tokens : {40, 41, 42, 43}) {  // the wasted row may complete a page
    int32_t indexed[2] = {};
    for (const bool async : {false, true}) {
      const GeneratorOptions options = small_options(async);
      FakeExecutor executor(options);
      Generator generator(executor, options);
      GenerateRequest request = small_request(1, prompt_tokens, 30);
      const std::vector<int32_t> whole = fake_tokens(request, options);
      request.stop_tokens = {whole[5]};
      Usage usage;
      const std::vector<int32_t> tokens = run_alone(generator, request, usage);
      EXPECT_EQ(tokens, fake_tokens(request, options));
      EXPECT_EQ(generator.scheduler().counts().wasted_rows, async ? 1 : 0);
      EXPECT_EQ(generator.free_page_count(), options.page_count);
      indexed[async ? 1 : 0] = generator.scheduler().cache().indexed_count();
      // The next turn is that of a cold run.
      GenerateRequest next = request;
      next.id = SequenceId{2};
      next.prompt.insert(next.prompt.end(), tokens.begin(), tokens.end());
      next.prompt.insert(next.prompt.end(), {1, 2, 3, 4, 5});
      EXPECT_EQ(run_alone(generator, next, usage), fake_tokens(next, options));
      EXPECT_GT(usage.cached_tokens, 0);
    }
    EXPECT_EQ(indexed[0], indexed[1]) << prompt_tokens;
  }
}

TEST(AsyncGenerator, ACancelledSequenceIsToldAtOnceAndItsPlaceIsFreeWhenItsStepIsOver) {
  GeneratorOptions options = small_options(true);
  options.sequences_max = 1;
  FakeExecutor executor(options);
  Generator generator(executor, options);
  ASSERT_TRUE(generator.submit(small_request(1, 10, 30)).has_value());
  ASSERT_TRUE(generator.submit(small_request(2, 10, 2)).has_value());
  ASSERT_TRUE(generator.step().has_value());
  ASSERT_TRUE(generator.step().has_value());
  generator.cancel(SequenceId{1});
  StepOutcome outcome = generator.step().value();
  ASSERT_EQ(outcome.events.size(), 1U);  // the token in flight is not told any more
  EXPECT_EQ(outcome.events[0].finish, FinishReason::kCancelled);
  EXPECT_EQ(generator.scheduler().counts().wasted_rows, 1);
  std::vector<int32_t> tokens;
  while (!generator.idle()) {
    outcome = generator.step().value();
    for (const TokenEvent& event : outcome.events) tokens.push_back(event.token);
  }
  EXPECT_EQ(tokens, fake_tokens(small_request(2, 10, 2), options));
}

TEST(AsyncGenerator, WhoGivesWayDoesSoBetweenSteps) {
  GeneratorOptions options = small_options(true);
  options.sequences_max = 3;
  options.page_count = 24;
  FakeExecutor executor(options);
  Generator generator(executor, options);
  for (uint64_t id = 1; id <= 3; ++id) {
    GenerateRequest request = small_request(id, 12, 60);
    if (id == 3) request.priority = Priority::kBestEffort;
    ASSERT_TRUE(generator.submit(std::move(request)).has_value());
  }
  std::map<uint64_t, std::vector<int32_t>> output;
  int64_t bubbles = 0;
  for (int step = 0; !generator.idle(); ++step) {
    if (step == 10) {  // takes the place of the last
      ASSERT_TRUE(generator.submit(small_request(4, 12, 5)).has_value());
    }
    const int64_t preemptions = generator.scheduler().counts().preemptions;
    const bool in_flight = generator.in_flight() > 0;
    const StepOutcome outcome = generator.step().value();
    if (generator.scheduler().counts().preemptions > preemptions) {
      EXPECT_FALSE(in_flight);
      ++bubbles;
    }
    for (const TokenEvent& event : outcome.events) {
      output[static_cast<uint64_t>(event.id)].push_back(event.token);
    }
  }
  EXPECT_GT(bubbles, 1);
  for (uint64_t id = 1; id <= 4; ++id) {
    EXPECT_EQ(output[id], fake_tokens(small_request(id, 12, id == 4 ? 5 : 60), options)) << id;
  }
}

}  // namespace
}  // namespace galley::engine
