// Which pages hold which prefixes, and which page makes room next.
//
// Every page is free, held by sequences, or kept for its prefix alone; the index
// is one more holder of the pages that it knows. Pages kept by the index alone
// are evicted least recently used first, and never before the pages that
// continue them; those that nobody used for too long expire in the same order. Knows ids, keys and
// tokens, no KV bytes, so a simulator runs it unchanged. Memory is taken once, by page count. Owned
// by the engine thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "cache/page_ages.h"
#include "cache/page_id.h"
#include "cache/page_pool.h"
#include "cache/prefix_key.h"

namespace galley::cache {

// What is known of a key that is not in the index.
enum class Absence : uint8_t {
  kUnknown,  // nothing
  kDiffers,  // its parent has other continuations
  kEvicted,  // it was here and had to make room
  kExpired,  // it was here until nobody had used it for so long
};

struct Explanation {
  Absence absence = Absence::kUnknown;
  int32_t same_tokens = 0;  // kDiffers: how far the closest of them agrees with it
};

class PrefixCache {
 public:
  // A page that the index alone keeps expires `ttl_s` after its last use; 0: never.
  PrefixCache(int32_t page_count, int32_t page_tokens, int64_t ttl_s = 0);

  int32_t page_count() const { return pool_.page_count(); }
  // Free, or kept by the index alone: what acquire() can give.
  int32_t available_count() const { return pool_.free_count() + evictable_count_; }
  int32_t free_count() const { return pool_.free_count(); }
  int32_t indexed_count() const { return indexed_count_; }
  int64_t evictions() const { return evictions_; }
  int64_t expiries() const { return expiries_; }
  // Of those that the index alone keeps.
  const PageAges& ages() const { return ages_; }
  // Never goes back. What expires by then is gone.
  void set_time(int64_t now_s);
  // Called with each page that the index gives up.
  void on_leave(std::function<void(PageId)> leave) { leave_ = std::move(leave); }

  // A page for new tokens, evicting if none is free. kExhausted when sequences hold all.
  Result<PageId> acquire();
  void hold(PageId page);     // one more sequence
  void release(PageId page);  // the pages of one sequence last to first
  // How many sequences hold it.
  int32_t holders(PageId page) const { return pool_.holders(page) - (entry(page).indexed ? 1 : 0); }

  std::optional<PageId> find(const PrefixKey& key) const;
  // The page, held by the caller and complete, becomes findable. `parent` is the page before it,
  // indexed and held by the same caller; none for a first page. `root` tells namespaces apart.
  // False: the key is there already, under another page.
  // `exact`: what the page holds follows from its tokens alone, by way of no bounded replay.
  bool publish(PageId page, const PrefixKey& key, std::optional<PageId> parent, uint64_t root,
               std::span<const int32_t> tokens, bool exact);
  // Of an indexed page: two exact pages of one key hold the same bits.
  bool is_exact(PageId page) const { return entry(page).exact; }
  // Of an indexed page: some page that continues it is known.
  bool continues(PageId page) const { return entry(page).first_child != kNone; }
  // Why `key`, which continues `parent` with `tokens`, is not there.
  Explanation explain(const PrefixKey& key, std::optional<PageId> parent, uint64_t root,
                      std::span<const int32_t> tokens) const;

 private:
  static constexpr int32_t kNone = -1;

  struct Entry {
    PrefixKey key;
    uint64_t root = 0;
    bool indexed = false;
    bool exact = false;
    int32_t parent = kNone;
    int32_t first_child = kNone;  // newest first
    int32_t next_sibling = kNone;
    int32_t previous_sibling = kNone;
    // Of those that the index alone holds, by time of release.
    int32_t older = kNone;
    int32_t newer = kNone;
    int64_t since_s = 0;
  };

  Entry& entry(PageId page) { return entries_[static_cast<size_t>(page.index)]; }
  const Entry& entry(PageId page) const { return entries_[static_cast<size_t>(page.index)]; }
  int32_t& first_child_of(int32_t parent);
  std::span<const int32_t> tokens_of(int32_t page) const;
  size_t place_of(const PrefixKey& key) const;  // where it is in table_, or would be
  void erase_from_table(const PrefixKey& key);
  void list_evictable(int32_t page);
  void unlist_evictable(int32_t page);
  void drop_oldest(Absence reason);

  const int32_t page_tokens_;
  const int64_t ttl_s_;
  int64_t now_s_ = 0;
  std::function<void(PageId)> leave_;
  PagePool pool_;
  PageAges ages_;
  std::vector<Entry> entries_;   // by page
  std::vector<int32_t> tokens_;  // [page_count, page_tokens], of indexed pages
  std::vector<int32_t> table_;   // open addressing: page or kNone; at most half full
  // Key heads, direct mapped: the memory of what was here. The lowest bit says that it expired.
  std::vector<uint64_t> gone_;
  int32_t first_root_ = kNone;  // children of no page
  int32_t oldest_ = kNone;
  int32_t newest_ = kNone;
  int32_t evictable_count_ = 0;
  int32_t indexed_count_ = 0;
  int64_t evictions_ = 0;
  int64_t expiries_ = 0;
};

}  // namespace galley::cache
