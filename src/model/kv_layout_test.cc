// Sizes of pages and slots at the released config, where spec/model.md 8.1
// states them, and that the parts of a page and a slot never overlap.
#include "model/kv_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "model/kv_cache.h"
#include "model/released_config.h"

namespace galley::model {
namespace {

Config released() { return parse_config(released_config_json()).value(); }

TEST(KvLayout, ReleasedSizes) {
  const KvLayout layout = KvLayout::create(released(), {.verify_rows_max = 6}).value();
  EXPECT_EQ(layout.global_record_bytes, 288);
  EXPECT_EQ(layout.index_record_bytes, 68);
  EXPECT_EQ(layout.window_record_bytes, 528);
  EXPECT_EQ(layout.page_bytes, 113920);  // 890 B a token
  EXPECT_EQ(layout.page_stride, 113920);
  EXPECT_EQ(layout.pending_row_bytes, 4096);
  ASSERT_EQ(layout.rings.size(), 40U);
  EXPECT_EQ(layout.rings[19].slots, 128 + 6);
  EXPECT_EQ(layout.rings[20].slots, 2 * 128 - 1 + 6);
  ASSERT_EQ(layout.sources.size(), 4U);
  EXPECT_EQ(layout.sources[0].pending_slots, 1 + 6);
  EXPECT_EQ(layout.sources[3].pending_slots, 0);
  EXPECT_EQ(layout.held.slots, 0);
  // Rings of 40 layers and one of 20's second half, three pending rings.
  const int64_t rings = (39 * 134 + 261) * int64_t{528};
  EXPECT_GE(layout.slot_bytes, rings + 3 * 7 * 4096);
  EXPECT_LE(layout.slot_bytes, rings + 3 * 7 * 4096 + 43 * 64);

  const KvLayout holding =
      KvLayout::create(released(), {.verify_rows_max = 6, .hold_inputs = true}).value();
  // S in bf16 and pi: 40,960 + 16 B a row, on whole cache lines.
  EXPECT_EQ(holding.held_row_bytes, 41024);
  EXPECT_EQ(holding.slot_bytes - layout.slot_bytes, 134 * int64_t{41024});
}

TEST(KvLayout, PartsDoNotOverlap) {
  const KvLayout layout =
      KvLayout::create(released(), {.page_tokens = 6, .verify_rows_max = 3, .hold_inputs = true})
          .value();
  std::vector<std::pair<int64_t, int64_t>> page;
  std::vector<std::pair<int64_t, int64_t>> slot;
  for (const KvSourceLayout& source : layout.sources) {
    const int64_t records = source.records_per_page;
    EXPECT_EQ(records * source.ratio, 6);
    page.emplace_back(source.global_offset, records * layout.global_record_bytes);
    page.emplace_back(source.index_offset, records * layout.index_record_bytes);
    if (source.pending_slots > 0) {
      slot.emplace_back(source.pending_offset, source.pending_slots * layout.pending_row_bytes);
    }
  }
  for (const RingLayout& ring : layout.rings) {
    slot.emplace_back(ring.offset, int64_t{ring.slots} * layout.window_record_bytes);
  }
  slot.emplace_back(layout.held.offset, layout.held.slots * layout.held_row_bytes);
  const auto disjoint = [](std::vector<std::pair<int64_t, int64_t>> parts, int64_t size) {
    std::ranges::sort(parts);
    int64_t end = 0;
    for (const auto& [offset, bytes] : parts) {
      EXPECT_GE(offset, end);
      end = offset + bytes;
    }
    EXPECT_LE(end, size);
  };
  disjoint(page, layout.page_bytes);
  disjoint(slot, layout.slot_bytes);
}

TEST(KvLayout, RefusesPagesThatSplitAGroup) {
  const auto odd = KvLayout::create(released(), {.page_tokens = 7});
  ASSERT_FALSE(odd);
  EXPECT_NE(odd.error().message.find("multiple of 2"), std::string::npos);
  EXPECT_FALSE(KvLayout::create(released(), {.page_tokens = 0}));
  EXPECT_FALSE(KvLayout::create(released(), {.verify_rows_max = 0}));
}

// A terabyte of address space, of which only what is written costs memory.
TEST(KvCache, ReservesWithoutTouching) {
  const auto cache = KvCache::create(released(), {}, 8'000'000, 1000, kernels::host_memory());
  ASSERT_TRUE(cache) << cache.error().message;
  (*cache)->page(7'999'999)[0] = std::byte{1};
  *(*cache)->ring_record(999, 39, 123456) = 1;
  EXPECT_EQ((*cache)->ring_record(3, 7, 5), (*cache)->ring_record(3, 7, 5 + 136));
  EXPECT_EQ((*cache)->source_of_layer(2), 0);
  EXPECT_EQ((*cache)->source_of_layer(13), 1);
  EXPECT_EQ((*cache)->source_of_layer(39), 3);
}

}  // namespace
}  // namespace galley::model
