// The seam between what to compute next and the device that computes it.
//
// A step may be submitted while the one before it runs: what that one samples is
// read where it was sampled, so nobody waits for the host. Steps run in the order
// submitted, and results come in that order, matched by (sequence, step id).
// Implementations: the local device (local_executor.h), a fake in the tests; later
// a costed fake for planner and simulator.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "model/kv_snapshot.h"
#include "model/step_plan.h"

namespace galley::engine {

// Steps that are submitted and not collected: one runs, one waits for it.
constexpr int32_t kStepsInFlightMax = 2;

// One sequence's share of a step.
struct PlannedSequence {
  SequenceId id{};
  model::SequencePlan rows;
  bool samples = false;  // the last row's logits become a token
  bool masked = false;   // of those that mask() says; the row is sampled last, and waits for it
  // The step before this one, if the only row's token is what the slot samples there:
  // rows.tokens then holds a placeholder. 0 = all tokens are known.
  uint64_t token_from = 0;
};

// Between a slot, and some pages of its sequence, and blocks of snapshot memory. Which way it
// goes is said by the list that it is in.
struct SnapshotCopy {
  struct Page {
    int32_t page = 0;
    int32_t block = 0;
  };
  int32_t slot = 0;
  model::SlotPart part = model::SlotPart::kWhole;
  int64_t position = 0;         // rows computed; of kReuse, the page boundary
  std::vector<int32_t> blocks;  // of the slot's image
  std::vector<Page> pages;
};

// Borrowed until the step was collected.
struct StepPlan {
  uint64_t step_id = 0;
  std::span<const PlannedSequence> sequences;
  // Done after the step before this one and before its rows: first all saves, then all loads. A
  // slot whose state is saved may be another sequence's in this very step.
  std::span<const SnapshotCopy> saves = {};
  std::span<const SnapshotCopy> loads = {};
};

struct SampledSequence {
  SequenceId id{};
  int32_t slot = 0;
  Sampled sampled = {};
  std::span<const TokenLogprob> top_logprobs = {};
};

// Views live until the next submit or collect.
struct StepResult {
  uint64_t step_id = 0;
  std::span<const SampledSequence> sampled;  // those that sample, in plan order
};

// What the sampler of a slot needs before its next token.
struct SequenceStart {
  int32_t slot = 0;
  const SamplingOptions* sampling = nullptr;
  std::span<const int32_t> prompt;
  std::span<const int32_t> output = {};  // produced before it was preempted
};

class Executor {
 public:
  virtual ~Executor() = default;

  // The slot is a new sequence's and named by no step in flight. Called before the first plan
  // that names it; may allocate.
  virtual void start(const SequenceStart& start) = 0;

  // At most kStepsInFlightMax may be in flight. An error: it is not.
  virtual Result<void> submit(const StepPlan& plan) = 0;

  // Tokens that the masked plan entry `sequence` of a step in flight may not choose: bit t of
  // `allowed` is clear. Once for each masked entry; borrowed until the step was collected. What
  // was not said when the step is collected may choose anything; other steps are ignored.
  virtual void mask(uint64_t step_id, int32_t sequence, std::span<const uint64_t> allowed) = 0;

  // Waits for the oldest step in flight, which then is no more, failed or not.
  virtual Result<StepResult> collect() = 0;
};

}  // namespace galley::engine
