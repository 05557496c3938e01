#include "engine/generator.h"

#include "base/check.h"

namespace galley::engine {
StepOutcome Generator::count_rows(const StepPlan& plan) const {
  StepOutcome outcome;
  for (const PlannedSequence& planned : plan.sequences) {
    const model::SequencePlan& rows = planned.rows;
    const auto count = static_cast<int32_t>(rows.tokens.size());
    if (rows.kind == model::RowKind::kDecode) {
      outcome.decode_rows += count;
      continue;
    }
    outcome.prefill_rows += count;
    outcome.prefill_cost += cost_.of(rows.first_position, rows.end_position(), rows.tail_begin) +
                            cost_.of_held(rows.held_rows);
  }
  return outcome;
}

Result<bool> Generator::hand_over(TimePoint now) {
  const StepPlan plan = scheduler_.plan(now);
  if (plan.sequences.empty()) return false;
  for (const SequenceStart& start : scheduler_.starts()) executor_->start(start);
  TRY(executor_->submit(plan));
  ++in_flight_;
  rows_[plan.step_id % kStepsInFlightMax] = count_rows(plan);
  return true;
}

Result<StepOutcome> Generator::wait_for_one(bool planned) {
  StepOutcome outcome;
  const int32_t in_flight_max = options().async_scheduling ? kStepsInFlightMax : 1;
  if (in_flight_ == in_flight_max || (!planned && in_flight_ > 0)) {
    --in_flight_;
    const StepResult result = TRY(executor_->collect());
    outcome = rows_[result.step_id % kStepsInFlightMax];
    scheduler_.commit(result);
  }
  outcome.events = scheduler_.events();
  return outcome;
}

void Generator::land() {
  for (; in_flight_ > 0; --in_flight_) static_cast<void>(executor_->collect());
}

}  // namespace galley::engine
