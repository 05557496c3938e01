// Rows count by the layers that they run, and a budget buys no more than it pays for.
#include "engine/row_cost.h"

#include <gtest/gtest.h>

namespace galley::engine {
namespace {

GeneratorOptions options(model::DecoderReplay replay) {
  GeneratorOptions made;
  made.layers = 40;
  made.decoder_source = 20;
  made.replay = replay;
  return made;
}

TEST(RowCost, CountsLayers) {
  const RowCost cost(options(model::DecoderReplay::kWindowAndGlobal));
  EXPECT_EQ(cost.of(0, 100, 200), 50);    // before the last window
  EXPECT_EQ(cost.of(150, 250, 200), 75);  // half of them in it
  EXPECT_EQ(cost.of(200, 300, 200), 100);
  EXPECT_EQ(cost.of(0, 30, 0), 30);  // a short prompt
  EXPECT_EQ(cost.of_held(60), 30);   // their other half was computed before
  const RowCost whole(options(model::DecoderReplay::kOff));
  EXPECT_EQ(whole.of(0, 100, 200), 100);
}

TEST(RowCost, ABudgetBuysWhatItPaysFor) {
  const RowCost cost(options(model::DecoderReplay::kWindowAndGlobal));
  EXPECT_EQ(cost.affordable(0, 1000, 900, 50), 100);
  EXPECT_EQ(cost.affordable(880, 1000, 900, 50), 60);
  EXPECT_EQ(cost.affordable(900, 1000, 900, 50), 50);
  EXPECT_EQ(cost.affordable(0, 20, 900, 50), 20);
  EXPECT_EQ(cost.affordable(0, 20, 0, 0.9), 0);
  for (int64_t first = 0; first < 300; first += 7) {
    for (int budget = 1; budget < 120; budget += 5) {
      const int64_t count = cost.affordable(first, 300, 200, budget);
      EXPECT_LE(cost.of(first, first + count, 200), budget);
      if (first + count < 300) {
        EXPECT_GT(cost.of(first, first + count + 1, 200), budget);
      }
    }
  }
}

}  // namespace
}  // namespace galley::engine
