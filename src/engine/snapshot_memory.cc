#include "engine/snapshot_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace galley::engine {

Result<std::unique_ptr<SnapshotMemory>> SnapshotMemory::create(int32_t block_count,
                                                               int64_t block_bytes) {
  const int64_t bytes = block_count * block_bytes;
  void* memory = nullptr;
  if (bytes > 0) {
    memory = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      return Error{ErrorCode::kExhausted, "cannot reserve " + std::to_string(bytes) +
                                              " bytes for snapshots: " + std::strerror(errno)};
    }
  }
  return std::unique_ptr<SnapshotMemory>(
      new SnapshotMemory(static_cast<std::byte*>(memory), bytes, block_bytes));
}

SnapshotMemory::~SnapshotMemory() {
  if (memory_ != nullptr) munmap(memory_, static_cast<size_t>(bytes_));
}

void SnapshotMemory::save(const model::KvCache& cache, std::span<const SnapshotCopy> copies) {
  for (const SnapshotCopy& copy : copies) {
    cache.save_slot(copy.slot, copy.part, copy.position, {memory_, block_bytes_, copy.blocks});
    for (const SnapshotCopy::Page& page : copy.pages) cache.save_page(page.page, block(page.block));
  }
}

void SnapshotMemory::load(model::KvCache& cache, std::span<const SnapshotCopy> copies) const {
  for (const SnapshotCopy& copy : copies) {
    cache.load_slot(copy.slot, copy.part, copy.position, {memory_, block_bytes_, copy.blocks});
    for (const SnapshotCopy::Page& page : copy.pages) cache.load_page(page.page, block(page.block));
  }
}

}  // namespace galley::engine
