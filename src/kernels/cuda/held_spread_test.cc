// Which copies may be made beside a step's first rows, and what a step has written: by memory they
// name, never by what lies there. Needs no device.
#include "kernels/cuda/held_spread.h"

#include <gtest/gtest.h>

#include <vector>

namespace galley::kernels::cuda {
namespace {

TEST(HeldSpread, MeetsCopiesOfItsRowsSourcesAndTokens) {
  constexpr int64_t kHidden = 16;
  std::vector<Bf16> table(4 * kHidden);
  std::vector<Bf16> streams(2 * 4 * kHidden);
  std::vector<DrawnToken> drawn(3);
  std::vector<float> elsewhere(8);
  const std::vector<SourceRow> sources = {{table.data() + kHidden}, {table.data(), &drawn[1]}};
  const HeldSpread spread =
      HeldSpread::of(sources, nullptr, kHidden, Rows<Bf16>(streams.data(), 2, 4 * kHidden));
  ASSERT_FALSE(spread.empty());
  const auto meets = [&](const void* from, void* to) {
    const RowCopy one{from, to, 4};
    return spread.meets(std::span(&one, 1));
  };
  EXPECT_FALSE(meets(elsewhere.data(), elsewhere.data() + 4));
  EXPECT_TRUE(meets(elsewhere.data(), streams.data() + 8 * kHidden - 2));
  EXPECT_FALSE(meets(elsewhere.data(), streams.data() + 8 * kHidden));
  EXPECT_TRUE(meets(streams.data(), elsewhere.data()));
  EXPECT_TRUE(meets(elsewhere.data(), table.data() + kHidden));
  EXPECT_FALSE(meets(table.data(), elsewhere.data()));  // both read
  EXPECT_TRUE(meets(elsewhere.data(), &drawn[1]));
  EXPECT_FALSE(meets(elsewhere.data(), &drawn[2]));
  EXPECT_TRUE(HeldSpread().empty());
}

TEST(WrittenSpans, AreMetUntilCleared) {
  std::vector<uint8_t> memory(1000);
  const auto span = [&](int64_t at) { return MemorySpan::of(memory.data() + at, 2); };
  WrittenSpans written;
  EXPECT_FALSE(written.meet(span(0)));
  written.add(span(10));
  EXPECT_TRUE(written.meet(span(11)));
  EXPECT_FALSE(written.meet(span(12)));
  for (int64_t i = 0; i < 300; ++i) written.add(span(500));
  EXPECT_TRUE(written.meet(span(12)));  // more than it keeps: anything may be
  written.clear();
  EXPECT_FALSE(written.meet(span(11)));
}

}  // namespace
}  // namespace galley::kernels::cuda
