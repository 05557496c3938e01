// Hands out KV pages and counts who holds each one.
//
// A page is free, or held by one or more sequences that share a prefix. The
// pool knows ids, never memory, so a simulator can run it unchanged. Owned by
// the engine thread; no locks.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "cache/page_id.h"

namespace galley::cache {

class PagePool {
 public:
  explicit PagePool(int32_t page_count);

  // kExhausted when none is free: the scheduler then preempts a sequence.
  Result<PageId> acquire();
  void share(PageId page);    // one more holder
  void release(PageId page);  // the last holder frees it

  int32_t page_count() const { return static_cast<int32_t>(holder_count_.size()); }
  int32_t free_count() const { return free_count_; }
  int32_t holders(PageId page) const { return holder_count_[static_cast<size_t>(page.index)]; }

 private:
  std::vector<int32_t> holder_count_;  // [page_count]
  // Ring of free ids, oldest first: freed prefixes stay findable longest.
  std::vector<int32_t> free_;
  int32_t free_begin_ = 0;
  int32_t free_count_ = 0;
};

}  // namespace galley::cache
