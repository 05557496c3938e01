// Refuses a step's plan that the model, cache or workspace cannot carry out,
// before anything is computed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "model/config.h"
#include "model/kv_cache.h"
#include "model/step.h"
#include "model/step_plan.h"

namespace galley::model {

class PlanCheck {
 public:
  PlanCheck(const Config& config, const KvCache& cache, const StepOptions& options);

  // kInvalid names the sequence's place in the plan and its field.
  Result<void> check(std::span<const SequencePlan> plans);

 private:
  Result<void> check_one(const SequencePlan& plan);
  Result<void> check_tokens(const SequencePlan& plan) const;
  Result<void> check_places(const SequencePlan& plan);
  Result<void> check_replay(const SequencePlan& plan) const;

  const Config& config_;
  const KvCache& cache_;
  const StepOptions& options_;
  int64_t positions_max_;
  std::vector<uint8_t> slot_taken_;  // [slots], all 0 between checks
};

}  // namespace galley::model
