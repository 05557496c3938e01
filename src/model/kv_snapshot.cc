// Slots and pages to host memory and back: the part of KvCache that copies.
#include "model/kv_snapshot.h"

#include <algorithm>

#include "base/check.h"
#include "model/kv_cache.h"

namespace galley::model {
namespace {

// Calls copy(offset in the slot, offset in the image, bytes) for each run of the records of
// positions [end - ring.reuse, end); those before position 0 leave a gap in the image.
template <class Copy>
void ring_runs(const RingLayout& ring, int64_t record_bytes, int64_t end, int64_t image_offset,
               const Copy& copy) {
  const int64_t begin = end - ring.reuse;
  for (int64_t position = std::max<int64_t>(0, begin); position < end;) {
    const int64_t at = position % ring.slots;
    const int64_t count = std::min(end - position, ring.slots - at);
    copy(ring.offset + at * record_bytes, image_offset + (position - begin) * record_bytes,
         count * record_bytes);
    position += count;
  }
}

template <class Copy>
void slot_runs(const KvLayout& layout, SlotPart part, int64_t position, const Copy& copy) {
  if (part == SlotPart::kWhole) {
    copy(int64_t{0}, int64_t{0}, layout.slot_bytes);
    return;
  }
  int64_t image = 0;
  for (const RingLayout& ring : layout.rings) {
    ring_runs(ring, layout.window_record_bytes, position, image, copy);
    image += int64_t{ring.reuse} * layout.window_record_bytes;
  }
  ring_runs(layout.held, layout.held_row_bytes, position, image, copy);
}

// Calls copy(place in the block, offset in the run, bytes) for the blocks under a run.
template <class Copy>
void block_runs(const HostBlocks& blocks, int64_t image_offset, int64_t bytes, const Copy& copy) {
  for (int64_t done = 0; done < bytes;) {
    const int64_t at = image_offset + done;
    const int64_t in_block = at % blocks.block_bytes;
    const int64_t count = std::min(bytes - done, blocks.block_bytes - in_block);
    const int64_t block = blocks.blocks[static_cast<size_t>(at / blocks.block_bytes)];
    copy(blocks.memory + block * blocks.block_bytes + in_block, done, count);
    done += count;
  }
}

}  // namespace

int64_t slot_image_bytes(const KvLayout& layout, SlotPart part) {
  if (part == SlotPart::kWhole) return layout.slot_bytes;
  int64_t bytes = layout.held.reuse * layout.held_row_bytes;
  for (const RingLayout& ring : layout.rings) {
    bytes += int64_t{ring.reuse} * layout.window_record_bytes;
  }
  return bytes;
}

int64_t KvCache::slot_image_bytes(SlotPart part) const {
  return model::slot_image_bytes(layout_, part);
}

void KvCache::save_slot(int32_t slot_index, SlotPart part, int64_t position,
                        const HostBlocks& to) const {
  CHECK(std::ssize(to.blocks) * to.block_bytes >= slot_image_bytes(part));
  const std::byte* from = slot(slot_index);
  slot_runs(layout_, part, position, [&](int64_t offset, int64_t image, int64_t bytes) {
    block_runs(to, image, bytes, [&](std::byte* place, int64_t done, int64_t count) {
      memory_->read(place, from + offset + done, count);
    });
  });
}

void KvCache::load_slot(int32_t slot_index, SlotPart part, int64_t position,
                        const HostBlocks& from) {
  CHECK(std::ssize(from.blocks) * from.block_bytes >= slot_image_bytes(part));
  std::byte* to = slot(slot_index);
  slot_runs(layout_, part, position, [&](int64_t offset, int64_t image, int64_t bytes) {
    block_runs(from, image, bytes, [&](const std::byte* place, int64_t done, int64_t count) {
      memory_->write(to + offset + done, place, count);
    });
  });
}

void KvCache::save_page(int32_t page_index, std::byte* to) const {
  memory_->read(to, page(page_index), layout_.page_bytes);
}

void KvCache::load_page(int32_t page_index, const std::byte* from) {
  memory_->write(page(page_index), from, layout_.page_bytes);
}

}  // namespace galley::model
