#include "cache/snapshot_pool.h"

#include <utility>

#include "base/check.h"

namespace galley::cache {

SnapshotPool::SnapshotPool(int32_t block_count, int32_t page_count)
    : block_count_(block_count), of_page_(static_cast<size_t>(page_count), kNone) {
  free_.reserve(static_cast<size_t>(block_count));
  for (int32_t block = block_count - 1; block >= 0; --block) free_.push_back(block);
}

std::optional<SnapshotId> SnapshotPool::take(int32_t blocks) {
  if (blocks > static_cast<int32_t>(free_.size()) + idle_blocks_) return std::nullopt;
  while (static_cast<int32_t>(free_.size()) < blocks) {
    CHECK(oldest_ != kNone);
    untie(oldest_);
    ++evictions_;
  }
  if (free_records_.empty()) {
    free_records_.push_back(static_cast<int32_t>(records_.size()));
    records_.emplace_back();
  }
  const SnapshotId id{free_records_.back()};
  free_records_.pop_back();
  Record& mine = record(id);
  mine.holders = 1;
  mine.state = {};
  mine.blocks.assign(free_.end() - blocks, free_.end());
  free_.resize(free_.size() - static_cast<size_t>(blocks));
  return id;
}

void SnapshotPool::hold(SnapshotId id) {
  Record& mine = record(id);
  if (mine.holders++ == 0) unlist(id.index);
}

void SnapshotPool::release(SnapshotId id) {
  Record& mine = record(id);
  CHECK(mine.holders > 0);
  if (--mine.holders > 0) return;
  if (mine.page == kNone) {
    free(id.index);
  } else {
    list(id.index);
  }
}

void SnapshotPool::tie(SnapshotId id, PageId page, const SnapshotState& state) {
  CHECK(record(id).page == kNone && record(id).holders > 0);
  drop(page);
  record(id).page = page.index;
  record(id).state = state;
  of_page_[static_cast<size_t>(page.index)] = id.index;
}

std::optional<SnapshotId> SnapshotPool::of_page(PageId page) const {
  const int32_t index = of_page_[static_cast<size_t>(page.index)];
  if (index == kNone) return std::nullopt;
  return SnapshotId{index};
}

void SnapshotPool::drop(PageId page) {
  const int32_t index = of_page_[static_cast<size_t>(page.index)];
  if (index != kNone) untie(index);
}

// Whoever holds it keeps it.
void SnapshotPool::untie(int32_t index) {
  Record& mine = records_[static_cast<size_t>(index)];
  of_page_[static_cast<size_t>(std::exchange(mine.page, kNone))] = kNone;
  if (mine.holders > 0) return;
  unlist(index);
  free(index);
}

void SnapshotPool::free(int32_t index) {
  Record& mine = records_[static_cast<size_t>(index)];
  free_.insert(free_.end(), mine.blocks.begin(), mine.blocks.end());
  mine.blocks.clear();
  free_records_.push_back(index);
}

void SnapshotPool::list(int32_t index) {
  Record& mine = records_[static_cast<size_t>(index)];
  mine.older = newest_;
  mine.newer = kNone;
  (newest_ == kNone ? oldest_ : records_[static_cast<size_t>(newest_)].newer) = index;
  newest_ = index;
  idle_blocks_ += static_cast<int32_t>(mine.blocks.size());
}

void SnapshotPool::unlist(int32_t index) {
  Record& mine = records_[static_cast<size_t>(index)];
  (mine.older == kNone ? oldest_ : records_[static_cast<size_t>(mine.older)].newer) = mine.newer;
  (mine.newer == kNone ? newest_ : records_[static_cast<size_t>(mine.newer)].older) = mine.older;
  mine.older = mine.newer = kNone;
  idle_blocks_ -= static_cast<int32_t>(mine.blocks.size());
}

}  // namespace galley::cache
