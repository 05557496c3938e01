// What of a sequence is cached, where it must start after a hit, and why there
// was none; and who computes a prefix that others wait for.
//
// Joins the prefix cache, which knows keys and pages, with sequences, which have
// tokens. Refuses to know slots, budgets and order. Owned by the engine thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "cache/prefix_cache.h"
#include "cache/snapshot_pool.h"
#include "engine/generator_options.h"
#include "engine/request.h"
#include "engine/sequence.h"

namespace galley::engine {

struct PrefixMatch {
  int64_t tokens = 0;                            // of the hit: whole pages
  int64_t replay_start = 0;                      // first row to compute
  cache::SnapshotState state = {.exact = true};  // that it is in when these rows are computed
  std::optional<cache::SnapshotId> snapshot;     // to load before the first row, which is at tokens
  std::span<const cache::PageId> pages = {};     // until the next look_up
  bool coming = false;                           // another sequence computes more of it right now
  // Where what is known parts from this prompt, if a snapshot there would have spared rows; or 0.
  int64_t branch = 0;
};

class PrefixReuse {
 public:
  // All outlive it.
  PrefixReuse(const GeneratorOptions& options, cache::PrefixCache& cache,
              const cache::SnapshotPool& snapshots);

  bool on() const { return options_.prefix != PrefixReplay::kOff; }
  // Once, before any other call with this sequence.
  void enter(Sequence& sequence);
  // The longest prefix that it can start from now. Changes nothing but its keys.
  PrefixMatch look_up(Sequence& sequence);
  // The page that ends at `boundary` of its tokens, one that it was looked up with, if it is known.
  std::optional<cache::PageId> page_before(const Sequence& sequence, int64_t boundary) const {
    return cache_.find(sequence.keys[static_cast<size_t>(boundary / options_.page_tokens - 1)]);
  }
  // Pages that hold what the sequence computed before, bit for bit: its first ones.
  std::span<const cache::PageId> find_again(Sequence& sequence);
  // Why the match is no longer, for usage: reason and position of the first differing token.
  void explain(const Sequence& sequence, const PrefixMatch& match, Usage& usage);
  // It starts: what it is about to compute is announced.
  void announce(Sequence& sequence);
  // Its pages that are complete become findable. True when any did. Pages that it gave up for
  // another's of the same bits are put into `replaced`, for the caller to release.
  bool publish(Sequence& sequence, std::vector<cache::PageId>& replaced);
  // It stops computing, finished or not.
  void withdraw(Sequence& sequence);

 private:
  struct KeyHash {
    size_t operator()(const cache::PrefixKey& key) const { return key.head(); }
  };

  // At most that many pages of it can be reused: one row must remain for the logits.
  int64_t reusable_pages(const Sequence& sequence) const {
    return (sequence.size() - 1) / options_.page_tokens;
  }
  void extend_keys(Sequence& sequence, int64_t pages);
  model::ExactReplay exact_replay() const {
    return {.replay = options_.replay,
            .window = options_.window,
            .layers = options_.layers,
            .decoder_source = options_.decoder_source};
  }
  // `hit`, the end of what matched, if the state there is to be kept for others that part there.
  int64_t branch_at(const Sequence& sequence, int64_t hit) const;
  // Whether a sequence may start from a snapshot of `boundary`.
  bool serves(const cache::SnapshotState& state, int64_t boundary, int64_t prompt_end) const;
  std::span<const int32_t> page_tokens(const Sequence& sequence, int64_t page) const;
  // Of the first page, by tenant alone.
  uint64_t tenant_head(const Sequence& sequence);

  const GeneratorOptions& options_;
  cache::PrefixCache& cache_;
  const cache::SnapshotPool& snapshots_;
  cache::PrefixHasher hasher_;
  std::vector<cache::PageId> matched_;
  // Pages being computed by running sequences: at most their prompts' pages.
  std::unordered_map<cache::PrefixKey, SequenceId, KeyHash> coming_;
  // Heads of first pages by tenant, direct mapped: whether it has them in any namespace.
  std::vector<uint64_t> first_pages_;
};

}  // namespace galley::engine
