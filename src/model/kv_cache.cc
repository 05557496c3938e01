#include "model/kv_cache.h"

#include <algorithm>
#include <string>

namespace galley::model {

Result<std::unique_ptr<KvCache>> KvCache::create(const Config& config, const KvOptions& options,
                                                 int32_t page_count, int32_t slot_count,
                                                 kernels::Memory& memory) {
  if (page_count < 0 || slot_count < 0) {
    return Error{ErrorCode::kInvalid, "KV cache with " + std::to_string(page_count) +
                                          " pages and " + std::to_string(slot_count) + " slots"};
  }
  std::unique_ptr<KvCache> cache(new KvCache());
  cache->layout_ = TRY(KvLayout::create(config, options));
  const KvLayout& layout = cache->layout_;
  for (const LayerRole& role : config.roles) {
    const auto owner = std::ranges::find(layout.sources, role.kv_source, &KvSourceLayout::layer);
    cache->source_of_layer_.push_back(
        owner == layout.sources.end() ? 0 : static_cast<int32_t>(owner - layout.sources.begin()));
  }
  cache->page_count_ = page_count;
  cache->slot_count_ = slot_count;
  cache->memory_ = &memory;
  const int64_t spare = cache->has_spare() ? 1 : 0;
  cache->pages_ = TRY(
      kernels::MemoryBlock::create(memory, (page_count + spare) * layout.page_stride, "KV pages"));
  cache->slots_ = TRY(kernels::MemoryBlock::create(memory, (slot_count + spare) * layout.slot_bytes,
                                                   "sequence slots"));
  if (spare == 0) return cache;
  const std::vector<std::byte> zeros(
      static_cast<size_t>(std::max(layout.page_stride, layout.slot_bytes)));
  memory.write(cache->page(page_count), zeros.data(), layout.page_stride);
  memory.write(cache->slot(slot_count), zeros.data(), layout.slot_bytes);
  return cache;
}

kernels::PagedRecords KvCache::global_records(int32_t source, const int32_t* page_table) const {
  const KvSourceLayout& place = layout_.sources[static_cast<size_t>(source)];
  return {.pool = reinterpret_cast<uint8_t*>(pages_.data()) + place.global_offset,
          .page_stride = layout_.page_stride,
          .page_table = page_table,
          .records_per_page = place.records_per_page,
          .record_bytes = layout_.global_record_bytes};
}

kernels::PagedRecords KvCache::index_records(int32_t source, const int32_t* page_table) const {
  const KvSourceLayout& place = layout_.sources[static_cast<size_t>(source)];
  return {.pool = reinterpret_cast<uint8_t*>(pages_.data()) + place.index_offset,
          .page_stride = layout_.page_stride,
          .page_table = page_table,
          .records_per_page = place.records_per_page,
          .record_bytes = layout_.index_record_bytes};
}

uint8_t* KvCache::ring(int32_t slot_index, int32_t layer) const {
  return reinterpret_cast<uint8_t*>(slot(slot_index)) +
         layout_.rings[static_cast<size_t>(layer)].offset;
}

uint8_t* KvCache::ring_record(int32_t slot_index, int32_t layer, int64_t position) const {
  const RingLayout& place = layout_.rings[static_cast<size_t>(layer)];
  return ring(slot_index, layer) + position % place.slots * layout_.window_record_bytes;
}

float* KvCache::pending_row(int32_t slot_index, int32_t source, int64_t position) const {
  const KvSourceLayout& place = layout_.sources[static_cast<size_t>(source)];
  return reinterpret_cast<float*>(slot(slot_index) + place.pending_offset +
                                  position % place.pending_slots * layout_.pending_row_bytes);
}

kernels::Bf16* KvCache::held_streams(int32_t slot_index, int64_t position) const {
  return reinterpret_cast<kernels::Bf16*>(slot(slot_index) + layout_.held.offset +
                                          position % layout_.held.slots * layout_.held_row_bytes);
}

float* KvCache::held_mix(int32_t slot_index, int64_t position) const {
  return reinterpret_cast<float*>(reinterpret_cast<std::byte*>(held_streams(slot_index, position)) +
                                  layout_.held_stream_bytes);
}

}  // namespace galley::model
