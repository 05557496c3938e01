#include "engine/scheduler.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"

namespace galley::engine {
namespace {

// Stands in a plan for a token that the step in flight samples.
constexpr int32_t kUnknownToken = 0;

GeneratorOptions usable(GeneratorOptions options) {
  // Without compressed KV there is nothing in a page that could be reused.
  if (options.decoder_source < 0) options.prefix = PrefixReplay::kOff;
  if (options.prefix == PrefixReplay::kOff) options.reuse_blocks = 0;
  return options;
}

}  // namespace

Result<void> check_request(const GenerateRequest& request, const GeneratorOptions& options) {
  if (request.prompt.empty()) return Error{ErrorCode::kInvalid, "the prompt has no tokens"};
  for (const int32_t token : request.prompt) {
    if (token >= 0 && token < options.vocab_size) continue;
    return Error{ErrorCode::kInvalid, "the prompt has token " + std::to_string(token) +
                                          ", the vocabulary has " +
                                          std::to_string(options.vocab_size)};
  }
  if (request.output_tokens_max < 1) {
    return Error{ErrorCode::kInvalid, "at least one token must be asked for"};
  }
  if (request.stop_tokens.size() > kStopTokensMax) {
    return Error{ErrorCode::kInvalid,
                 "at most " + std::to_string(kStopTokensMax) + " stop tokens are accepted"};
  }
  TRY(validate(request.sampling, options.vocab_size));
  const int64_t capacity = static_cast<int64_t>(options.page_count) * options.page_tokens;
  const int64_t longest = std::min(options.positions_max, capacity);
  if (static_cast<int64_t>(request.prompt.size()) + request.output_tokens_max > longest) {
    return Error{ErrorCode::kInvalid,
                 "the prompt's " + std::to_string(request.prompt.size()) + " tokens and up to " +
                     std::to_string(request.output_tokens_max) +
                     " new ones exceed the context of " + std::to_string(longest)};
  }
  if (request.cache_namespace.size() > kCacheNamespaceBytesMax) {
    return Error{ErrorCode::kInvalid,
                 "the cache namespace has " + std::to_string(request.cache_namespace.size()) +
                     " bytes, at most " + std::to_string(kCacheNamespaceBytesMax) +
                     " are accepted"};
  }
  return {};
}

Scheduler::Scheduler(const GeneratorOptions& options)
    : options_(usable(options)),
      cost_(options_),
      cache_(options.page_count, options.page_tokens, options.prefix_ttl_s),
      snapshots_(options.snapshot_blocks, options.page_count),
      reuse_(options_, cache_, snapshots_),
      hit_holders_(static_cast<size_t>(bounded() ? options.page_count : 0)) {
  CHECK(options.sequences_max > 0 && options.rows_max >= options.sequences_max);
  CHECK(options.look_ahead > 0 && options.passes_per_promotion > 0 && options.growth_tokens > 0);
  const auto sequences = static_cast<size_t>(options.sequences_max);
  const auto waiting = static_cast<size_t>(options.waiting_max);
  for (int32_t slot = options.sequences_max - 1; slot >= 0; --slot) free_slots_.push_back(slot);
  running_.reserve(sequences);
  waiting_.reserve(waiting + sequences);  // those preempted come on top
  leaving_.reserve(sequences);
  for (Flight& flight : flights_) {
    flight.plan.reserve(sequences);
    flight.sequences.reserve(sequences);
    // What two steps complete.
    flight.replaced.reserve(
        2 * (static_cast<size_t>(options.rows_max / options.page_tokens) + sequences));
  }
  starts_.reserve(sequences);
  events_.reserve(waiting + 3 * sequences);
  cache_.on_leave([this](cache::PageId page) { snapshots_.drop(page); });
}

Result<void> Scheduler::submit(GenerateRequest request) {
  TRY(check_request(request, options_));
  const auto same = [&](const Owned& other) { return other->request.id == request.id; };
  if (std::ranges::any_of(waiting_, same) || std::ranges::any_of(running_, same)) {
    return Error{ErrorCode::kInvalid, "a sequence of this id runs already"};
  }
  if (waiting_count() >= options_.waiting_max) {
    return Error{ErrorCode::kExhausted,
                 std::to_string(options_.waiting_max) + " sequences wait already"};
  }
  auto sequence = std::make_unique<Sequence>();
  sequence->request = std::move(request);
  sequence->arrival = ++arrivals_;
  sequence->usage.prompt_tokens = static_cast<int32_t>(sequence->prompt_end());
  sequence->tokens.reserve(static_cast<size_t>(sequence->length_max()));
  const std::vector<int32_t>& prompt = sequence->request.prompt;
  sequence->tokens.insert(sequence->tokens.end(), prompt.begin(), prompt.end());
  const auto pages = static_cast<size_t>(pages_for(sequence->length_max()));
  sequence->page_table.reserve(pages);
  for (std::vector<int32_t>& table : sequence->flown_tables) table.reserve(pages);
  sequence->tenant = tenants_.enter(sequence->request.tenant);
  sequence->tail_floor =
      model::decoder_floor(options_.replay, options_.window, 0, sequence->prompt_end());
  reuse_.enter(*sequence);
  with_deadline_ += sequence->request.deadline ? 1 : 0;
  waiting_.push_back(std::move(sequence));
  may_admit_ = true;
  return {};
}

void Scheduler::cancel(SequenceId id) {
  for (const auto* sequences : {&running_, &waiting_}) {
    for (const Owned& sequence : *sequences) {
      if (sequence->request.id != id) continue;
      sequence->cancelled = true;
      any_cancelled_ = true;
      return;
    }
  }
}

StepPlan Scheduler::plan(TimePoint now) {
  events_.clear();
  starts_.clear();
  begin_copies();
  cache_.set_time(std::chrono::duration_cast<std::chrono::seconds>(now.time_since_epoch()).count());
  end_cancelled();
  end_late(now);
  CHECK(in_flight_ < kStepsInFlightMax);
  if (in_flight_ == 0) must_land_ = false;
  if (!must_land_) grow();
  if (!must_land_) admit(now);
  Flight& flight = flight_of(step_id_ + 1);
  flight.plan.clear();
  flight.sequences.clear();
  // Who was started is planned at once, whoever else has to wait.
  if (!must_land_ || !starts_.empty()) plan_rows(now, flight);
  // Whoever runs has a row to compute, and with nobody running somebody can start.
  CHECK(idle() || !flight.plan.empty() || in_flight_ > 0);
  if (flight.plan.empty()) return {};
  flight.step_id = ++step_id_;
  ++in_flight_;
  flight.saves.swap(saves_);
  flight.loads.swap(loads_);
  return {flight.step_id, flight.plan, flight.saves, flight.loads};
}

// --- ends --------------------------------------------------------------------

template <class Condition>
void Scheduler::end_if(FinishReason finish, Condition condition) {
  for (auto* sequences : {&running_, &waiting_}) {
    for (Owned& sequence : *sequences) {
      if (!condition(*sequence)) continue;
      report_end(*sequence, finish);
      retire(std::move(sequence), sequences == &running_);
    }
    std::erase(*sequences, nullptr);
  }
}

void Scheduler::end_cancelled() {
  if (!std::exchange(any_cancelled_, false)) return;
  end_if(FinishReason::kCancelled, [](const Sequence& sequence) { return sequence.cancelled; });
}

void Scheduler::end_late(TimePoint now) {
  if (with_deadline_ == 0) return;
  end_if(FinishReason::kDeadline, [now](const Sequence& sequence) {
    return sequence.request.deadline && *sequence.request.deadline <= now;
  });
}

std::span<const TokenEvent> Scheduler::fail_all() {
  events_.clear();
  in_flight_ = 0;
  for (const Owned& sequence : running_) sequence->flights = 0;
  for (const Owned& sequence : leaving_) give_back(*sequence, true);
  leaving_.clear();
  for (Flight& flight : flights_) release_replaced(flight);
  // Their bytes may never have been written.
  saves_.clear();
  loads_.clear();
  for (int32_t page = 0; page < options_.page_count; ++page) snapshots_.drop({page});
  end_cancelled();
  end_if(FinishReason::kFailed, [](const Sequence&) { return true; });
  return events_;
}

void Scheduler::report_end(Sequence& sequence, FinishReason finish) {
  TokenEvent event;
  event.id = sequence.request.id;
  event.finish = finish;
  event.usage = sequence.usage;
  events_.push_back(event);
}

void Scheduler::retire(Owned sequence, bool runs) {
  reuse_.withdraw(*sequence);
  tenants_.leave(sequence->tenant);
  with_deadline_ -= sequence->request.deadline ? 1 : 0;
  sequence->ended = true;
  if (sequence->flights == 0) return give_back(*sequence, runs);
  leaving_.push_back(std::move(sequence));
}

void Scheduler::give_back(Sequence& sequence, bool runs) {
  note_hit(sequence, -1);
  forget_snapshots(sequence);
  release_pages(sequence, 0);
  if (runs) free_slots_.push_back(sequence.slot);
  may_admit_ = true;
}

// From the end: the cache relies on parents outliving their children.
void Scheduler::release_pages(Sequence& sequence, int64_t keep) {
  while (std::ssize(sequence.page_table) > keep) {
    cache_.release({sequence.page_table.back()});
    sequence.page_table.pop_back();
  }
}

void Scheduler::note_hit(const Sequence& sequence, int32_t change) {
  if (!bounded()) return;
  for (int64_t i = 0; i < needed_pages(sequence); ++i) {
    const int32_t page = sequence.page_table[static_cast<size_t>(i)];
    int32_t& holders = hit_holders_[static_cast<size_t>(page)];
    hit_pages_held_ -= holders > 0 ? 1 : 0;
    holders += change;
    hit_pages_held_ += holders > 0 ? 1 : 0;
  }
}

bool Scheduler::may_preempt() {
  must_land_ = in_flight_ > 0;
  may_admit_ = may_admit_ || must_land_;  // tried again then
  return !must_land_;
}

void Scheduler::preempt(size_t index) {
  CHECK(in_flight_ == 0);
  Owned owned = std::move(running_[index]);
  running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(index));
  Sequence& sequence = *owned;
  reuse_.withdraw(sequence);
  const int64_t kept = keeps_hit(sequence) ? hit_pages(sequence) : 0;
  if (!sequence.decodes() || !spill(sequence, kept)) {
    if (!keeps_hit(sequence)) {
      note_hit(sequence, -1);
      forget_snapshots(sequence);
      sequence.hit = 0;
      sequence.replay_start = 0;
      sequence.from_snapshot = false;
    }
    sequence.computed = 0;
    sequence.planned = 0;
  }
  release_pages(sequence, kept);
  free_slots_.push_back(sequence.slot);
  sequence.published = 0;
  sequence.publishes = true;
  ++sequence.usage.preemptions;
  ++counts_.preemptions;
  waiting_.push_back(std::move(owned));
  may_admit_ = true;
}

// --- who runs ----------------------------------------------------------------

int32_t Scheduler::rank_of(const Sequence& sequence) const {
  const auto priority = static_cast<int32_t>(sequence.request.priority);
  return std::max(0, priority - sequence.passes / options_.passes_per_promotion);
}

// Of two that wait: priority, then who ran before, then the tenant that had less.
bool Scheduler::before(const Sequence& a, const Sequence& b) const {
  const int32_t rank_a = rank_of(a);
  const int32_t rank_b = rank_of(b);
  if (rank_a != rank_b) return rank_a < rank_b;
  const bool ran_a = a.usage.admitted_at.has_value();
  const bool ran_b = b.usage.admitted_at.has_value();
  if (ran_a != ran_b) return ran_a;
  if (!ran_a && a.tenant->time != b.tenant->time) return a.tenant->time < b.tenant->time;
  return a.arrival < b.arrival;
}

// Pages for the row that each decoding sequence adds; best rank first, so the first one always
// gets what it needs.
void Scheduler::grow() {
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    if (!sequence.decodes() || sequence.complete()) continue;
    while (std::ssize(sequence.page_table) < pages_for(sequence.expected_size())) {
      if (cache_.available_count() > 0) {
        sequence.page_table.push_back(cache_.acquire().value().index);
        continue;
      }
      if (!may_preempt()) return;
      const bool itself = i + 1 == running_.size();
      preempt(running_.size() - 1);
      if (itself) return;
    }
  }
}

Sequence* Scheduler::next_candidate() {
  Sequence* best = nullptr;
  for (const Owned& sequence : waiting_) {
    if (sequence->tried == admissions_) continue;
    if (best == nullptr || before(*sequence, *best)) best = sequence.get();
  }
  return best;
}

void Scheduler::admit(TimePoint now) {
  if (!may_admit_) return;
  may_admit_ = false;
  ++admissions_;
  int32_t tried = 0;
  while (Sequence* candidate = next_candidate()) {
    candidate->tried = admissions_;
    const Admission outcome = try_to_start(*candidate, now);
    if (must_land_) return;
    if (outcome == Admission::kDone || running_.empty()) continue;  // somebody must run
    if (outcome == Admission::kNoSlot || ++tried == options_.look_ahead) return;
    if (outcome == Admission::kNoPages && candidate->passes >= options_.passes_max) return;
  }
}

Scheduler::Admission Scheduler::try_to_start(Sequence& sequence, TimePoint now) {
  const PrefixMatch match = match_of(sequence);
  if (match.coming) return Admission::kComing;
  // So that nobody who gives way takes its place.
  if (match.snapshot) snapshots_.hold(*match.snapshot);
  const Admission outcome = try_to_start(sequence, match, now);
  if (match.snapshot) snapshots_.release(*match.snapshot);
  return outcome;
}

Scheduler::Admission Scheduler::try_to_start(Sequence& sequence, const PrefixMatch& match,
                                             TimePoint now) {
  // Some are held while it waits.
  const int64_t shared_pages = std::ssize(sequence.page_table) + std::ssize(match.pages);
  const bool needs_hit = bounded() && !match.state.exact;
  if (!all_can_finish(sequence, needs_hit ? match.tokens : 0,
                      needs_hit ? match.pages : std::span<const cache::PageId>())) {
    return Admission::kNoPages;
  }
  const int64_t positions =
      std::min(sequence.length_max(), sequence.size() + options_.growth_tokens);
  const int64_t fresh = pages_for(positions) - shared_pages;
  const auto missing = [&] {
    // A page that the index alone holds is no longer to be had once the sequence holds it.
    const int64_t idle = std::ranges::count_if(
        match.pages, [this](cache::PageId page) { return cache_.holders(page) == 0; });
    return fresh + idle - cache_.available_count();
  };
  if (free_slots_.empty() || missing() > 0) {
    const bool no_slot = free_slots_.empty();
    if (!make_room(rank_of(sequence), missing()) || missing() > 0) {
      return no_slot ? Admission::kNoSlot : Admission::kNoPages;
    }
  }
  start(sequence, match, fresh, now);
  return Admission::kDone;
}

PrefixMatch Scheduler::match_of(Sequence& sequence) {
  PrefixMatch match;
  if (sequence.spilled || keeps_hit(sequence)) {
    match.tokens = sequence.hit;
    match.replay_start = sequence.replay_start;
    match.state = sequence.state;
    match.snapshot = sequence.origin;
    if (sequence.spilled && !keeps_hit(sequence)) match.pages = reuse_.find_again(sequence);
    return match;
  }
  // What was computed from the first row on is computed so again: a bounded hit would be another.
  if (bounded() && sequence.has_output()) return match;
  return reuse_.look_up(sequence);
}

// Preempts from the last rank on if that gives a slot and the pages, and only those ranked
// behind `rank`; otherwise nobody.
bool Scheduler::make_room(int32_t rank, int64_t pages_missing) {
  size_t victims = 0;
  int64_t gain = 0;
  while (victims < running_.size() && (victims == 0 || gain < pages_missing)) {
    const Sequence& victim = *running_[running_.size() - 1 - victims];
    if (victim.rank <= rank) return false;
    if (victim.started_in == step_id_ + 1) {
      // Ageing may rank somebody before who has just been started: what is to be loaded for that
      // one is not there yet to be saved.
      may_admit_ = true;
      return false;
    }
    const int64_t kept = keeps_hit(victim) ? hit_pages(victim) : 0;
    for (int64_t i = kept; i < std::ssize(victim.page_table); ++i) {
      gain += cache_.holders({victim.page_table[static_cast<size_t>(i)]}) == 1 ? 1 : 0;
    }
    ++victims;
  }
  if (victims == 0 || gain < pages_missing || !may_preempt()) return false;
  for (size_t i = 0; i < victims; ++i) preempt(running_.size() - 1);
  return true;
}

// With bounded replay the pages of a hit are held until the sequence ends, for its tokens depend
// on what they hold. So that this never blocks the pool, every sequence must be able to finish
// when all others have given up everything else.
bool Scheduler::all_can_finish(const Sequence& next, int64_t hit,
                               std::span<const cache::PageId> pages) {
  if (!bounded()) return true;
  int64_t held = hit_pages_held_;
  for (const cache::PageId page : pages) {
    held += hit_holders_[static_cast<size_t>(page.index)] == 0 ? 1 : 0;
  }
  if (held == 0) return true;  // a sequence alone was checked at the door
  int64_t own_most = pages_for(next.length_max()) - hit / options_.page_tokens;
  for (const Owned& other : running_) {
    own_most = std::max(own_most, pages_for(other->length_max()) - needed_pages(*other));
  }
  for (const Owned& other : waiting_) {
    if (!other->has_output()) continue;
    own_most = std::max(own_most, pages_for(other->length_max()) - needed_pages(*other));
  }
  return held + own_most <= options_.page_count;
}

void Scheduler::start(Sequence& sequence, const PrefixMatch& match, int64_t fresh_pages,
                      TimePoint now) {
  const bool had_output = sequence.has_output();
  for (const cache::PageId page : match.pages) {
    cache_.hold(page);
    sequence.page_table.push_back(page.index);
  }
  sequence.published = sequence.page_table.size();
  if (!sequence.spilled) begin_at(sequence, match);
  if (!had_output) {
    Usage& usage = sequence.usage;
    if (!usage.admitted_at) counts_.prompt_tokens += sequence.prompt_end();
    counts_.cached_tokens += match.tokens - usage.cached_tokens;
    reuse_.explain(sequence, match, usage);
    usage.cached_tokens = static_cast<int32_t>(match.tokens);
    usage.replayed_tokens = static_cast<int32_t>(match.tokens - match.replay_start);
    TenantClock::charge(sequence.tenant,
                        kCachedTokenCost * static_cast<double>(std::max<int64_t>(
                                               0, match.tokens - sequence.charged)));
    sequence.charged = std::max(sequence.charged, match.tokens);
  }
  if (!sequence.usage.admitted_at) sequence.usage.admitted_at = now;
  const int64_t shared_pages = std::ssize(sequence.page_table);
  for (int64_t i = 0; i < fresh_pages; ++i) {
    sequence.page_table.push_back(cache_.acquire().value().index);
  }
  sequence.slot = free_slots_.back();
  free_slots_.pop_back();
  if (sequence.spilled) {
    load_spilled(sequence, shared_pages);
  } else if (match.snapshot) {
    load_snapshot(sequence, *match.snapshot);
  }
  sequence.rank = rank_of(sequence);
  sequence.started_in = step_id_ + 1;
  reuse_.announce(sequence);
  tenants_.serve(sequence.tenant);
  const std::span<const int32_t> tokens = sequence.tokens;
  const auto prompt_end = static_cast<size_t>(sequence.prompt_end());
  starts_.push_back({sequence.slot, &sequence.request.sampling, tokens.first(prompt_end),
                     tokens.subspan(prompt_end)});

  const auto at = std::ranges::find_if(
      waiting_, [&sequence](const Owned& other) { return other.get() == &sequence; });
  Owned owned = std::move(*at);
  *at = std::move(waiting_.back());
  waiting_.pop_back();
  for (const Owned& other : waiting_) {
    if (other->arrival < sequence.arrival) ++other->passes;
  }
  const auto place = std::ranges::find_if(running_, [&sequence](const Owned& other) {
    return std::pair(sequence.rank, sequence.arrival) < std::pair(other->rank, other->arrival);
  });
  running_.insert(place, std::move(owned));
}

void Scheduler::begin_at(Sequence& sequence, const PrefixMatch& match) {
  const bool was_noted = keeps_hit(sequence);
  sequence.hit = match.tokens;
  sequence.replay_start = match.replay_start;
  sequence.state = match.state;
  sequence.from_snapshot = match.snapshot.has_value();
  sequence.branch = match.branch;
  sequence.computed = match.replay_start;
  sequence.planned = match.replay_start;
  if (!was_noted) note_hit(sequence, 1);
}

// --- the step ----------------------------------------------------------------

void Scheduler::plan_rows(TimePoint now, Flight& flight) {
  for (const Owned& sequence : running_) {
    if (sequence->replays() && sequence->computed >= sequence->hit) {
      sequence->usage.replayed_at = now;
    }
    if (sequence->decodes() && !sequence->complete()) add_rows(*sequence, 1, flight);
  }
  const auto decode_rows = static_cast<int64_t>(flight.plan.size());
  int64_t room = options_.rows_max - decode_rows;
  const bool paced = decode_rows > 0 && options_.prefill_rows_beside_decode > 0;
  double budget = paced ? options_.prefill_rows_beside_decode : options_.rows_max;
  int64_t held_room = options_.window;
  bool first_prompt = true;
  for (const Owned& sequence : running_) {
    if (sequence->decodes()) continue;
    const int64_t held = held_rows(*sequence);
    if (held > held_room) continue;
    const int64_t first = sequence->planned;
    const int64_t end = pass_branch(*sequence, std::min(sequence->size(), first + room));
    // Held rows come all together: whoever is first has them, and a row at least.
    const double held_cost = cost_.of_held(held);
    const double left = first_prompt ? std::max(budget - held_cost, 1.0) : budget - held_cost;
    const int64_t count = cost_.affordable(first, end, sequence->tail_floor, left);
    if (count <= 0) break;
    budget = left - cost_.of(first, first + count, sequence->tail_floor);
    room -= count;
    held_room -= held;
    first_prompt = false;
    add_rows(*sequence, count, flight);
  }
}

void Scheduler::add_rows(Sequence& sequence, int64_t count, Flight& flight) {
  const uint64_t step_id = step_id_ + 1;
  const std::span<const int32_t> tokens = sequence.tokens;
  const int64_t first = sequence.planned;
  const int64_t held = held_rows(sequence);
  const int64_t look_back = std::min<int64_t>(first, held + options_.look_back);
  const int64_t end = first + count;
  std::vector<int32_t>& table = sequence.flown_tables[step_id % kStepsInFlightMax];
  table.assign(sequence.page_table.begin(), sequence.page_table.begin() + pages_for(end));
  PlannedSequence planned;
  planned.id = sequence.request.id;
  planned.rows.slot = sequence.slot;
  planned.rows.kind = sequence.decodes()    ? model::RowKind::kDecode
                      : end <= sequence.hit ? model::RowKind::kReplay
                                            : model::RowKind::kPrefill;
  planned.rows.first_position = first;
  if (first < sequence.size()) {
    planned.rows.tokens = tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(count));
  } else {
    CHECK(count == 1 && sequence.awaited == 1);  // by the only step in flight
    planned.rows.tokens = {&kUnknownToken, 1};
    planned.token_from = step_id_;
  }
  planned.rows.look_back =
      tokens.subspan(static_cast<size_t>(first - look_back), static_cast<size_t>(look_back));
  planned.rows.page_table = table;
  planned.rows.window_floor = sequence.state.window_floor;
  planned.rows.global_begin = sequence.hit;
  planned.rows.tail_begin = sequence.tail_floor;
  planned.rows.tail_floor = sequence.tail_floor;
  planned.rows.held_rows = static_cast<int32_t>(held);
  planned.rows.hold_inputs = takes_reuse() && options_.replay != model::DecoderReplay::kOff;
  planned.samples = end == sequence.expected_size();
  if (planned.samples) planned.rows.logits_begin = count - 1;
  sequence.planned = end;
  sequence.awaited += planned.samples ? 1 : 0;
  ++sequence.flights;
  flight.plan.push_back(planned);
  flight.sequences.push_back(&sequence);
}

void Scheduler::commit(const StepResult& result) {
  Flight& flight = flight_of(result.step_id);
  CHECK(in_flight_ > 0 && flight.step_id == result.step_id);
  CHECK(result.step_id + static_cast<uint64_t>(in_flight_) == step_id_ + 1);  // the oldest
  --in_flight_;
  size_t next_result = 0;
  for (size_t i = 0; i < flight.plan.size(); ++i) {
    const PlannedSequence& planned = flight.plan[i];
    Sequence& sequence = *flight.sequences[i];
    const SampledSequence* sampled = nullptr;
    if (planned.samples) {
      CHECK(next_result < result.sampled.size() && result.sampled[next_result].id == planned.id);
      sampled = &result.sampled[next_result++];
      --sequence.awaited;
    }
    --sequence.flights;
    if (sequence.ended) {
      counts_.wasted_rows += std::ssize(planned.rows.tokens);
      if (sequence.flights > 0) continue;
      give_back(sequence, true);
      std::erase_if(leaving_, [&sequence](const Owned& other) { return other.get() == &sequence; });
      continue;
    }
    note_computed(sequence, planned);
    if (sampled == nullptr) continue;
    if (!sequence.has_output()) keep_snapshot(sequence);
    take(sequence, *sampled);
  }
  release_replaced(flight);
}

void Scheduler::note_computed(Sequence& sequence, const PlannedSequence& planned) {
  const int64_t begin = sequence.computed;
  const int64_t end = planned.rows.end_position();
  const int64_t fresh = std::max<int64_t>(0, end - std::max(begin, sequence.charged));
  const int64_t replayed = std::clamp<int64_t>(sequence.hit - begin, 0, end - begin);
  if (planned.rows.kind == model::RowKind::kDecode) {
    ++counts_.decode_rows;
  } else {
    counts_.prefill_rows += fresh;
    counts_.replay_rows += replayed;
    counts_.recomputed_rows += end - begin - replayed - fresh;
    TenantClock::charge(sequence.tenant, kMissedTokenCost * static_cast<double>(fresh));
  }
  sequence.charged = std::max(sequence.charged, end);
  sequence.computed = end;
  // Pages that it gave up for another's of the same bits may be named by the step in flight.
  if (reuse_.publish(sequence, flight_of(step_id_).replaced)) may_admit_ = true;
}

void Scheduler::release_replaced(Flight& flight) {
  if (!flight.replaced.empty()) may_admit_ = true;
  for (const cache::PageId page : flight.replaced) cache_.release(page);
  flight.replaced.clear();
}

void Scheduler::take(Sequence& sequence, const SampledSequence& result) {
  TokenEvent event;
  event.id = result.id;
  if (!result.sampled.valid) {
    event.finish = FinishReason::kFailed;
  } else {
    event.token = result.sampled.token;
    event.has_token = true;
    event.logprob = result.sampled.logprob;
    event.top_logprobs = result.top_logprobs;
    sequence.tokens.push_back(event.token);
    ++sequence.usage.output_tokens;
    TenantClock::charge(sequence.tenant, kOutputTokenCost);
    const std::vector<int32_t>& stops = sequence.request.stop_tokens;
    if (std::ranges::find(stops, event.token) != stops.end()) {
      event.finish = FinishReason::kStop;
    } else if (sequence.usage.output_tokens == sequence.request.output_tokens_max) {
      event.finish = FinishReason::kLength;
    }
  }
  event.usage = sequence.usage;
  events_.push_back(event);
  if (event.finish == FinishReason::kNone) return;
  if (event.has_token) keep_snapshot(sequence);
  const auto at = std::ranges::find_if(
      running_, [&sequence](const Owned& other) { return other.get() == &sequence; });
  Owned owned = std::move(*at);
  running_.erase(at);
  retire(std::move(owned), true);
}

}  // namespace galley::engine
