// The real scheduler on simulated time over the fake executor, with random
// arrivals, priorities, tenants, deadlines, cancellations and pools far too
// small, with more or less snapshot memory, in half of the histories with a step planned while
// another is in flight, which is computed as early or as late as may be: nobody is lost or ends
// twice, no page, slot or block leaks or is given away under a step, nobody waits for ever, and
// every token is the one that the sequence gives alone, from the same start. One
// seed is one history; a failure prints it.
//
// GALLEY_SIM_STEPS=1000000 runs the long form, GALLEY_SIM_SEED picks the history.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <map>
#include <random>
#include <string>

#include "engine/fake_executor.h"
#include "engine/generator.h"

namespace galley::engine {
namespace {

int64_t number_from_environment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoll(text) : otherwise;
}

struct Live {
  GenerateRequest request;
  std::vector<int32_t> output;
  bool cancels = false;
  FakeHit hit;  // as of its first token
  bool planned_token = false;
  int64_t arrived_at = 0;
};

struct Tally {
  int64_t submitted = 0;
  int64_t refused = 0;
  int64_t finished[kFinishReasonCount] = {};
  int64_t tokens = 0;
  int64_t hits = 0;
  int64_t resumed = 0;  // preempted after a token and still ended by itself
  int64_t longest_wait = 0;
};

// Shows every plan to somebody before it is computed.
class WatchedExecutor final : public Executor {
 public:
  WatchedExecutor(FakeExecutor& executor, std::function<void(const PlannedSequence&)> watch)
      : executor_(executor), watch_(std::move(watch)) {}

  void start(const SequenceStart& start) override { executor_.start(start); }
  Result<void> submit(const StepPlan& plan) override {
    for (const PlannedSequence& planned : plan.sequences) watch_(planned);
    return executor_.submit(plan);
  }
  void mask(uint64_t, int32_t, std::span<const uint64_t>) override {}
  Result<StepResult> collect() override { return executor_.collect(); }

 private:
  FakeExecutor& executor_;
  std::function<void(const PlannedSequence&)> watch_;
};

class Simulation {
 public:
  Simulation(uint64_t seed, PrefixReplay prefix)
      : random_(seed),
        options_(make_options(prefix)),
        model_{.seed = seed, .layered = true},
        executor_(options_, model_),
        watched_(executor_, [this](const PlannedSequence& planned) { note_hit(planned); }),
        generator_(watched_, options_) {
    for (int i = 0; i < 6; ++i) families_.push_back(random_tokens(80));
  }

  void run(int64_t steps) {
    for (int64_t i = 0; i < steps; ++i) {
      if (i % 400 == 0) load_ = pick(0, 8);  // tenths of an arrival a step: calm and storm
      if (pick(0, 9) < load_) arrive();
      if (pick(0, 30) == 0) cancel_one();
      step();
      if (::testing::Test::HasFatalFailure()) return;
    }
    for (int i = 0; i < 20000 && !generator_.idle(); ++i) step();
    ASSERT_TRUE(generator_.idle()) << live_.size() << " sequences never ended";
    ASSERT_TRUE(live_.empty()) << live_.size() << " sequences were lost";
    ASSERT_EQ(generator_.free_page_count(), options_.page_count) << "pages leaked";
    ASSERT_EQ(generator_.scheduler().free_slot_count(), options_.sequences_max) << "slots leaked";
    step();  // lets go of what the last one read
    const cache::SnapshotPool& snapshots = generator_.scheduler().snapshots();
    int32_t kept = 0;
    for (int32_t page = 0; page < options_.page_count; ++page) {
      kept += snapshots.of_page({page}) ? options_.reuse_blocks : 0;
    }
    ASSERT_EQ(snapshots.used_blocks(), kept) << "blocks leaked";
    int64_t ended = 0;
    for (const int64_t count : tally_.finished) ended += count;
    ASSERT_EQ(ended, tally_.submitted);
  }

  const Tally& tally() const { return tally_; }
  const Scheduler& scheduler() const { return generator_.scheduler(); }

 private:
  int64_t pick(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  int32_t pick32(int64_t low, int64_t high) { return static_cast<int32_t>(pick(low, high)); }

  std::vector<int32_t> random_tokens(int64_t count) {
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < count; ++i) tokens.push_back(pick32(0, 39));
    return tokens;
  }

  GeneratorOptions make_options(PrefixReplay prefix) {
    GeneratorOptions options;
    options.sequences_max = pick32(1, 6);
    options.rows_max = options.sequences_max + pick32(0, 40);
    options.waiting_max = 40;
    options.page_tokens = pick(0, 1) == 0 ? 4 : 8;
    options.vocab_size = 40;
    options.positions_max = 160;
    options.window = pick(3, 12);
    options.layers = 4;
    options.decoder_source = 2;
    options.replay =
        pick(0, 1) == 0 ? model::DecoderReplay::kOff : model::DecoderReplay::kWindowAndGlobal;
    // From one sequence's worth to plenty.
    options.page_count = 160 / options.page_tokens + 1 + pick32(0, 60);
    options.growth_tokens = pick32(1, 24);
    options.look_ahead = pick32(1, 8);
    options.passes_max = pick32(1, 20);
    options.passes_per_promotion = pick32(4, 40);
    options.prefill_rows_beside_decode = pick(0, 2) == 0 ? pick32(1, 16) : 0;
    options.prefix = prefix;
    options.async_scheduling = pick(0, 1) == 0;
    if (pick(0, 3) == 0) options.prefix_ttl_s = 1;
    if (pick(0, 4) == 0) return options;  // without snapshots
    options.snapshot_blocks = pick32(1, 150);
    options.slot_blocks = pick32(1, 6);
    options.reuse_blocks = prefix == PrefixReplay::kOff || pick(0, 5) == 0 ? 0 : pick32(1, 4);
    return options;
  }

  void arrive() {
    Live live;
    GenerateRequest& request = live.request;
    request.id = SequenceId{++last_id_};
    const std::vector<int32_t>& family = families_[static_cast<size_t>(pick(0, 5))];
    const auto shared = pick(0, 2) == 0 ? 80 : pick(0, 80);
    request.prompt.assign(family.begin(), family.begin() + shared);
    const std::vector<int32_t> own = random_tokens(pick(shared == 0 ? 1 : 0, 20));
    if (!turns_.empty() && pick(0, 2) == 0) {
      request.prompt = turns_[static_cast<size_t>(pick(0, std::ssize(turns_) - 1))];
    }
    request.prompt.insert(request.prompt.end(), own.begin(), own.end());
    if (request.prompt.empty()) request.prompt = {1};
    request.output_tokens_max = pick(0, 2) == 0 ? pick32(30, 60) : pick32(1, 40);
    request.stop_tokens = {7};
    request.priority = static_cast<Priority>(pick(0, 2));
    request.tenant = static_cast<uint64_t>(pick(0, 3));
    if (pick(0, 4) == 0) request.cache_namespace = "other";
    if (pick(0, 9) == 0) request.deadline = now_ + std::chrono::milliseconds(pick(0, 300));
    live.arrived_at = steps_;
    const Result<void> accepted = generator_.submit(request);
    if (!accepted) {
      ASSERT_EQ(accepted.error().code, ErrorCode::kExhausted) << accepted.error().message;
      ++tally_.refused;
      return;
    }
    ++tally_.submitted;
    live_.emplace(last_id_, std::move(live));
  }

  void cancel_one() {
    if (live_.empty()) return;
    auto one = live_.begin();
    std::advance(one, pick(0, static_cast<int64_t>(live_.size()) - 1));
    one->second.cancels = true;
    generator_.cancel(SequenceId{one->first});
  }

  void step() {
    now_ += std::chrono::milliseconds(1);
    ++steps_;
    executor_.run_early(pick(0, 1) == 0);
    const Result<StepOutcome> outcome = generator_.step(now_);
    ASSERT_TRUE(outcome.has_value()) << outcome.error().message;
    for (const TokenEvent& event : outcome->events) take(event);
  }

  // The start that a sequence's tokens depend on, before anything of this step is written.
  void note_hit(const PlannedSequence& planned) {
    const model::SequencePlan& rows = planned.rows;
    Live& live = live_.at(static_cast<uint64_t>(planned.id));
    if (live.planned_token) {
      if (options_.prefix != PrefixReplay::kBounded) return;
      ASSERT_EQ(rows.window_floor, live.hit.replay_start) << "resumed from another start";
      if (live.hit.replay_start == 0) return;  // cold, or a state that is as after a cold run
      ASSERT_EQ(rows.global_begin, std::ssize(live.hit.globals)) << "resumed from another hit";
      return;
    }
    // The chunk that ends at or after the hit's end names all of its pages.
    live.hit = {rows.window_floor, {}};
    const auto known = std::min(rows.global_begin, rows.end_position());
    live.hit.globals = executor_.globals(rows.page_table, known);
    live.planned_token = planned.samples;
  }

  void take(const TokenEvent& event) {
    const auto found = live_.find(static_cast<uint64_t>(event.id));
    ASSERT_NE(found, live_.end()) << "an event for a sequence that is gone";
    Live& live = found->second;
    if (event.has_token) live.output.push_back(event.token);
    ASSERT_EQ(event.usage.output_tokens, static_cast<int32_t>(live.output.size()));
    tally_.longest_wait = std::max(tally_.longest_wait, steps_ - live.arrived_at);
    if (event.finish == FinishReason::kNone) return;
    ++tally_.finished[static_cast<size_t>(event.finish)];
    tally_.tokens += event.usage.output_tokens;
    tally_.hits += event.usage.cached_tokens > 0 ? 1 : 0;
    check_end(live, event);
    live_.erase(found);
  }

  void check_end(const Live& live, const TokenEvent& event) {
    const bool early =
        event.finish == FinishReason::kCancelled || event.finish == FinishReason::kDeadline;
    ASSERT_TRUE(event.finish != FinishReason::kCancelled || live.cancels);
    ASSERT_TRUE(event.finish != FinishReason::kDeadline || *live.request.deadline <= now_);
    if (!early && event.usage.preemptions > 0) ++tally_.resumed;
    // An exact hit gives what a cold run gives; a bounded one what its own start gives, which may
    // be that of an earlier turn whose snapshot it took.
    const bool own_start = options_.prefix == PrefixReplay::kBounded && live.hit.replay_start > 0;
    std::vector<int32_t> expected =
        fake_tokens(live.request, options_, model_, own_start ? live.hit : FakeHit{});
    if (early) {
      ASSERT_LE(live.output.size(), expected.size());
      expected.resize(live.output.size());
    }
    ASSERT_EQ(live.output, expected)
        << "sequence " << static_cast<uint64_t>(event.id) << " cached " << event.usage.cached_tokens
        << " preempted " << event.usage.preemptions;
    // Some go on: prompt and answer are the next turn's prompt.
    std::vector<int32_t> turn = live.request.prompt;
    turn.insert(turn.end(), live.output.begin(), live.output.end());
    if (turn.size() > 80) return;
    if (turns_.size() == 8) turns_.erase(turns_.begin());
    turns_.push_back(std::move(turn));
  }

  std::mt19937_64 random_;
  GeneratorOptions options_;
  FakeModel model_;
  FakeExecutor executor_;
  WatchedExecutor watched_;
  Generator generator_;
  std::vector<std::vector<int32_t>> families_;
  std::vector<std::vector<int32_t>> turns_;
  std::map<uint64_t, Live> live_;
  uint64_t last_id_ = 0;
  TimePoint now_;
  int64_t steps_ = 0;
  int64_t load_ = 0;
  Tally tally_;
};

class SchedulerSimulation : public ::testing::TestWithParam<PrefixReplay> {};

TEST_P(SchedulerSimulation, NobodyIsLostAndEveryTokenIsItsOwn) {
  constexpr int64_t kStepsEach = 2500;
  const int64_t steps = number_from_environment("GALLEY_SIM_STEPS", 50000);
  const auto first_seed = static_cast<uint64_t>(number_from_environment("GALLEY_SIM_SEED", 1));
  Tally sum;
  int64_t preemptions = 0;
  int64_t evictions = 0;
  int64_t wasted = 0;
  int64_t expiries = 0;
  SchedulerCounts snapshots;
  for (uint64_t seed = first_seed; seed < first_seed + static_cast<uint64_t>(steps / kStepsEach);
       ++seed) {
    SCOPED_TRACE("GALLEY_SIM_SEED=" + std::to_string(seed));
    Simulation simulation(seed, GetParam());
    simulation.run(kStepsEach);
    if (HasFatalFailure()) return;
    const Tally& tally = simulation.tally();
    sum.submitted += tally.submitted;
    sum.tokens += tally.tokens;
    sum.hits += tally.hits;
    sum.resumed += tally.resumed;
    sum.longest_wait = std::max(sum.longest_wait, tally.longest_wait);
    preemptions += simulation.scheduler().counts().preemptions;
    wasted += simulation.scheduler().counts().wasted_rows;
    evictions += simulation.scheduler().cache().evictions();
    const SchedulerCounts& counts = simulation.scheduler().counts();
    snapshots.spills += counts.spills;
    snapshots.resumes += counts.resumes;
    snapshots.snapshots += counts.snapshots;
    snapshots.branches += counts.branches;
    snapshots.snapshot_hits += counts.snapshot_hits;
    expiries += simulation.scheduler().cache().expiries();
  }
  std::printf(
      "%lld spills, %lld resumes, %lld snapshots, %lld where prompts part, %lld hits of these, "
      "%lld expiries\n",
      static_cast<long long>(snapshots.spills), static_cast<long long>(snapshots.resumes),
      static_cast<long long>(snapshots.snapshots), static_cast<long long>(snapshots.branches),
      static_cast<long long>(snapshots.snapshot_hits), static_cast<long long>(expiries));
  std::printf(
      "%lld sequences, %lld tokens, %lld hits, %lld preemptions, %lld finished after "
      "one, %lld evictions, %lld rows wasted, longest wait %lld steps\n",
      static_cast<long long>(sum.submitted), static_cast<long long>(sum.tokens),
      static_cast<long long>(sum.hits), static_cast<long long>(preemptions),
      static_cast<long long>(sum.resumed), static_cast<long long>(evictions),
      static_cast<long long>(wasted), static_cast<long long>(sum.longest_wait));
  // What the histories must have met to show anything.
  EXPECT_GT(sum.resumed, 0);
  EXPECT_GT(wasted, 0);
  EXPECT_GT(snapshots.resumes, 0);
  EXPECT_EQ(snapshots.snapshot_hits > 0, GetParam() != PrefixReplay::kOff);
  EXPECT_EQ(snapshots.branches > 0, GetParam() != PrefixReplay::kOff);
  EXPECT_EQ(expiries > 0, GetParam() != PrefixReplay::kOff);
  EXPECT_EQ(sum.hits > 0, GetParam() != PrefixReplay::kOff);
  EXPECT_EQ(evictions > 0, GetParam() != PrefixReplay::kOff);
}

double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// 64 sequences decode, 1,000 wait: what planning and committing a step costs the host, one after
// the other and planned ahead. The limit is that of a whole step's host work.
class SchedulerCost : public ::testing::TestWithParam<bool> {};

TEST_P(SchedulerCost, AStepOf64SequencesIsPlannedInMicroseconds) {
  GeneratorOptions options;
  options.sequences_max = 64;
  options.page_tokens = 128;
  options.page_count = 64 * 40;
  options.vocab_size = 1000;
  options.positions_max = 4096;
  options.window = 128;
  options.layers = 40;
  options.decoder_source = 20;
  options.prefix = PrefixReplay::kBounded;
  Scheduler scheduler(options);
  const auto submit = [&](uint64_t id) {
    GenerateRequest request;
    request.id = SequenceId{id};
    for (uint64_t i = 0; i < 300; ++i) {
      request.prompt.push_back(static_cast<int32_t>((i * 31 + id * 17 * (i / 128)) % 1000));
    }
    request.output_tokens_max = 400 + static_cast<int32_t>(id % 64) * 10;
    ASSERT_TRUE(scheduler.submit(std::move(request)).has_value());
  };
  uint64_t id = 0;
  while (id < 1000) submit(++id);
  std::vector<SampledSequence> sampled;
  std::vector<double> costs;
  StepPlan before;  // in flight
  for (int step = 0; step < 3000; ++step) {
    const double begin = thread_seconds();
    const StepPlan plan = scheduler.plan({});
    const double planned = thread_seconds();
    const StepPlan over = GetParam() ? std::exchange(before, plan) : plan;
    if (over.step_id == 0) continue;
    sampled.clear();
    for (const PlannedSequence& one : over.sequences) {
      if (one.samples) sampled.push_back({one.id, one.rows.slot, {5, true, 0}, {}});
    }
    const double computed = thread_seconds();
    scheduler.commit({over.step_id, sampled});
    costs.push_back(thread_seconds() - computed + planned - begin);
    for (const TokenEvent& event : scheduler.events()) {
      if (event.finish != FinishReason::kNone) submit(++id);
    }
  }
  std::ranges::sort(costs);
  const double median = 1e6 * costs[costs.size() / 2];
  const double late = 1e6 * costs[costs.size() * 99 / 100];
  std::printf("plan and commit, 64 sequences%s: median %.1f us, 99th percentile %.1f us\n",
              GetParam() ? ", planned ahead" : "", median, late);
#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(median, 150);
#endif
}

INSTANTIATE_TEST_SUITE_P(Ahead, SchedulerCost, ::testing::Bool());

std::string prefix_name(const ::testing::TestParamInfo<PrefixReplay>& parameter) {
  if (parameter.param == PrefixReplay::kOff) return "Off";
  return parameter.param == PrefixReplay::kBounded ? "Bounded" : "Exact";
}

INSTANTIATE_TEST_SUITE_P(Prefix, SchedulerSimulation,
                         ::testing::Values(PrefixReplay::kOff, PrefixReplay::kBounded,
                                           PrefixReplay::kExact),
                         prefix_name);

}  // namespace
}  // namespace galley::engine
