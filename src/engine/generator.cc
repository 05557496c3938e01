#include "engine/generator.h"

#include "base/check.h"

namespace galley::engine {
namespace {

StepOutcome count_rows(const StepPlan& plan) {
  StepOutcome outcome;
  for (const PlannedSequence& planned : plan.sequences) {
    const auto rows = static_cast<int32_t>(planned.rows.tokens.size());
    const bool decodes = planned.rows.kind == model::RowKind::kDecode;
    (decodes ? outcome.decode_rows : outcome.prefill_rows) += rows;
  }
  return outcome;
}

}  // namespace

Result<StepOutcome> Generator::step(TimePoint now) {
  const StepPlan plan = scheduler_.plan(now);
  const bool planned = !plan.sequences.empty();
  if (planned) {
    for (const SequenceStart& start : scheduler_.starts()) executor_->start(start);
    TRY(executor_->submit(plan));
    ++in_flight_;
    rows_[plan.step_id % kStepsInFlightMax] = count_rows(plan);
  }
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
