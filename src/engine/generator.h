// Extends many sequences together: a Scheduler's plans, run by an Executor.
//
// Tokens do not depend on who else runs, on the budget, the order of arrival or
// preemption, nor on whether steps are planned ahead. Owned by one thread; a step
// does not allocate.
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "engine/executor.h"
#include "engine/generator_options.h"
#include "engine/request.h"
#include "engine/scheduler.h"

namespace galley::engine {

// What the step that ended did. Events live until the next call of step().
struct StepOutcome {
  std::span<const TokenEvent> events;
  int32_t prefill_rows = 0;  // replay included
  double prefill_cost = 0;   // of these (row_cost.h)
  int32_t decode_rows = 0;

  bool computed() const { return prefill_rows + decode_rows > 0; }
};

class Generator {
 public:
  // The executor outlives the generator.
  Generator(Executor& executor, const GeneratorOptions& options)
      : executor_(&executor), scheduler_(options), cost_(options) {}
  ~Generator() { land(); }  // plans in flight borrow what the scheduler has
  Generator(const Generator&) = delete;
  Generator& operator=(const Generator&) = delete;

  // kInvalid: this request can never run, and why. kExhausted: too many wait already.
  Result<void> submit(GenerateRequest request) { return scheduler_.submit(std::move(request)); }

  // The sequence ends with the next step's events; unknown ids are ignored, since it may
  // have just finished.
  void cancel(SequenceId id) { scheduler_.cancel(id); }

  // Hands a step over and waits for one: the same, or with async_scheduling the one before it,
  // so that what the caller does between two calls costs the device nothing. The first call then
  // waits for none. Without work it does nothing. An error ends nothing: the caller decides.
  // `now` is what deadlines are compared with.
  Result<StepOutcome> step(TimePoint now = {}) {
    return step(now, [] {});
  }
  // `meanwhile` is called between the two, while the device computes: what it does delays neither
  // this plan nor, unless it takes longer than a step, the next.
  template <std::invocable Meanwhile>
  Result<StepOutcome> step(TimePoint now, const Meanwhile& meanwhile) {
    const bool planned = TRY(hand_over(now));
    meanwhile();
    return wait_for_one(planned);
  }

  // Ends everything that runs or waits, after an error of step().
  std::span<const TokenEvent> fail_all() {
    land();
    return scheduler_.fail_all();
  }

  // As in the options.
  void set_prefill_rows_beside_decode(int32_t rows) {
    scheduler_.set_prefill_rows_beside_decode(rows);
  }

  bool idle() const { return scheduler_.idle() && in_flight_ == 0; }
  int32_t in_flight() const { return in_flight_; }  // steps handed over and not waited for
  int32_t running_count() const { return scheduler_.running_count(); }
  int32_t waiting_count() const { return scheduler_.waiting_count(); }
  // Pages that a new sequence could have: free, or kept for their prefix alone.
  int32_t free_page_count() const { return scheduler_.available_page_count(); }
  const Scheduler& scheduler() const { return scheduler_; }
  const GeneratorOptions& options() const { return scheduler_.options(); }

 private:
  // The two halves of a step: whether there was anything to plan, and the oldest one's outcome.
  Result<bool> hand_over(TimePoint now);
  Result<StepOutcome> wait_for_one(bool planned);
  // Waits for what is in flight, whatever comes of it.
  void land();

  StepOutcome count_rows(const StepPlan& plan) const;

  Executor* executor_;
  Scheduler scheduler_;
  RowCost cost_;
  int32_t in_flight_ = 0;
  std::array<StepOutcome, kStepsInFlightMax> rows_;  // of steps in flight, by step id
};

}  // namespace galley::engine
