#include "engine/generator.h"

#include "base/check.h"

namespace galley::engine {

Result<StepOutcome> Generator::step(TimePoint now) {
  const StepPlan plan = scheduler_.plan(now);
  StepOutcome outcome;
  if (!plan.sequences.empty()) {
    for (const SequenceStart& start : scheduler_.starts()) executor_->start(start);
    TRY(executor_->submit(plan));
    for (const PlannedSequence& planned : plan.sequences) {
      const auto rows = static_cast<int32_t>(planned.rows.tokens.size());
      const bool decodes = planned.rows.kind == model::RowKind::kDecode;
      (decodes ? outcome.decode_rows : outcome.prefill_rows) += rows;
    }
    const StepResult result = TRY(executor_->collect());
    CHECK(result.step_id == plan.step_id);
    scheduler_.commit(result);
  }
  outcome.events = scheduler_.events();
  return outcome;
}

}  // namespace galley::engine
