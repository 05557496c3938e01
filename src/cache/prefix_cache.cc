#include "cache/prefix_cache.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace galley::cache {
namespace {

// Continuations looked at to find the closest one.
constexpr int kSiblingsMax = 64;
// A first page that agrees no further than a chat's opening markup says nothing.
constexpr int32_t kRootTokensMin = 4;
// Keys remembered after they left, at least; a power of two.
constexpr size_t kGoneMin = 4096;
constexpr uint64_t kExpiredBit = 1;

size_t table_size(int32_t page_count) {
  return std::bit_ceil(2 * static_cast<size_t>(std::max(page_count, 1)));
}

}  // namespace

PrefixCache::PrefixCache(int32_t page_count, int32_t page_tokens, int64_t ttl_s)
    : page_tokens_(page_tokens),
      ttl_s_(ttl_s),
      pool_(page_count),
      ages_(page_count),
      entries_(static_cast<size_t>(page_count)),
      tokens_(static_cast<size_t>(page_count) * static_cast<size_t>(page_tokens)),
      table_(table_size(page_count), kNone),
      gone_(std::max(kGoneMin, 2 * table_size(page_count))) {}

void PrefixCache::set_time(int64_t now_s) {
  ages_.set_time(now_s);
  now_s_ = std::max(now_s_, now_s);
  if (ttl_s_ == 0) return;
  // Released last to first, so the oldest has no continuation that is younger.
  while (oldest_ != kNone && now_s_ - entries_[static_cast<size_t>(oldest_)].since_s >= ttl_s_) {
    drop_oldest(Absence::kExpired);
    ++expiries_;
  }
}

Result<PageId> PrefixCache::acquire() {
  if (pool_.free_count() == 0 && oldest_ != kNone) {
    drop_oldest(Absence::kEvicted);
    ++evictions_;
  }
  return pool_.acquire();
}

void PrefixCache::hold(PageId page) {
  if (entry(page).indexed && pool_.holders(page) == 1) unlist_evictable(page.index);
  pool_.share(page);
}

void PrefixCache::release(PageId page) {
  pool_.release(page);
  if (entry(page).indexed && pool_.holders(page) == 1) list_evictable(page.index);
}

size_t PrefixCache::place_of(const PrefixKey& key) const {
  const size_t mask = table_.size() - 1;
  size_t place = key.head() & mask;
  while (table_[place] != kNone && entries_[static_cast<size_t>(table_[place])].key != key) {
    place = (place + 1) & mask;
  }
  return place;
}

std::optional<PageId> PrefixCache::find(const PrefixKey& key) const {
  const int32_t page = table_[place_of(key)];
  if (page == kNone) return std::nullopt;
  return PageId{page};
}

int32_t& PrefixCache::first_child_of(int32_t parent) {
  return parent == kNone ? first_root_ : entries_[static_cast<size_t>(parent)].first_child;
}

std::span<const int32_t> PrefixCache::tokens_of(int32_t page) const {
  return std::span(tokens_).subspan(static_cast<size_t>(page) * static_cast<size_t>(page_tokens_),
                                    static_cast<size_t>(page_tokens_));
}

bool PrefixCache::publish(PageId page, const PrefixKey& key, std::optional<PageId> parent,
                          uint64_t root, std::span<const int32_t> tokens, bool exact) {
  CHECK(tokens.size() == static_cast<size_t>(page_tokens_) && holders(page) > 0);
  CHECK(!parent || (entry(*parent).indexed && holders(*parent) > 0));
  Entry& mine = entry(page);
  CHECK(!mine.indexed);
  const size_t place = place_of(key);
  if (table_[place] != kNone) return false;
  table_[place] = page.index;
  mine = Entry{};
  mine.key = key;
  mine.root = root;
  mine.indexed = true;
  mine.exact = exact;
  mine.parent = parent ? parent->index : kNone;
  int32_t& first = first_child_of(mine.parent);
  mine.next_sibling = first;
  if (first != kNone) entries_[static_cast<size_t>(first)].previous_sibling = page.index;
  first = page.index;
  std::ranges::copy(tokens, tokens_.begin() + int64_t{page.index} * page_tokens_);
  pool_.share(page);
  ++indexed_count_;
  return true;
}

Explanation PrefixCache::explain(const PrefixKey& key, std::optional<PageId> parent, uint64_t root,
                                 std::span<const int32_t> tokens) const {
  if (tokens.size() == static_cast<size_t>(page_tokens_)) {
    const uint64_t gone = gone_[key.head() & (gone_.size() - 1)];
    if ((gone & ~kExpiredBit) == (key.head() & ~kExpiredBit)) {
      return {(gone & kExpiredBit) != 0 ? Absence::kExpired : Absence::kEvicted};
    }
  }
  int32_t best = -1;
  int32_t child = parent ? entry(*parent).first_child : first_root_;
  for (int seen = 0; child != kNone && seen < kSiblingsMax; ++seen) {
    const Entry& other = entries_[static_cast<size_t>(child)];
    if (other.root == root) {
      const std::span<const int32_t> theirs =
          tokens_of(child).first(std::min(tokens.size(), static_cast<size_t>(page_tokens_)));
      const auto differs = std::mismatch(theirs.begin(), theirs.end(), tokens.begin());
      best = std::max(best, static_cast<int32_t>(differs.first - theirs.begin()));
    }
    child = other.next_sibling;
  }
  if (best < (parent ? 0 : kRootTokensMin)) return {};
  return {Absence::kDiffers, best};
}

void PrefixCache::list_evictable(int32_t page) {
  Entry& mine = entries_[static_cast<size_t>(page)];
  mine.older = newest_;
  mine.newer = kNone;
  (newest_ == kNone ? oldest_ : entries_[static_cast<size_t>(newest_)].newer) = page;
  newest_ = page;
  mine.since_s = now_s_;
  ++evictable_count_;
  ages_.add(PageId{page});
}

void PrefixCache::unlist_evictable(int32_t page) {
  Entry& mine = entries_[static_cast<size_t>(page)];
  (mine.older == kNone ? oldest_ : entries_[static_cast<size_t>(mine.older)].newer) = mine.newer;
  (mine.newer == kNone ? newest_ : entries_[static_cast<size_t>(mine.newer)].older) = mine.older;
  mine.older = mine.newer = kNone;
  --evictable_count_;
  ages_.remove(PageId{page});
}

void PrefixCache::drop_oldest(Absence reason) {
  const int32_t page = oldest_;
  Entry& mine = entries_[static_cast<size_t>(page)];
  // Whoever holds a page holds those before it and releases them after it.
  CHECK(mine.first_child == kNone);
  unlist_evictable(page);
  erase_from_table(mine.key);
  const uint64_t head = mine.key.head();
  gone_[head & (gone_.size() - 1)] =
      (head & ~kExpiredBit) | (reason == Absence::kExpired ? kExpiredBit : 0);
  if (mine.next_sibling != kNone) {
    entries_[static_cast<size_t>(mine.next_sibling)].previous_sibling = mine.previous_sibling;
  }
  if (mine.previous_sibling != kNone) {
    entries_[static_cast<size_t>(mine.previous_sibling)].next_sibling = mine.next_sibling;
  } else {
    first_child_of(mine.parent) = mine.next_sibling;
  }
  mine.indexed = false;
  --indexed_count_;
  if (leave_) leave_(PageId{page});
  pool_.release({page});
}

void PrefixCache::erase_from_table(const PrefixKey& key) {
  const size_t mask = table_.size() - 1;
  size_t hole = place_of(key);
  // Moves back what was pushed past the hole, so that searches need no tombstones.
  for (size_t next = (hole + 1) & mask; table_[next] != kNone; next = (next + 1) & mask) {
    const size_t home = entries_[static_cast<size_t>(table_[next])].key.head() & mask;
    if (((next - home) & mask) < ((next - hole) & mask)) continue;
    table_[hole] = table_[next];
    hole = next;
  }
  table_[hole] = kNone;
}

}  // namespace galley::cache
