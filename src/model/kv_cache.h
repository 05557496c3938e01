// The bytes of pages and slots: two fixed blocks of the kernels' memory.
//
// Refuses to know who holds what: ids come from cache/page_pool.h and the
// scheduler. A slot or page needs no clearing before reuse; nothing that its
// present holder did not write is ever read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "kernels/memory.h"
#include "kernels/tensor.h"
#include "model/config.h"
#include "model/kv_layout.h"
#include "model/kv_snapshot.h"

namespace galley::model {

class KvCache {
 public:
  // `memory` outlives the cache.
  static Result<std::unique_ptr<KvCache>> create(const Config& config, const KvOptions& options,
                                                 int32_t page_count, int32_t slot_count,
                                                 kernels::Memory& memory);
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  const KvLayout& layout() const { return layout_; }
  int32_t page_count() const { return page_count_; }
  int32_t slot_count() const { return slot_count_; }
  // Whether there is one more slot and one more page behind these, of zeros at first, for rows of
  // no sequence (dead_rows.h): on devices.
  bool has_spare() const { return !memory_->is_host(); }
  // Number of the source in KvLayout::sources that owns `layer`'s compressed KV; only for
  // layers with ratio > 0.
  int32_t source_of_layer(int32_t layer) const {
    return source_of_layer_[static_cast<size_t>(layer)];
  }

  // Of the kernels' memory: the host goes through memory().
  std::byte* page(int32_t page) const { return pages_.data() + page * layout_.page_stride; }
  std::byte* slot(int32_t slot) const { return slots_.data() + slot * layout_.slot_bytes; }
  kernels::Memory& memory() const { return *memory_; }

  // Entry records of `source` as kernels read them through a page table.
  kernels::PagedRecords global_records(int32_t source, const int32_t* page_table) const;
  kernels::PagedRecords index_records(int32_t source, const int32_t* page_table) const;

  uint8_t* ring(int32_t slot, int32_t layer) const;  // layout().rings[layer].slots records
  uint8_t* ring_record(int32_t slot, int32_t layer, int64_t position) const;
  // f32 [2, head_dim]: (a, b) of a pending position; only for ratio > 1.
  float* pending_row(int32_t slot, int32_t source, int64_t position) const;
  // Held input of the cut layer: streams, then mix.
  kernels::Bf16* held_streams(int32_t slot, int64_t position) const;
  float* held_mix(int32_t slot, int64_t position) const;

  // Copies between a slot or page and host memory, in kv_snapshot.cc. `position`: of kReuse, the
  // page boundary; the sequence is computed up to it or less than a page further.
  int64_t slot_image_bytes(SlotPart part) const;
  void save_slot(int32_t slot, SlotPart part, int64_t position, const HostBlocks& to) const;
  void load_slot(int32_t slot, SlotPart part, int64_t position, const HostBlocks& from);
  void save_page(int32_t page, std::byte* to) const;  // layout().page_bytes
  void load_page(int32_t page, const std::byte* from);

 private:
  KvCache() = default;

  KvLayout layout_;
  std::vector<int32_t> source_of_layer_;
  int32_t page_count_ = 0;
  int32_t slot_count_ = 0;
  kernels::Memory* memory_ = nullptr;
  kernels::MemoryBlock pages_;
  kernels::MemoryBlock slots_;
};

}  // namespace galley::model
