// The host memory that snapshots lie in, and the copies between it and a cache.
//
// Which block is whose is the scheduler's matter (cache/snapshot_pool.h): this
// only copies what a plan says. One mapping, touched where used. Used by the
// thread that runs the steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"
#include "engine/executor.h"
#include "model/kv_cache.h"

namespace galley::engine {

class SnapshotMemory {
 public:
  static Result<std::unique_ptr<SnapshotMemory>> create(int32_t block_count, int64_t block_bytes);
  ~SnapshotMemory();
  SnapshotMemory(const SnapshotMemory&) = delete;
  SnapshotMemory& operator=(const SnapshotMemory&) = delete;

  void save(const model::KvCache& cache, std::span<const SnapshotCopy> copies);
  void load(model::KvCache& cache, std::span<const SnapshotCopy> copies) const;

 private:
  SnapshotMemory(std::byte* memory, int64_t bytes, int64_t block_bytes)
      : memory_(memory), bytes_(bytes), block_bytes_(block_bytes) {}
  std::byte* block(int32_t number) const { return memory_ + number * block_bytes_; }

  std::byte* memory_;  // null: no block at all
  int64_t bytes_;
  int64_t block_bytes_;
};

}  // namespace galley::engine
