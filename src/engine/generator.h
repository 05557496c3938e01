// Extends many sequences together: continuous batching over an Executor.
//
// Each step takes one row of every decoding sequence, then fills what is left of
// the row budget with prompts, oldest first. A sequence is admitted when a slot
// and the pages of its whole length are free, so it never has to give them back
// half way. Tokens do not depend on who else runs, on the budget or on the
// order of arrival. Owned by one thread; a step does not allocate.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "cache/page_pool.h"
#include "engine/executor.h"
#include "engine/request.h"
#include "model/step_plan.h"

namespace galley::engine {

struct GeneratorOptions {
  int32_t sequences_max = 32;  // running together: one slot each
  int32_t rows_max = 512;      // of one step; at least sequences_max
  int32_t waiting_max = 1024;  // accepted but not running
  int32_t page_tokens = 128;
  int32_t page_count = 0;
  int32_t vocab_size = 0;
  int64_t positions_max = 0;  // longest sequence
  int64_t window = 0;         // W
  int32_t look_back = 3;      // tokens before a chunk that the model wants to see
  model::DecoderReplay replay = model::DecoderReplay::kWindowAndGlobal;
};

// kInvalid: a generator with these options can never run this request, and why.
Result<void> check_request(const GenerateRequest& request, const GeneratorOptions& options);

// What one step did. Events live until the next call of step().
struct StepOutcome {
  std::span<const TokenEvent> events;
  int32_t prefill_rows = 0;
  int32_t decode_rows = 0;
};

class Generator {
 public:
  // The executor outlives the generator.
  Generator(Executor& executor, const GeneratorOptions& options);

  // kInvalid: this request can never run, and why. kExhausted: too many wait already.
  Result<void> submit(GenerateRequest request);

  // The sequence ends with the next step's events; unknown ids are ignored, since it may
  // have just finished.
  void cancel(SequenceId id);

  // Runs one step; without work it does nothing. An error ends nothing: the caller decides.
  // `now` is what deadlines are compared with.
  Result<StepOutcome> step(TimePoint now = {});

  // Ends everything that runs or waits, without a step: after an error of step().
  std::span<const TokenEvent> fail_all();

  bool idle() const { return running_.empty() && waiting_.empty() && cancelled_.empty(); }
  int32_t running_count() const { return static_cast<int32_t>(running_.size()); }
  int32_t waiting_count() const { return static_cast<int32_t>(waiting_.size()); }
  int32_t free_page_count() const { return pages_.free_count(); }
  const GeneratorOptions& options() const { return options_; }

 private:
  struct Sequence {
    GenerateRequest request;
    std::vector<int32_t> tokens;  // prompt and output, reserved whole at admission
    std::vector<int32_t> page_table;
    int32_t slot = 0;
    int64_t computed = 0;  // tokens whose KV is written
    int64_t tail_floor = 0;
    int32_t output_count = 0;
    bool cancelled = false;
    TimePoint admitted_at;

    bool prefilling() const { return output_count == 0; }
  };

  int64_t pages_for(int64_t positions) const;
  void admit(TimePoint now);
  void start(GenerateRequest request, TimePoint now);
  void report_end(const GenerateRequest& request, FinishReason finish, Usage usage);
  void end_late(TimePoint now);
  static Usage usage_of(const Sequence& sequence);
  void drop_cancelled();
  void plan_rows();
  void add_rows(const Sequence& sequence, int64_t count);
  void take(const SampledSequence& result);
  void retire(size_t index);

  Executor* executor_;
  GeneratorOptions options_;
  cache::PagePool pages_;
  std::vector<int32_t> free_slots_;
  std::deque<GenerateRequest> waiting_;
  std::vector<GenerateRequest> cancelled_;          // while waiting; at most waiting_max
  std::vector<std::unique_ptr<Sequence>> running_;  // in order of admission
  uint64_t step_id_ = 0;

  // Reused by every step.
  std::vector<PlannedSequence> plan_;
  std::vector<TokenEvent> events_;
  StepOutcome outcome_;
};

}  // namespace galley::engine
