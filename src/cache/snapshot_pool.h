// Which blocks of the host's snapshot memory hold which snapshot, and which one
// makes room next.
//
// Two kinds share the blocks. A resume snapshot belongs to one preempted
// sequence and is never dropped for another. A reuse snapshot belongs to a page
// of the prefix index: it goes with the page, or when it is the least recently
// used one that nobody holds and room is needed. Knows ids and counts, never
// bytes, so a simulator runs it unchanged. Owned by the engine thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cache/page_id.h"

namespace galley::cache {

struct SnapshotId {
  int32_t index = 0;
  bool operator==(const SnapshotId&) const = default;
};

// What a sequence must know to start from a reuse snapshot.
struct SnapshotState {
  bool exact = false;        // its bits are those of a cold run
  int64_t window_floor = 0;  // no row of its history saw window keys before it
  // Keys and inputs of the layer at the cut have their bits from here on.
  int64_t valid_from = 0;
};

class SnapshotPool {
 public:
  // A reuse snapshot may be tied to any of `page_count` pages.
  SnapshotPool(int32_t block_count, int32_t page_count);

  bool on() const { return block_count_ > 0; }
  // Blocks for a snapshot that the caller holds, dropping reuse snapshots if need be. None when
  // what is left is held.
  std::optional<SnapshotId> take(int32_t blocks);
  std::span<const int32_t> blocks(SnapshotId id) const { return record(id).blocks; }

  void hold(SnapshotId id);
  // The last holder of one that no page has frees it; of one that a page has makes it the most
  // recently used.
  void release(SnapshotId id);

  // It belongs to the page, in place of what the page had.
  void tie(SnapshotId id, PageId page, const SnapshotState& state);
  std::optional<SnapshotId> of_page(PageId page) const;
  const SnapshotState& state(SnapshotId id) const { return record(id).state; }
  // The page left the index, or means something else.
  void drop(PageId page);

  int32_t block_count() const { return block_count_; }
  int32_t used_blocks() const { return block_count_ - static_cast<int32_t>(free_.size()); }
  // Reuse snapshots dropped for lack of room.
  int64_t evictions() const { return evictions_; }

 private:
  static constexpr int32_t kNone = -1;

  struct Record {
    std::vector<int32_t> blocks;
    int32_t holders = 0;
    int32_t page = kNone;
    SnapshotState state;
    // Of those that only a page has, by time of use.
    int32_t older = kNone;
    int32_t newer = kNone;
  };

  Record& record(SnapshotId id) { return records_[static_cast<size_t>(id.index)]; }
  const Record& record(SnapshotId id) const { return records_[static_cast<size_t>(id.index)]; }
  void list(int32_t index);
  void unlist(int32_t index);
  void untie(int32_t index);
  void free(int32_t index);

  const int32_t block_count_;
  std::vector<int32_t> free_;  // blocks
  int32_t idle_blocks_ = 0;    // of those that only a page has
  std::vector<Record> records_;
  std::vector<int32_t> free_records_;
  std::vector<int32_t> of_page_;  // [page_count]
  int32_t oldest_ = kNone;
  int32_t newest_ = kNone;
  int64_t evictions_ = 0;
};

}  // namespace galley::cache
