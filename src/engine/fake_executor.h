// An Executor without a model: it keeps pages, window rings and tail rings of
// numbers, and a sequence's next token is a hash of what it reads there.
//
// Anything the scheduler gets wrong (a page given twice, a ring not refilled, a
// prompt end forgotten, a page or slot given away under a step in flight) changes
// tokens or is refused. A step is computed as late as may be, when it is collected,
// or as early, when it is submitted. For tests, simulation and planning;
// fake_tokens() says what a sequence gives when it runs alone.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/executor.h"
#include "engine/generator.h"

namespace galley::engine {

struct FakeModel {
  uint64_t seed = 1;
  // As in a real model, what a row writes depends on the window before it: a bounded replay
  // then gives other tokens than a cold run, an exact one the same.
  bool layered = false;
};

class FakeExecutor final : public Executor {
 public:
  // Sized for a generator with these options.
  explicit FakeExecutor(const GeneratorOptions& options, FakeModel model = {});

  void start(const SequenceStart& start) override;
  // kInvalid: a real model could not run this plan, and why.
  Result<void> submit(const StepPlan& plan) override;
  void mask(uint64_t, int32_t, std::span<const uint64_t>) override {}
  Result<StepResult> collect() override;

  // What the first `positions` of a page table hold.
  std::vector<uint64_t> globals(std::span<const int32_t> page_table, int64_t positions) const;

  int64_t rows_most() const { return rows_most_; }
  // From now on: whether steps are computed when they are submitted.
  void run_early(bool early) { early_ = early; }
  // Called by collect() with the number of steps so far; an error is the step's.
  void on_collect(std::function<Result<void>(int64_t)> hook) { hook_ = std::move(hook); }
  // Sequences of exactly this many tokens get no usable logits.
  void fail_at(int64_t tokens) { fail_at_ = tokens; }

 private:
  struct Entry {
    int64_t position = -1;
    uint64_t value = 0;
  };

  struct Flight {
    StepPlan plan;
    std::vector<int32_t> fresh_slots;  // started before it was submitted
    bool computed = false;
    std::vector<SampledSequence> sampled;
  };
  // What a slot sampled last, and in which step.
  struct LastSample {
    uint64_t step_id = 0;
    int32_t token = 0;
  };

  Flight& flight_of(uint64_t step_id) { return flights_[step_id % kStepsInFlightMax]; }
  // Of the oldest step in flight, or the one to be submitted next.
  uint64_t oldest() const { return last_step_ + 1 - static_cast<uint64_t>(in_flight_); }
  Result<void> check(const StepPlan& plan);
  Result<void> check_one(const model::SequencePlan& plan) const;
  // Nothing that the steps in flight name is touched by another sequence.
  Result<void> check_beside(const PlannedSequence& planned);
  void compute(Flight& flight);
  void save(const SnapshotCopy& copy);
  void load(const SnapshotCopy& copy);
  // Which entries a part of a slot has, in order.
  template <class Visit>
  void visit_part(const SnapshotCopy& copy, const Visit& visit);
  void run_rows(const model::SequencePlan& plan);
  uint64_t& global(const model::SequencePlan& plan, int64_t position);
  // Of layer `layer` at `position` in a slot.
  Entry& ring(int32_t layer, int32_t slot, int64_t position);
  uint64_t fold(int32_t layer, int32_t slot, int64_t begin, int64_t end);
  int32_t next_token(const model::SequencePlan& plan);

  const GeneratorOptions options_;
  const FakeModel model_;
  const int64_t ring_slots_;
  std::vector<uint64_t> pages_;     // [page_count, page_tokens]
  std::vector<Entry> rings_;        // [layers, slots, ring_slots]
  std::vector<uint8_t> slot_used_;  // [slots], in the plan being checked
  std::vector<uint64_t> written_;   // [page_count], the step that wrote the page last

  std::array<Flight, kStepsInFlightMax> flights_;  // by step id
  uint64_t last_step_ = 0;                         // submitted
  int32_t in_flight_ = 0;
  bool early_ = false;
  std::vector<LastSample> last_samples_;  // [slots]
  std::vector<int32_t> fresh_slots_;
  std::vector<std::vector<uint64_t>> blocks_;  // of snapshot memory
  std::function<Result<void>(int64_t)> hook_;
  int64_t fail_at_ = 0;
  int64_t steps_ = 0;
  int64_t rows_most_ = 0;
};

// A prefix hit: what its pages hold, and where the rows start.
struct FakeHit {
  int64_t replay_start = 0;
  std::vector<uint64_t> globals = {};
};

// What the request's sequence gives under this model when it runs alone, cold or from the hit.
std::vector<int32_t> fake_tokens(const GenerateRequest& request, const GeneratorOptions& options,
                                 FakeModel model = {}, const FakeHit& hit = {});

}  // namespace galley::engine
