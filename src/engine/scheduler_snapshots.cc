// The scheduler's use of snapshot memory: who gives way goes there and comes back,
// and states at page boundaries are kept for later turns.
//
// A block is given to another snapshot at once, since copies are done in the order
// in which they are planned: all saves of a step, its loads, its rows, the next
// step's saves. Only what a planned load reads must stay until that step is planned.
#include <algorithm>

#include "base/check.h"
#include "engine/scheduler.h"

namespace galley::engine {

void Scheduler::begin_copies() {
  Flight& flight = flight_of(step_id_ + 1);
  flight.saves.clear();
  flight.loads.clear();
  if (!loads_.empty()) return;  // no step has them yet
  for (const cache::SnapshotId id : loading_) snapshots_.release(id);
  loading_.clear();
}

bool Scheduler::spill(Sequence& sequence, int64_t first_page) {
  if (!snapshots_.on()) return false;
  const int64_t pages = pages_for(sequence.computed);
  const int64_t blocks = options_.slot_blocks + std::max<int64_t>(0, pages - first_page);
  const auto id = snapshots_.take(static_cast<int32_t>(blocks));
  if (!id) return false;
  const std::span<const int32_t> all = snapshots_.blocks(*id);
  const auto slot_blocks = static_cast<size_t>(options_.slot_blocks);
  SnapshotCopy& copy = saves_.emplace_back();
  copy.slot = sequence.slot;
  copy.part = model::SlotPart::kWhole;
  copy.position = sequence.computed;
  copy.blocks.assign(all.begin(), all.begin() + options_.slot_blocks);
  for (int64_t page = first_page; page < pages; ++page) {
    copy.pages.push_back({.page = sequence.page_table[static_cast<size_t>(page)],
                          .block = all[slot_blocks + static_cast<size_t>(page - first_page)]});
  }
  sequence.spilled = id;
  sequence.spilled_from = first_page;
  ++counts_.spills;
  return true;
}

void Scheduler::load_spilled(Sequence& sequence, int64_t first_page) {
  const cache::SnapshotId id = *sequence.spilled;
  const std::span<const int32_t> all = snapshots_.blocks(id);
  SnapshotCopy& copy = loads_.emplace_back();
  copy.slot = sequence.slot;
  copy.part = model::SlotPart::kWhole;
  copy.position = sequence.computed;
  copy.blocks.assign(all.begin(), all.begin() + options_.slot_blocks);
  CHECK(first_page >= sequence.spilled_from);
  for (int64_t page = first_page; page < pages_for(sequence.computed); ++page) {
    const int64_t place = options_.slot_blocks + page - sequence.spilled_from;
    copy.pages.push_back({.page = sequence.page_table[static_cast<size_t>(page)],
                          .block = all[static_cast<size_t>(place)]});
  }
  sequence.spilled.reset();
  loading_.push_back(id);
  ++counts_.resumes;
}

void Scheduler::load_snapshot(Sequence& sequence, cache::SnapshotId id) {
  const std::span<const int32_t> all = snapshots_.blocks(id);
  SnapshotCopy& copy = loads_.emplace_back();
  copy.slot = sequence.slot;
  copy.part = model::SlotPart::kReuse;
  copy.position = sequence.hit;
  copy.blocks.assign(all.begin(), all.end());
  snapshots_.hold(id);
  loading_.push_back(id);
  ++counts_.snapshot_hits;
  // What is exact can be computed again from the tokens; this cannot.
  if (bounded() && !sequence.state.exact && !sequence.origin) {
    snapshots_.hold(id);
    sequence.origin = id;
  }
}

void Scheduler::keep_snapshot(const Sequence& sequence) {
  const int64_t pages = sequence.computed / options_.page_tokens;
  // Only what can be found.
  if (!takes_reuse() || pages == 0 || static_cast<int64_t>(sequence.published) < pages) return;
  keep_boundary(sequence, {sequence.page_table[static_cast<size_t>(pages - 1)]},
                pages * options_.page_tokens);
}

int64_t Scheduler::pass_branch(Sequence& sequence, int64_t end) {
  const int64_t branch = sequence.branch;
  if (branch == 0) return end;
  const int64_t last = branch + options_.page_tokens - 1;
  if (sequence.planned < branch) return std::min(end, last);
  CHECK(sequence.planned <= last);
  sequence.branch = 0;
  // A reader has the index's pages with this state, so both must be of one history: the hit that
  // this one started from, or what any cold run gives. It may have left the index meanwhile.
  const auto page = reuse_.page_before(sequence, branch);
  const bool same =
      page && (sequence.state.exact ? cache_.is_exact(*page) : branch == sequence.hit);
  const int64_t before = counts_.snapshots;
  if (same) keep_boundary(sequence, *page, branch);
  counts_.branches += counts_.snapshots - before;
  return end;
}

void Scheduler::keep_boundary(const Sequence& sequence, cache::PageId page, int64_t position) {
  if (const auto present = snapshots_.of_page(page)) {
    const cache::SnapshotState& state = snapshots_.state(*present);
    const bool as_good =
        state.exact >= sequence.state.exact && state.valid_from <= sequence.state.valid_from;
    if (as_good) {
      snapshots_.hold(*present);  // used just now
      snapshots_.release(*present);
      return;
    }
  }
  const auto id = snapshots_.take(options_.reuse_blocks);
  if (!id) return;
  const std::span<const int32_t> all = snapshots_.blocks(*id);
  SnapshotCopy& copy = saves_.emplace_back();
  copy.slot = sequence.slot;
  copy.part = model::SlotPart::kReuse;
  copy.position = position;
  copy.blocks.assign(all.begin(), all.end());
  snapshots_.tie(*id, page, sequence.state);
  snapshots_.release(*id);
  ++counts_.snapshots;
}

void Scheduler::forget_snapshots(Sequence& sequence) {
  for (auto* held : {&sequence.origin, &sequence.spilled}) {
    if (*held) snapshots_.release(**held);
    held->reset();
  }
}

int64_t Scheduler::held_rows(const Sequence& sequence) const {
  const bool first = sequence.from_snapshot && sequence.planned == sequence.hit;
  if (!first || options_.replay == model::DecoderReplay::kOff) return 0;
  return std::max<int64_t>(0, sequence.hit - sequence.tail_floor);
}

}  // namespace galley::engine
