#include "kernels/cuda/memory_span.h"

#include <gtest/gtest.h>

#include <vector>

namespace galley::kernels::cuda {
namespace {

TEST(MemorySpan, WithIsAroundBoth) {
  const MemorySpan low{100, 200};
  const MemorySpan high{300, 400};
  for (const MemorySpan both : {low.with(high), high.with(low)}) {
    EXPECT_EQ(both.begin, 100U);
    EXPECT_EQ(both.end, 400U);
  }
  EXPECT_EQ(MemorySpan{}.with(low).begin, 100U);
  EXPECT_EQ(low.with(MemorySpan{}).end, 200U);
}

TEST(MemorySpan, CopiesTouchWhatOneOfThemTouches) {
  std::vector<Bf16> memory(1000);
  ProductSet set;
  set.count = 1;
  set.products[0].x = Rows<const Bf16>(memory.data() + 400, 1, 10);
  set.products[0].y = Rows<Bf16>(memory.data() + 500, 1, 10);
  const auto copy = [&](int64_t from, int64_t to) {
    return RowCopy{memory.data() + from, memory.data() + to, 10 * int64_t{sizeof(Bf16)}};
  };
  const auto touched = [&](std::vector<RowCopy> copies) {
    return touches(set, std::span<const RowCopy>(copies));
  };
  EXPECT_FALSE(touched({}));
  EXPECT_FALSE(touched({copy(0, 100), copy(20, 120)}));
  // On both sides of the product's rows: around all of them, but none on them.
  EXPECT_FALSE(touched({copy(0, 100), copy(700, 800)}));
  EXPECT_FALSE(touched({copy(0, 100), copy(400, 800)}));  // reading what it reads
  EXPECT_TRUE(touched({copy(0, 100), copy(20, 405)}));    // writing what it reads
  EXPECT_TRUE(touched({copy(0, 100), copy(505, 800)}));   // reading what it writes
  EXPECT_TRUE(touched({copy(0, 491), copy(700, 800)}));   // writing what it writes
}

}  // namespace
}  // namespace galley::kernels::cuda
