#include "engine/prefix_reuse.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "base/check.h"

namespace galley::engine {
namespace {

constexpr size_t kFirstPagesKnown = 4096;

std::string_view bytes_of(const uint64_t& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

}  // namespace

PrefixReuse::PrefixReuse(const GeneratorOptions& options, cache::PrefixCache& cache,
                         const cache::SnapshotPool& snapshots)
    : options_(options),
      cache_(cache),
      snapshots_(snapshots),
      first_pages_(on() ? kFirstPagesKnown : 0) {
  matched_.reserve(static_cast<size_t>(cache.page_count()));
}

void PrefixReuse::enter(Sequence& sequence) {
  if (!on()) return;
  // Bounded and exact pages differ, and so do those of another reading of decoder replay.
  const uint64_t kind =
      static_cast<uint64_t>(options_.prefix) << 8 | static_cast<uint64_t>(options_.replay);
  const std::string_view parts[] = {"galley prefix 1", options_.prefix_salt, bytes_of(kind),
                                    sequence.request.cache_namespace};
  sequence.root = hasher_.root(parts);
  sequence.keys.reserve(static_cast<size_t>(sequence.length_max() / options_.page_tokens));
}

std::span<const int32_t> PrefixReuse::page_tokens(const Sequence& sequence, int64_t page) const {
  return std::span<const int32_t>(sequence.tokens)
      .subspan(static_cast<size_t>(page * options_.page_tokens),
               static_cast<size_t>(options_.page_tokens));
}

void PrefixReuse::extend_keys(Sequence& sequence, int64_t pages) {
  while (std::ssize(sequence.keys) < pages) {
    const cache::PrefixKey& parent = sequence.keys.empty() ? sequence.root : sequence.keys.back();
    sequence.keys.push_back(hasher_.next(parent, page_tokens(sequence, std::ssize(sequence.keys))));
  }
}

PrefixMatch PrefixReuse::look_up(Sequence& sequence) {
  PrefixMatch match;
  if (!on()) return match;
  const int64_t pages = reusable_pages(sequence);
  extend_keys(sequence, pages);
  matched_.clear();
  while (std::ssize(matched_) < pages) {
    const cache::PrefixKey& key = sequence.keys[matched_.size()];
    const auto page = cache_.find(key);
    if (!page) {
      const auto found = coming_.find(key);
      match.coming = found != coming_.end() && found->second != sequence.request.id;
      break;
    }
    matched_.push_back(*page);
  }
  const int64_t hit = std::ssize(matched_) * options_.page_tokens;
  const bool bounded = options_.prefix == PrefixReplay::kBounded;
  const int64_t start = bounded
                            ? hit - options_.window
                            : model::exact_replay_start(exact_replay(), hit, sequence.prompt_end());
  // A snapshot from which no more rows are computed than after a replay.
  for (int64_t pages_found = std::ssize(matched_); pages_found > 0; --pages_found) {
    const int64_t boundary = pages_found * options_.page_tokens;
    if (boundary < start) break;
    const auto snapshot = snapshots_.of_page(matched_[static_cast<size_t>(pages_found - 1)]);
    if (!snapshot) continue;
    if (!serves(snapshots_.state(*snapshot), boundary, sequence.prompt_end())) continue;
    match.tokens = boundary;
    match.replay_start = boundary;
    match.pages = std::span(matched_).first(static_cast<size_t>(pages_found));
    match.state = snapshots_.state(*snapshot);
    match.snapshot = snapshot;
    if (boundary < hit) match.branch = branch_at(sequence, hit);
    return match;
  }
  match.branch = branch_at(sequence, hit);
  if (start <= 0) return match;  // all of it would be computed again
  match.tokens = hit;
  match.replay_start = start;
  match.pages = matched_;
  match.state = {.exact = !bounded, .window_floor = start};
  if (!bounded) match.state.valid_from = model::exact_replay_reach(exact_replay(), start);
  return match;
}

int64_t PrefixReuse::branch_at(const Sequence& sequence, int64_t hit) const {
  // The last boundary of a prompt is kept when it ends.
  if (options_.reuse_blocks == 0 || hit == 0) return 0;
  if (hit >= reusable_pages(sequence) * options_.page_tokens) return 0;
  // Where no other continuation is known, it may be one conversation that grows: nobody makes room.
  const int32_t free_blocks = snapshots_.block_count() - snapshots_.used_blocks();
  return cache_.continues(matched_.back()) || free_blocks >= options_.reuse_blocks ? hit : 0;
}

bool PrefixReuse::serves(const cache::SnapshotState& state, int64_t boundary,
                         int64_t prompt_end) const {
  if (options_.replay == model::DecoderReplay::kOff) return boundary >= state.valid_from;
  // The tail rows before the boundary come from held inputs: at most W - 1, of a prompt that goes
  // on behind it. They read the cut's keys W - 1 positions back.
  if (boundary >= prompt_end) return false;
  return state.valid_from == 0 || prompt_end - 2 * options_.window + 1 >= state.valid_from;
}

std::span<const cache::PageId> PrefixReuse::find_again(Sequence& sequence) {
  matched_.clear();
  if (!on() || !sequence.state.exact) return matched_;
  const int64_t pages = sequence.computed / options_.page_tokens;
  extend_keys(sequence, pages);
  while (std::ssize(matched_) < pages) {
    const auto page = cache_.find(sequence.keys[matched_.size()]);
    if (!page || !cache_.is_exact(*page)) break;
    matched_.push_back(*page);
  }
  return matched_;
}

uint64_t PrefixReuse::tenant_head(const Sequence& sequence) {
  const std::string_view parts[] = {"galley tenant 1", bytes_of(sequence.request.tenant)};
  const uint64_t head = hasher_.next(hasher_.root(parts), page_tokens(sequence, 0)).head();
  return head == 0 ? 1 : head;
}

void PrefixReuse::explain(const Sequence& sequence, const PrefixMatch& match, Usage& usage) {
  if (!on()) return;
  const int64_t pages = reusable_pages(sequence);
  const int64_t found = std::ssize(matched_);
  if (found == pages) {
    usage.miss = match.tokens > 0 ? MissReason::kNone : MissReason::kTooShort;
    return;
  }
  std::optional<cache::PageId> parent;
  if (found > 0) parent = matched_.back();
  const cache::Explanation why = cache_.explain(sequence.keys[static_cast<size_t>(found)], parent,
                                                sequence.root.head(), page_tokens(sequence, found));
  switch (why.absence) {
    case cache::Absence::kEvicted:
      usage.miss = MissReason::kEvicted;
      return;
    case cache::Absence::kExpired:
      usage.miss = MissReason::kExpired;
      return;
    case cache::Absence::kDiffers:
      usage.miss = MissReason::kTokenDiffers;
      usage.differs_at = static_cast<int32_t>(found * options_.page_tokens) + why.same_tokens;
      return;
    case cache::Absence::kUnknown:
      usage.miss = MissReason::kUnknown;
      break;
  }
  if (found > 0) return;
  const uint64_t head = tenant_head(sequence);
  if (first_pages_[head % kFirstPagesKnown] == head) usage.miss = MissReason::kOtherNamespace;
}

void PrefixReuse::announce(Sequence& sequence) {
  if (!on()) return;
  const int64_t pages = reusable_pages(sequence);
  extend_keys(sequence, pages);  // whoever resumes was not looked up
  for (auto page = static_cast<size_t>(sequence.hit / options_.page_tokens);
       page < static_cast<size_t>(pages); ++page) {
    coming_.emplace(sequence.keys[page], sequence.request.id);
  }
  sequence.announced = static_cast<size_t>(pages);
}

bool PrefixReuse::publish(Sequence& sequence, std::vector<cache::PageId>& replaced) {
  if (!on() || !sequence.publishes) return false;
  const int64_t complete = sequence.computed / options_.page_tokens;
  bool any = false;
  while (static_cast<int64_t>(sequence.published) < complete) {
    const auto page = static_cast<int64_t>(sequence.published);
    extend_keys(sequence, page + 1);
    const cache::PrefixKey& key = sequence.keys[sequence.published];
    std::optional<cache::PageId> parent;
    if (page > 0) parent = cache::PageId{sequence.page_table[sequence.published - 1]};
    int32_t& mine = sequence.page_table[sequence.published];
    const bool exact = sequence.state.exact;
    if (!cache_.publish({mine}, key, parent, sequence.root.head(), page_tokens(sequence, page),
                        exact)) {
      const cache::PageId theirs = cache_.find(key).value();
      if (!exact || !cache_.is_exact(theirs)) {
        // Another's bits; what follows here has no parent that this sequence holds.
        sequence.publishes = false;
        withdraw(sequence);
        return true;
      }
      // The same bits: one page is enough, and what follows can be found behind it.
      cache_.hold(theirs);
      replaced.push_back({mine});
      mine = theirs.index;
    }
    if (page == 0) {
      const uint64_t head = tenant_head(sequence);
      first_pages_[head % kFirstPagesKnown] = head;
    }
    ++sequence.published;
    any = true;
    const auto found = coming_.find(key);
    if (found != coming_.end() && found->second == sequence.request.id) coming_.erase(found);
  }
  return any;
}

void PrefixReuse::withdraw(Sequence& sequence) {
  for (size_t page = 0; page < sequence.announced; ++page) {
    const auto found = coming_.find(sequence.keys[page]);
    if (found != coming_.end() && found->second == sequence.request.id) coming_.erase(found);
  }
  sequence.announced = 0;
}

}  // namespace galley::engine
