// Prefix reuse and preemption over a real (tiny, random) model: after an exact hit
// and after preemption every log-probability has the bits of a lone cold run; a
// bounded hit is approximate, reported, and the same whatever the chunks; with
// snapshots nothing is computed twice, and a later turn has the bits of a cold run.
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

  GeneratorOptions with_snapshots(GeneratorOptions made) const {
    EXPECT_TRUE(size_snapshots(model_->config(), int64_t{64} << 20, made).has_value());
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
    counts_ = generator.scheduler().counts();
    return out;
  }

  Answer cold(GenerateRequest request) {
    const auto id = static_cast<uint64_t>(request.id);
    return answers(options(PrefixReplay::kOff), {std::move(request)}, true).at(id);
  }

  ThreadPool pool_{2};
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<kernels::Ops> ops_;
  SchedulerCounts counts_;  // of the last answers()
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
    for (const bool snapshots : {false, true}) {
      const auto squeezed = answers(snapshots ? with_snapshots(tight) : tight, requests, true);
      EXPECT_GT(squeezed.at(3).usage.preemptions, 0);
      EXPECT_EQ(counts_.spills, snapshots ? counts_.preemptions : 0);
      EXPECT_EQ(counts_.resumes, counts_.spills);
      EXPECT_EQ(counts_.recomputed_rows > 0, !snapshots);
      for (const GenerateRequest& request : requests) {
        const auto id = static_cast<uint64_t>(request.id);
        EXPECT_EQ(squeezed.at(id).logprobs, cold(request).logprobs) << id;
      }
    }
  }
}

// Somebody more urgent comes after each of the first tokens, and again, with and without a prefix
// hit before; there is one slot.
TEST_F(Reuse, WhoeverGivesWayGoesOnWhereItWas) {
  const GenerateRequest patient = [&] {
    GenerateRequest made = long_request(1, 75, 40);
    made.priority = Priority::kBestEffort;
    return made;
  }();
  for (const PrefixReplay prefix :
       {PrefixReplay::kOff, PrefixReplay::kBounded, PrefixReplay::kExact}) {
    for (const bool async : {false, true}) {
      GeneratorOptions one = options(prefix);
      one.sequences_max = 1;
      one.async_scheduling = async;
      one = with_snapshots(one);
      const std::vector<float> alone = cold(patient).logprobs;
      for (size_t tokens_before = 1; tokens_before < 38; tokens_before += 9) {
        const auto executor = LocalExecutor::create(*model_, *ops_, one).value();
        Generator generator(*executor, one);
        std::vector<float> logprobs;
        uint64_t urgent = 100;
        ASSERT_TRUE(generator.submit(patient).has_value());
        while (!generator.idle()) {
          const StepOutcome outcome = generator.step().value();
          for (const TokenEvent& event : outcome.events) {
            if (event.id != patient.id) continue;
            logprobs.push_back(event.logprob);
            if (logprobs.size() != tokens_before && logprobs.size() != tokens_before + 2) continue;
            GenerateRequest other = long_request(++urgent, 90, 2);
            other.prompt[3] = static_cast<int32_t>(urgent);
            ASSERT_TRUE(generator.submit(other).has_value());
          }
        }
        EXPECT_EQ(logprobs, alone) << "preempted after token " << tokens_before;
        EXPECT_GE(generator.scheduler().counts().resumes, 1);
        EXPECT_EQ(generator.scheduler().counts().recomputed_rows, 0);
      }
    }
  }
}

// The next turn of a conversation, from where the answer or its prompt ended: nothing is replayed,
// and the answer is that of a cold run, whatever the kind of replay. Then a turn more.
TEST_F(Reuse, TheNextTurnReplaysNothingAndHasTheBitsOfAColdRun) {
  for (const PrefixReplay prefix : {PrefixReplay::kBounded, PrefixReplay::kExact}) {
    for (const model::DecoderReplay reading :
         {model::DecoderReplay::kWindowAndGlobal, model::DecoderReplay::kOff}) {
      GeneratorOptions warm = options(prefix);
      warm.replay = reading;
      GeneratorOptions plain = warm;
      plain.prefix = PrefixReplay::kOff;
      warm = with_snapshots(warm);
      for (const int32_t more : {1, 16, 17, 40}) {
        if (reading == model::DecoderReplay::kOff && more > 16) continue;
        const GenerateRequest first = long_request(1, 250, 30);
        const auto answer_of = [&](const GenerateRequest& request) {
          return answers(plain, {request}, true).at(static_cast<uint64_t>(request.id));
        };
        GenerateRequest next = long_request(2, 250, 9);
        const auto append = [&](GenerateRequest& request, const std::vector<int32_t>& tokens) {
          request.prompt.insert(request.prompt.end(), tokens.begin(), tokens.end());
          for (int32_t i = 0; i < more; ++i) request.prompt.push_back((i * 31 + more) % 500);
        };
        append(next, answer_of(first).tokens);
        const Answer next_alone = answer_of(next);
        GenerateRequest third = next;
        third.id = SequenceId{3};
        append(third, next_alone.tokens);
        // Of the first prompt, whose answer was thrown away.
        GenerateRequest again = long_request(4, 250, 9);
        append(again, {});
        const auto got = answers(warm, {first, next, third, again}, false);
        EXPECT_EQ(counts_.snapshot_hits, 3);
        EXPECT_EQ(counts_.replay_rows, 0);
        EXPECT_EQ(got.at(2).usage.cached_tokens, 272);  // 279 were computed, in pages of 16
        EXPECT_EQ(got.at(3).usage.cached_tokens, (280 + more + 8) / 16 * 16);
        EXPECT_EQ(got.at(4).usage.cached_tokens, 240);
        for (uint64_t id = 2; id <= 4; ++id) EXPECT_EQ(got.at(id).usage.replayed_tokens, 0);
        EXPECT_EQ(got.at(2).logprobs, next_alone.logprobs) << more;
        EXPECT_EQ(got.at(3).logprobs, answer_of(third).logprobs) << more;
        EXPECT_EQ(got.at(4).logprobs, answer_of(again).logprobs) << more;
      }
    }
  }
}

// Started behind a bounded hit, a conversation stays that of its start: the next turn has the bits
// that it has when all of it is computed behind that hit.
TEST_F(Reuse, ASnapshotBehindABoundedHitGoesOnFromTheSameStart) {
  const GeneratorOptions plain = options(PrefixReplay::kBounded);
  const GenerateRequest system = long_request(1, 270, 1);  // its snapshot lies further on
  GenerateRequest first = long_request(2, 250, 30);
  first.prompt[245] = 9;  // shares 240 tokens
  const Answer answer = answers(plain, {system, first}, false).at(2);
  EXPECT_EQ(answer.usage.cached_tokens, 240);
  GenerateRequest next = first;
  next.id = SequenceId{3};
  next.prompt.insert(next.prompt.end(), answer.tokens.begin(), answer.tokens.end());
  next.prompt.push_back(11);
  const Answer warm = answers(with_snapshots(plain), {system, first, next}, false).at(3);
  EXPECT_EQ(warm.usage.cached_tokens, 272);
  EXPECT_EQ(warm.usage.replayed_tokens, 0);
  const Answer whole = answers(plain, {system, next}, false).at(3);
  EXPECT_EQ(whole.usage.cached_tokens, 240);
  EXPECT_EQ(whole.usage.replayed_tokens, model_->config().window);
  EXPECT_EQ(warm.logprobs, whole.logprobs);
  EXPECT_NE(warm.logprobs, cold(next).logprobs) << "it is approximate";
}

// New conversations on a shared beginning: the first that finds it replays, and leaves the state
// where they part; the next ones replay nothing and have the bits that their own replay would have
// given: after an exact one those of a cold run.
TEST_F(Reuse, OneReplayOfASharedBeginningIsEnough) {
  for (const PrefixReplay prefix : {PrefixReplay::kBounded, PrefixReplay::kExact}) {
    for (const bool async : {false, true}) {
      for (const int32_t rows_max : {40, 7}) {
        GeneratorOptions plain = options(prefix);
        plain.async_scheduling = async;
        plain.rows_max = rows_max;
        std::vector<GenerateRequest> requests;
        for (uint64_t id = 1; id <= 4; ++id) {
          requests.push_back(long_request(id, 240 + static_cast<int32_t>(id), 6));
          requests.back().prompt[200] = static_cast<int32_t>(id);  // they share 12 pages of 16
        }
        const auto replayed = answers(plain, requests, false);
        const auto kept = answers(with_snapshots(plain), requests, false);
        EXPECT_EQ(counts_.snapshot_hits, 2);
        EXPECT_GT(kept.at(2).usage.replayed_tokens, 0);
        for (uint64_t id = 2; id <= 4; ++id) {
          EXPECT_EQ(kept.at(id).usage.cached_tokens, 192);
          EXPECT_EQ(kept.at(id).logprobs, replayed.at(id).logprobs) << id;
          if (id == 2) continue;
          EXPECT_EQ(kept.at(id).usage.replayed_tokens, 0);
          const bool is_cold = kept.at(id).logprobs == cold(requests[id - 1]).logprobs;
          EXPECT_EQ(is_cold, prefix == PrefixReplay::kExact);
        }
      }
    }
  }
}

// Too short to be worth a replay, it is computed once more, and not a third time: from the state
// of a cold run.
TEST_F(Reuse, ABeginningTooShortToReplayIsFoundByItsSnapshot) {
  for (const PrefixReplay prefix : {PrefixReplay::kBounded, PrefixReplay::kExact}) {
    std::vector<GenerateRequest> requests;
    for (uint64_t id = 1; id <= 3; ++id) {
      requests.push_back(long_request(id, 90, 6));
      requests.back().prompt[20] = static_cast<int32_t>(id);
    }
    const auto got = answers(with_snapshots(options(prefix)), requests, false);
    EXPECT_EQ(got.at(2).usage.cached_tokens, 0);
    EXPECT_EQ(got.at(3).usage.cached_tokens, 16);
    EXPECT_EQ(got.at(3).usage.replayed_tokens, 0);
    for (uint64_t id = 2; id <= 3; ++id) {
      EXPECT_EQ(got.at(id).logprobs, cold(requests[id - 1]).logprobs);
    }
  }
}

}  // namespace
}  // namespace galley::engine
