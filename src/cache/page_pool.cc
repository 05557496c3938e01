#include "cache/page_pool.h"

#include "base/check.h"

namespace galley::cache {

PagePool::PagePool(int32_t page_count)
    : holder_count_(static_cast<size_t>(page_count)),
      free_(static_cast<size_t>(page_count)),
      free_count_(page_count) {
  for (int32_t index = 0; index < page_count; ++index) free_[static_cast<size_t>(index)] = index;
}

Result<PageId> PagePool::acquire() {
  if (free_count_ == 0) {
    return Error{ErrorCode::kExhausted,
                 "all " + std::to_string(page_count()) + " KV pages are in use"};
  }
  const PageId page{free_[static_cast<size_t>(free_begin_)]};
  free_begin_ = free_begin_ + 1 == page_count() ? 0 : free_begin_ + 1;
  --free_count_;
  int32_t& count = holder_count_[static_cast<size_t>(page.index)];
  CHECK(count == 0);
  count = 1;
  return page;
}

void PagePool::share(PageId page) {
  int32_t& count = holder_count_[static_cast<size_t>(page.index)];
  CHECK(count > 0);
  ++count;
}

void PagePool::release(PageId page) {
  int32_t& count = holder_count_[static_cast<size_t>(page.index)];
  CHECK(count > 0);
  if (--count > 0) return;
  int32_t end = free_begin_ + free_count_;
  if (end >= page_count()) end -= page_count();
  free_[static_cast<size_t>(end)] = page.index;
  ++free_count_;
}

}  // namespace galley::cache
