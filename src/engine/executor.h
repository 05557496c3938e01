// The seam between what to compute next and the device that computes it.
//
// One step may be in flight while the next is planned. Implementations: the
// local device (local_executor.h), a fake in the tests; later a costed fake for
// planner and simulator. Results are matched by (sequence, step id).
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "model/step_plan.h"

namespace galley::engine {

// One sequence's share of a step.
struct PlannedSequence {
  SequenceId id{};
  model::SequencePlan rows;
  bool samples = false;  // the last row's logits become a token
};

// Borrowed until the step was collected.
struct StepPlan {
  uint64_t step_id = 0;
  std::span<const PlannedSequence> sequences;
};

struct SampledSequence {
  SequenceId id{};
  int32_t slot = 0;
  Sampled sampled;
  std::span<const TokenLogprob> top_logprobs;
};

// Views live until the next submit.
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

  // The slot is a new sequence's. Called before the first plan that names it; may allocate.
  virtual void start(const SequenceStart& start) = 0;

  virtual Result<void> submit(const StepPlan& plan) = 0;

  // Tokens that plan entry `sequence` may not choose: bit t of `allowed` is clear. Taken until
  // collect; borrowed until then. Sequences without a mask may choose anything.
  virtual void mask(uint64_t step_id, int32_t sequence, std::span<const uint64_t> allowed) = 0;

  // Waits for the submitted step.
  virtual Result<StepResult> collect() = 0;
};

}  // namespace galley::engine
