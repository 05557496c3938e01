// Images of slots: what was saved comes back in another slot, whatever the block
// size and wherever the rings wrap; and a reuse image has exactly the records
// that rows after the boundary read.
#include "model/kv_snapshot.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "model/kv_cache.h"
#include "model/released_config.h"

namespace galley::model {
namespace {

KvOptions options(const Config& config) {
  KvOptions made;
  made.page_tokens = 128;
  made.hold_inputs = true;
  made.reuse_layers = config.decoder_source() + 1;
  return made;
}

struct Blocks {
  Blocks(int64_t image_bytes, int64_t block_bytes)
      : memory(static_cast<size_t>(blocks_for(image_bytes, block_bytes) * block_bytes)) {
    // Backwards: an image is not contiguous.
    for (int32_t i = blocks_for(image_bytes, block_bytes) - 1; i >= 0; --i) order.push_back(i);
    view = {memory.data(), block_bytes, order};
  }
  std::vector<std::byte> memory;
  std::vector<int32_t> order;
  HostBlocks view;
};

void fill(KvCache& cache, int32_t slot, uint32_t seed) {
  std::mt19937 random(seed);
  for (int64_t i = 0; i < cache.layout().slot_bytes; ++i) {
    cache.slot(slot)[i] = static_cast<std::byte>(random());
  }
}

std::vector<std::byte> bytes_of(const std::byte* from, int64_t count) {
  return {from, from + count};
}

TEST(KvSnapshot, AWholeSlotComesBack) {
  const Config config = parse_config(released_config_json()).value();
  const auto cache = KvCache::create(config, options(config), 0, 2, kernels::host_memory()).value();
  fill(*cache, 0, 1);
  fill(*cache, 1, 2);
  const int64_t bytes = cache->slot_image_bytes(SlotPart::kWhole);
  Blocks blocks(bytes, 113'920);
  cache->save_slot(0, SlotPart::kWhole, 1000, blocks.view);
  cache->load_slot(1, SlotPart::kWhole, 1000, blocks.view);
  EXPECT_EQ(bytes_of(cache->slot(0), bytes), bytes_of(cache->slot(1), bytes));
}

TEST(KvSnapshot, AReuseImageHasTheRecordsBeforeTheBoundary) {
  const Config config = parse_config(released_config_json()).value();
  const auto cache = KvCache::create(config, options(config), 0, 2, kernels::host_memory()).value();
  const KvLayout& layout = cache->layout();
  // 20 encoder rings of W - 1 keys, the cut layer's 2W - 2, and W - 1 inputs.
  const int64_t bytes = cache->slot_image_bytes(SlotPart::kReuse);
  EXPECT_EQ(bytes, (20 * 127 + 254) * 528 + 127 * layout.held_row_bytes);
  EXPECT_LT(bytes, 6'800'000);
  for (const int64_t position : {128, 256, 1024, 40'960}) {
    for (const int64_t block_bytes : {int64_t{113'920}, int64_t{4096}, int64_t{1} << 24}) {
      fill(*cache, 0, 3);
      fill(*cache, 1, 4);
      const std::vector<std::byte> before = bytes_of(cache->slot(1), layout.slot_bytes);
      Blocks blocks(bytes, block_bytes);
      cache->save_slot(0, SlotPart::kReuse, position, blocks.view);
      cache->load_slot(1, SlotPart::kReuse, position, blocks.view);
      int64_t changed = 0;
      const auto check_record = [&](int64_t offset, int64_t size, bool copied) {
        const std::vector<std::byte> now = bytes_of(cache->slot(1) + offset, size);
        ASSERT_EQ(now, bytes_of((copied ? cache->slot(0) : before.data()) + offset, size));
        changed += copied ? 1 : 0;
      };
      const auto check_ring = [&](const RingLayout& ring, int64_t record_bytes) {
        for (int64_t at = position - ring.slots; at < position; ++at) {
          if (at < 0) continue;
          check_record(ring.offset + at % ring.slots * record_bytes, record_bytes,
                       at >= position - ring.reuse);
        }
      };
      for (const RingLayout& ring : layout.rings) check_ring(ring, layout.window_record_bytes);
      check_ring(layout.held, layout.held_row_bytes);
      EXPECT_EQ(changed, 20 * 127 + std::min<int64_t>(position, 254) + 127);
    }
  }
}

// Rings reach back far enough that a boundary can be saved until the next one.
TEST(KvSnapshot, RingsReachBackAPageFurther) {
  const Config config = parse_config(released_config_json()).value();
  const KvOptions with = options(config);
  KvOptions without = with;
  without.reuse_layers = 0;
  const KvLayout longer = KvLayout::create(config, with).value();
  const KvLayout shorter = KvLayout::create(config, without).value();
  const int32_t cut = config.decoder_source();
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    const auto at = static_cast<size_t>(layer);
    EXPECT_EQ(longer.rings[at].slots - shorter.rings[at].slots, layer <= cut ? 127 : 0);
    EXPECT_GE(longer.rings[at].slots, longer.rings[at].reuse + 127 + with.verify_rows_max);
  }
  EXPECT_GE(longer.held.slots, longer.held.reuse + 127 + with.verify_rows_max);
  EXPECT_FALSE(KvLayout::create(config, {.reuse_layers = 41}).has_value());
}

}  // namespace
}  // namespace galley::model
