// Decides what each step computes: who runs, on which rows, slots and pages.
//
// Pure: no memory, clock or device; whoever drives it hands in the time and runs
// the plans, so a simulation drives the very same code. Decode rows come first,
// prompts fill what is left of the row budget. A sequence starts when its prompt
// and some growth have pages; when the pool runs dry, the one ranked last gives
// its pages back and is computed again later, to the same tokens: whatever its
// rows depend on (prompt end, replay start, the pages of its hit) stays with it.
// With snapshot memory, who gives way after its first token goes there instead and
// comes back as it was; and states at page boundaries are kept for later turns.
// A step may be planned while the one before it is computed: it then names tokens
// that nobody knows yet, and rows whose sequence turns out to have ended are
// dropped. Whoever gives way does so between steps, never while one is in flight.
// Owned by one thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "cache/prefix_cache.h"
#include "cache/snapshot_pool.h"
#include "engine/executor.h"
#include "engine/generator_options.h"
#include "engine/prefix_reuse.h"
#include "engine/request.h"
#include "engine/row_cost.h"
#include "engine/sequence.h"
#include "engine/tenant_clock.h"

namespace galley::engine {

// kInvalid: an engine with these options can never run this request, and why.
Result<void> check_request(const GenerateRequest& request, const GeneratorOptions& options);

// Since the start.
struct SchedulerCounts {
  int64_t decode_rows = 0;
  int64_t prefill_rows = 0;     // prompt rows computed for the first time
  int64_t replay_rows = 0;      // rows before the end of a prefix hit
  int64_t recomputed_rows = 0;  // rows of preempted sequences, computed again
  int64_t wasted_rows = 0;      // rows of sequences that had ended when the step was over
  int64_t prompt_tokens = 0;    // of the sequences that started
  int64_t cached_tokens = 0;    // of these, found in the prefix cache
  int64_t preemptions = 0;
  int64_t spills = 0;         // of these, to snapshot memory
  int64_t resumes = 0;        // from there
  int64_t snapshots = 0;      // taken of page boundaries
  int64_t branches = 0;       // of these, where prompts part
  int64_t snapshot_hits = 0;  // sequences that started from one
};

class Scheduler {
 public:
  explicit Scheduler(const GeneratorOptions& options);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // kInvalid: it can never run, and why. kExhausted: too many wait already.
  Result<void> submit(GenerateRequest request);
  // It ends with the next plan's events. Unknown ids are ignored.
  void cancel(SequenceId id);

  // The next step, borrowed until its commit. Empty: there is nothing to compute, or nothing
  // more before the step in flight was committed. At most one is in flight when called.
  StepPlan plan(TimePoint now);
  // Sequences that take over a slot with this plan.
  std::span<const SequenceStart> starts() const { return starts_; }
  // The oldest planned step was computed. Not called when one failed: then fail_all.
  void commit(const StepResult& result);
  // Of the last plan and commit, in order.
  std::span<const TokenEvent> events() const { return events_; }
  // Ends everything. What was planned is no longer being computed.
  std::span<const TokenEvent> fail_all();

  // As in the options.
  void set_prefill_rows_beside_decode(int32_t rows) { options_.prefill_rows_beside_decode = rows; }

  bool idle() const { return running_.empty() && waiting_.empty(); }
  int32_t running_count() const { return static_cast<int32_t>(running_.size()); }
  int32_t waiting_count() const { return static_cast<int32_t>(waiting_.size()); }
  int32_t free_slot_count() const { return static_cast<int32_t>(free_slots_.size()); }
  int32_t available_page_count() const { return cache_.available_count(); }
  const cache::PrefixCache& cache() const { return cache_; }
  const cache::SnapshotPool& snapshots() const { return snapshots_; }
  std::span<const std::unique_ptr<Sequence>> running() const { return running_; }
  const SchedulerCounts& counts() const { return counts_; }
  const GeneratorOptions& options() const { return options_; }

 private:
  using Owned = std::unique_ptr<Sequence>;
  enum class Admission : uint8_t { kDone, kNoSlot, kNoPages, kComing };

  // A step that was planned and not committed; reserved once.
  struct Flight {
    uint64_t step_id = 0;
    std::vector<PlannedSequence> plan;
    std::vector<Sequence*> sequences;  // of its entries
    std::vector<SnapshotCopy> saves;
    std::vector<SnapshotCopy> loads;
    // Pages that it may name and nobody else holds any more.
    std::vector<cache::PageId> replaced;
  };

  bool bounded() const { return options_.prefix == PrefixReplay::kBounded; }
  int64_t pages_for(int64_t positions) const {
    return (positions + options_.page_tokens - 1) / options_.page_tokens;
  }
  int64_t hit_pages(const Sequence& sequence) const { return sequence.hit / options_.page_tokens; }
  // Tokens cannot be had again but from these very pages.
  bool keeps_hit(const Sequence& sequence) const {
    return bounded() && sequence.has_output() && !sequence.state.exact;
  }
  // Pages that it needs for its tokens' sake, from the first on.
  int64_t needed_pages(const Sequence& sequence) const {
    return bounded() && !sequence.state.exact ? hit_pages(sequence) : 0;
  }
  int32_t rank_of(const Sequence& sequence) const;
  bool before(const Sequence& a, const Sequence& b) const;

  void end_cancelled();
  void end_late(TimePoint now);
  void grow();
  void admit(TimePoint now);
  Sequence* next_candidate();
  Admission try_to_start(Sequence& sequence, TimePoint now);
  Admission try_to_start(Sequence& sequence, const PrefixMatch& match, TimePoint now);
  bool make_room(int32_t rank, int64_t pages_missing);
  bool all_can_finish(const Sequence& next, int64_t hit, std::span<const cache::PageId> pages);
  // Where it goes on from: what it was when it gave way, or what is cached.
  PrefixMatch match_of(Sequence& sequence);
  void start(Sequence& sequence, const PrefixMatch& match, int64_t fresh_pages, TimePoint now);
  void begin_at(Sequence& sequence, const PrefixMatch& match);
  Flight& flight_of(uint64_t step_id) { return flights_[step_id % kStepsInFlightMax]; }
  void plan_rows(TimePoint now, Flight& flight);
  void add_rows(Sequence& sequence, int64_t count, Flight& flight);
  // Whether somebody may give way now; if not, nothing is planned until the step in flight is over.
  bool may_preempt();

  void note_computed(Sequence& sequence, const PlannedSequence& planned);
  void release_replaced(Flight& flight);

  void preempt(size_t index);

  // In scheduler_snapshots.cc.
  bool takes_reuse() const { return options_.reuse_blocks > 0; }
  void begin_copies();
  // Its slot, and its pages from `first_page` on, go to snapshot memory. False: no room.
  bool spill(Sequence& sequence, int64_t first_page);
  void load_spilled(Sequence& sequence, int64_t first_page);
  void load_snapshot(Sequence& sequence, cache::SnapshotId snapshot);
  // The state at its last page boundary is kept for whoever goes on from there.
  void keep_snapshot(const Sequence& sequence);
  // The same where others part from its prompt, once its rows are there and not yet out of reach:
  // how far they may go in this step, of `end`.
  int64_t pass_branch(Sequence& sequence, int64_t end);
  void keep_boundary(const Sequence& sequence, cache::PageId page, int64_t position);
  void forget_snapshots(Sequence& sequence);
  // Rows before its first one that it computes from held inputs, in the step that has this one.
  int64_t held_rows(const Sequence& sequence) const;

  void release_pages(Sequence& sequence, int64_t keep);
  void note_hit(const Sequence& sequence, int32_t change);
  void take(Sequence& sequence, const SampledSequence& result);
  void report_end(Sequence& sequence, FinishReason finish);
  // It has ended: gives back all that it holds, at once or when no step in flight names it.
  void retire(Owned sequence, bool runs);
  void give_back(Sequence& sequence, bool runs);
  template <class Condition>
  void end_if(FinishReason finish, Condition condition);

  GeneratorOptions options_;
  RowCost cost_;
  cache::PrefixCache cache_;
  cache::SnapshotPool snapshots_;
  PrefixReuse reuse_;
  TenantClock tenants_;
  SchedulerCounts counts_;
  std::vector<int32_t> free_slots_;
  std::vector<Owned> waiting_;  // in any order
  std::vector<Owned> running_;  // best rank first
  std::vector<Owned> leaving_;  // ended, named by a step in flight
  uint64_t arrivals_ = 0;
  uint64_t admissions_ = 0;
  uint64_t step_id_ = 0;
  bool may_admit_ = false;  // something changed since nobody could be admitted
  bool any_cancelled_ = false;
  int32_t with_deadline_ = 0;

  // Bounded hits only: how many sequences need a page for their tokens' sake.
  std::vector<int32_t> hit_holders_;  // [page_count]
  int32_t hit_pages_held_ = 0;        // pages of which that is not 0

  std::array<Flight, kStepsInFlightMax> flights_;  // by step id
  int32_t in_flight_ = 0;
  bool must_land_ = false;  // somebody has to give way first

  std::vector<SnapshotCopy> saves_;  // for the next step
  std::vector<SnapshotCopy> loads_;
  std::vector<cache::SnapshotId> loading_;  // held until these loads are ordered before any save

  // Of the last plan and commit; reserved once.
  std::vector<SequenceStart> starts_;
  std::vector<TokenEvent> events_;
};

}  // namespace galley::engine
