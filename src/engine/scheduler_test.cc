// What the scheduler promises, one promise a test, over the fake executor: who
// goes first, who is preempted, what is shared and why something was not.
// Random histories are in tests/sim.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "engine/fake_executor.h"
#include "engine/generator.h"

namespace galley::engine {
namespace {

using std::chrono::seconds;

GeneratorOptions small_options() {
  GeneratorOptions options;
  options.sequences_max = 2;
  options.rows_max = 16;
  options.waiting_max = 100;
  options.page_tokens = 4;
  options.page_count = 40;
  options.vocab_size = 50;
  options.positions_max = 120;
  options.window = 6;
  options.layers = 4;
  options.decoder_source = 2;
  options.growth_tokens = 4;
  return options;
}

GenerateRequest make_request(uint64_t id, int32_t prompt_tokens, int32_t output_tokens,
                             int32_t salt = 0) {
  GenerateRequest request;
  request.id = SequenceId{id};
  for (int32_t i = 0; i < prompt_tokens; ++i) request.prompt.push_back((i * 7 + salt) % 50);
  request.output_tokens_max = output_tokens;
  return request;
}

// A generator and what came of its sequences.
class Kitchen {
 public:
  explicit Kitchen(const GeneratorOptions& options, FakeModel model = {})
      : executor(options, model), generator(executor, options), model_(model) {}

  void submit(const GenerateRequest& request) {
    ASSERT_TRUE(generator.submit(request).has_value());
    requests[static_cast<uint64_t>(request.id)] = request;
  }

  void step(TimePoint now = {}) {
    const auto outcome = generator.step(now);
    ASSERT_TRUE(outcome.has_value()) << outcome.error().message;
    last = *outcome;
    for (const TokenEvent& event : outcome->events) {
      const auto id = static_cast<uint64_t>(event.id);
      if (event.has_token) output[id].push_back(event.token);
      if (event.has_token && output[id].size() == 1) first_tokens.push_back(id);
      usage[id] = event.usage;
      if (event.finish != FinishReason::kNone) finish[id] = event.finish;
    }
  }

  void run() {
    for (int i = 0; i < 10000 && !generator.idle(); ++i) step();
    ASSERT_TRUE(generator.idle());
    ASSERT_EQ(generator.free_page_count(), generator.options().page_count);
  }

  void expect_tokens_as_alone() {
    for (const auto& [id, request] : requests) {
      EXPECT_EQ(output[id], fake_tokens(request, generator.options(), model_)) << id;
    }
  }

  FakeExecutor executor;
  Generator generator;
  std::map<uint64_t, GenerateRequest> requests;
  std::map<uint64_t, std::vector<int32_t>> output;
  std::map<uint64_t, Usage> usage;
  std::map<uint64_t, FinishReason> finish;
  std::vector<uint64_t> first_tokens;  // ids, in order
  StepOutcome last;

 private:
  FakeModel model_;
};

TEST(Scheduler, InteractivePreemptsBestEffortWhichResumesToTheSameTokens) {
  Kitchen kitchen(small_options());
  for (uint64_t id = 1; id <= 2; ++id) {
    GenerateRequest idle_work = make_request(id, 10, 30, static_cast<int32_t>(id));
    idle_work.priority = Priority::kBestEffort;
    idle_work.sampling.frequency_penalty = 0.5F;
    kitchen.submit(idle_work);
  }
  for (int i = 0; i < 6; ++i) kitchen.step();
  kitchen.submit(make_request(3, 5, 3, 9));
  kitchen.step();
  EXPECT_EQ(kitchen.first_tokens.back(), 3U) << "it had to wait";
  kitchen.run();
  EXPECT_EQ(kitchen.usage[1].preemptions, 0);
  EXPECT_EQ(kitchen.usage[2].preemptions, 1);  // the later one
  kitchen.expect_tokens_as_alone();
}

TEST(Scheduler, AgeingLetsEverybodyRunInTheEnd) {
  GeneratorOptions options = small_options();
  options.sequences_max = 1;
  options.passes_per_promotion = 5;
  Kitchen kitchen(options);
  GenerateRequest patient = make_request(1, 5, 2);
  patient.priority = Priority::kBestEffort;
  kitchen.submit(make_request(2, 5, 3, 1));
  kitchen.submit(patient);
  uint64_t id = 3;
  while (kitchen.finish.count(1) == 0 && id < 100) {
    kitchen.submit(make_request(id++, 5, 1, 2));  // there is always somebody interactive
    kitchen.step();
  }
  EXPECT_EQ(kitchen.finish[1], FinishReason::kLength);
  EXPECT_GT(id, 10U) << "it did not give way at all";
  EXPECT_LT(id, 25U);
}

TEST(Scheduler, TenantsShareByWhatTheyHadNotByWhatTheyAsk) {
  GeneratorOptions options = small_options();
  options.sequences_max = 1;
  Kitchen kitchen(options);
  for (uint64_t id = 1; id <= 20; ++id) {
    GenerateRequest flood = make_request(id, 8, 4, static_cast<int32_t>(id));
    flood.tenant = 1;
    kitchen.submit(flood);
  }
  kitchen.step();
  for (uint64_t id = 21; id <= 23; ++id) {
    GenerateRequest modest = make_request(id, 8, 4, static_cast<int32_t>(id));
    modest.tenant = 2;
    kitchen.submit(modest);
  }
  kitchen.run();
  // Each of the second tenant's three is served before the flood's sixth.
  const auto place = [&](uint64_t id) {
    return std::ranges::find(kitchen.first_tokens, id) - kitchen.first_tokens.begin();
  };
  for (uint64_t id = 21; id <= 23; ++id) EXPECT_LT(place(id), place(6)) << id;
}

TEST(Scheduler, DeadlinesEndWhatRunsAndWhatWaits) {
  GeneratorOptions options = small_options();
  options.sequences_max = 1;
  Kitchen kitchen(options);
  for (uint64_t id = 1; id <= 3; ++id) {
    GenerateRequest request = make_request(id, 5, 50, static_cast<int32_t>(id));
    if (id < 3) request.deadline = TimePoint{} + seconds(10);
    kitchen.submit(request);
  }
  kitchen.step(TimePoint{} + seconds(9));
  EXPECT_TRUE(kitchen.finish.empty());
  kitchen.step(TimePoint{} + seconds(10));
  EXPECT_EQ(kitchen.finish[1], FinishReason::kDeadline);
  EXPECT_EQ(kitchen.finish[2], FinishReason::kDeadline);
  EXPECT_EQ(kitchen.usage[1].output_tokens, 1);
  EXPECT_FALSE(kitchen.usage[2].admitted_at.has_value());
  EXPECT_EQ(kitchen.first_tokens.back(), 3U);  // its place was free at once
}

TEST(Scheduler, SmallOnesPassALargeOneButNotForEver) {
  GeneratorOptions options = small_options();
  options.sequences_max = 3;
  options.passes_max = 4;
  Kitchen kitchen(options);
  kitchen.submit(make_request(1, 100, 20));  // 26 of 40 pages, then all 30
  kitchen.step();
  kitchen.submit(make_request(2, 90, 10, 1));  // does not fit beside it
  for (uint64_t id = 3; id < 20; ++id) {
    kitchen.submit(make_request(id, 4, 1, static_cast<int32_t>(id)));
  }
  kitchen.run();
  const auto large = std::ranges::find(kitchen.first_tokens, 2U) - kitchen.first_tokens.begin();
  EXPECT_GE(large, 4) << "nobody passed it";
  EXPECT_LE(large, 4 + options.sequences_max + 1) << "it starved";
  kitchen.expect_tokens_as_alone();
}

TEST(Scheduler, WhenThePoolRunsDryTheLastGivesWayAndLosesNothing) {
  GeneratorOptions options = small_options();
  options.sequences_max = 4;
  options.page_count = 30;
  Kitchen kitchen(options);
  for (uint64_t id = 1; id <= 4; ++id) {
    kitchen.submit(make_request(id, 12, 60, static_cast<int32_t>(id)));
  }
  kitchen.run();
  EXPECT_EQ(kitchen.usage[1].preemptions, 0);
  EXPECT_GT(kitchen.usage[4].preemptions, 0);
  kitchen.expect_tokens_as_alone();
}

TEST(Scheduler, ASharedPrefixIsComputedOnceEvenWhileItIsBeingComputed) {
  for (const PrefixReplay prefix : {PrefixReplay::kBounded, PrefixReplay::kExact}) {
    GeneratorOptions options = small_options();
    options.page_count = 60;
    options.prefix = prefix;
    Kitchen kitchen(options);
    kitchen.submit(make_request(1, 80, 5));
    GenerateRequest second = make_request(2, 80, 5);
    second.prompt.resize(70);
    kitchen.submit(second);
    kitchen.run();
    kitchen.expect_tokens_as_alone();
    EXPECT_EQ(kitchen.usage[1].cached_tokens, 0);
    EXPECT_EQ(kitchen.usage[1].miss, MissReason::kUnknown);
    EXPECT_EQ(kitchen.usage[2].cached_tokens, 68);
    EXPECT_EQ(kitchen.usage[2].miss, MissReason::kNone);
    const int32_t replayed = kitchen.usage[2].replayed_tokens;
    if (prefix == PrefixReplay::kBounded) {
      EXPECT_EQ(replayed, options.window);
    } else {
      EXPECT_EQ(replayed, 68 - (70 - 2 * 6 + 1 - 2 * 5));
    }
    EXPECT_EQ(kitchen.generator.scheduler().counts().prefill_rows, 80 + 2);
    EXPECT_EQ(kitchen.generator.scheduler().counts().replay_rows, replayed);
  }
}

TEST(Scheduler, TheNextTurnFindsPromptAndAnswer) {
  GeneratorOptions options = small_options();
  options.prefix = PrefixReplay::kExact;
  Kitchen kitchen(options, {.seed = 1, .layered = true});
  kitchen.submit(make_request(1, 40, 21));
  kitchen.run();
  GenerateRequest next = make_request(2, 40, 5);
  next.prompt.insert(next.prompt.end(), kitchen.output[1].begin(), kitchen.output[1].end());
  next.prompt.insert(next.prompt.end(), {1, 2, 3});
  kitchen.submit(next);
  kitchen.run();
  // The last token of the answer was never fed, so its page is the last that is not there.
  EXPECT_EQ(kitchen.usage[2].cached_tokens, 60);
  kitchen.expect_tokens_as_alone();
}

TEST(Scheduler, AReplayThatTakesStepsHasAnEnd) {
  for (const PrefixReplay prefix : {PrefixReplay::kBounded, PrefixReplay::kExact}) {
    GeneratorOptions options = small_options();
    options.prefix = prefix;
    options.rows_max = 3;  // fewer than the window
    Kitchen kitchen(options);
    kitchen.submit(make_request(1, 60, 1));
    kitchen.run();
    EXPECT_EQ(kitchen.usage[1].replayed_at, std::nullopt);
    kitchen.submit(make_request(2, 60, 2));
    int64_t steps = 0;
    int64_t replay_steps = 0;
    while (!kitchen.generator.idle()) {
      kitchen.step(TimePoint(seconds(++steps)));
      const auto running = kitchen.generator.scheduler().running();
      if (!running.empty() && running[0]->replays()) ++replay_steps;
    }
    ASSERT_GT(kitchen.usage[2].replayed_tokens, 3);
    EXPECT_EQ(kitchen.usage[2].admitted_at, TimePoint(seconds(1)));
    // The step after the last that replayed.
    EXPECT_EQ(kitchen.usage[2].replayed_at, TimePoint(seconds(1 + replay_steps)));
    EXPECT_EQ(replay_steps, (kitchen.usage[2].replayed_tokens + 2) / 3);
  }
}

// What agrees is too short to be worth a replay; what comes after it is shared all the same.
TEST(Scheduler, AShortCommonPrefixHidesNothingBehindIt) {
  for (const PrefixReplay prefix : {PrefixReplay::kBounded, PrefixReplay::kExact}) {
    GeneratorOptions options = small_options();
    options.page_count = 60;
    options.prefix = prefix;
    Kitchen kitchen(options);
    for (uint64_t id = 1; id <= 4; ++id) {
      GenerateRequest request = make_request(id, 60, 2);
      // The first page of all, then two families.
      for (size_t i = 4; i < 60; ++i) request.prompt[i] += id % 2 == 0 ? 1 : 0;
      for (int32_t& token : request.prompt) token %= 50;
      kitchen.submit(request);
      kitchen.run();
    }
    kitchen.expect_tokens_as_alone();
    EXPECT_EQ(kitchen.usage[2].cached_tokens, 0);
    EXPECT_EQ(kitchen.usage[3].cached_tokens, 56);
    EXPECT_EQ(kitchen.usage[4].cached_tokens, 56);
    EXPECT_EQ(kitchen.generator.scheduler().cache().indexed_count(), 1 + 2 * 14);
  }
}

TEST(Scheduler, EveryMissHasItsReason) {
  GeneratorOptions options = small_options();
  options.prefix = PrefixReplay::kBounded;
  Kitchen kitchen(options);
  const auto miss = [&](GenerateRequest request) {
    kitchen.submit(request);
    kitchen.run();
    return kitchen.usage[static_cast<uint64_t>(request.id)].miss;
  };
  EXPECT_EQ(miss(make_request(1, 60, 1)), MissReason::kUnknown);
  EXPECT_EQ(miss(make_request(2, 60, 1)), MissReason::kNone);
  EXPECT_EQ(kitchen.usage[2].cached_tokens, 56);
  EXPECT_EQ(miss(make_request(3, 4, 1)), MissReason::kTooShort);  // no whole page can be reused
  EXPECT_EQ(miss(make_request(4, 8, 1)), MissReason::kTooShort);  // one page is within the window
  GenerateRequest other = make_request(5, 60, 1);
  other.prompt[41] = 49;
  EXPECT_EQ(miss(other), MissReason::kTokenDiffers);
  EXPECT_EQ(kitchen.usage[5].cached_tokens, 40);
  EXPECT_EQ(kitchen.usage[5].differs_at, 41);
  GenerateRequest foreign = make_request(6, 60, 1);
  foreign.cache_namespace = "other";
  EXPECT_EQ(miss(foreign), MissReason::kOtherNamespace);
  EXPECT_EQ(kitchen.usage[6].cached_tokens, 0);
  GenerateRequest stranger = make_request(7, 60, 1);
  stranger.cache_namespace = "third";
  stranger.tenant = 7;  // is not told what others have
  EXPECT_EQ(miss(stranger), MissReason::kUnknown);
  for (uint64_t id = 10; id < 13; ++id) {
    EXPECT_EQ(miss(make_request(id, 100, 1, static_cast<int32_t>(id))), MissReason::kUnknown);
  }
  EXPECT_EQ(miss(make_request(8, 60, 1)), MissReason::kEvicted);
  options.prefix = PrefixReplay::kOff;
  Kitchen without(options);
  without.submit(make_request(1, 60, 1));
  without.run();
  EXPECT_EQ(without.usage[1].miss, MissReason::kOff);
}

TEST(Scheduler, APrefixThatNobodyUsedForTooLongIsAMiss) {
  GeneratorOptions options = small_options();
  options.prefix = PrefixReplay::kExact;
  options.prefix_ttl_s = 60;
  Kitchen kitchen(options);
  TimePoint now{seconds(5000)};
  const auto run = [&](uint64_t id) {
    kitchen.submit(make_request(id, 60, 1));
    while (!kitchen.generator.idle()) kitchen.step(now);
    return kitchen.usage[id];
  };
  run(1);
  now += seconds(59);
  EXPECT_EQ(run(2).cached_tokens, 56) << "and used again";
  now += seconds(59);
  EXPECT_EQ(run(3).cached_tokens, 56);
  now += seconds(60);
  const Usage late = run(4);
  EXPECT_EQ(late.cached_tokens, 0);
  EXPECT_EQ(late.miss, MissReason::kExpired);
  EXPECT_EQ(kitchen.generator.scheduler().cache().expiries(), 15);
  now += seconds(1);
  EXPECT_EQ(run(5).cached_tokens, 56) << "computed again, it is there again";
  kitchen.expect_tokens_as_alone();
}

// Two sequences that hold long hits and together need more pages than there are: if both could
// start, neither could finish, and neither may give its hit back.
TEST(Scheduler, BoundedHitsNeverBlockThePool) {
  GeneratorOptions options = small_options();
  options.prefix = PrefixReplay::kBounded;
  options.page_count = 26;
  options.positions_max = 100;
  Kitchen kitchen(options, {.seed = 1, .layered = false});
  for (int32_t salt = 1; salt <= 2; ++salt) {
    kitchen.submit(make_request(static_cast<uint64_t>(salt), 45, 1, salt));
    kitchen.run();
  }
  for (int32_t salt = 1; salt <= 2; ++salt) {
    kitchen.submit(make_request(static_cast<uint64_t>(10 + salt), 45, 50, salt));
  }
  kitchen.run();
  kitchen.expect_tokens_as_alone();
  EXPECT_EQ(kitchen.usage[11].cached_tokens, 44);
}

}  // namespace
}  // namespace galley::engine
