// The pace finds what a simulated machine can afford, follows it when it
// changes, and is not thrown by one step that was held up.
#include "engine/prefill_pace.h"

#include <gtest/gtest.h>

namespace galley::engine {
namespace {

// Prompts come and go: 20 steps with as many rows as allowed, 10 without.
void run(PrefillPace& pace, int steps, double decode_step, double prefill_row) {
  for (int i = 0; i < steps; ++i) {
    const int32_t rows = i % 30 < 20 ? pace.rows_beside_decode() : 0;
    pace.note(rows, 8, decode_step + rows * prefill_row);
  }
}

TEST(PrefillPace, StretchesAStepAsFarAsAllowed) {
  PrefillPace pace({.rows_max = 512, .stretch_max = 2.5});
  EXPECT_EQ(pace.rows_beside_decode(), 64);
  run(pace, 60, 0.006, 0.0001);
  EXPECT_NEAR(pace.rows_beside_decode(), 90, 1);  // 1.5 * 6 ms / 0.1 ms
  EXPECT_NEAR(pace.decode_step(), 0.006, 1e-4);
  EXPECT_NEAR(pace.prefill_row(), 0.0001, 1e-6);
  run(pace, 300, 0.012, 0.0001);  // more sequences decode
  EXPECT_NEAR(pace.rows_beside_decode(), 180, 10);
}

TEST(PrefillPace, StaysWithinItsBounds) {
  PrefillPace slow({.rows_max = 512});
  run(slow, 60, 0.001, 0.01);
  EXPECT_EQ(slow.rows_beside_decode(), 16);
  PrefillPace fast({.rows_max = 512});
  run(fast, 60, 0.02, 0.00001);
  EXPECT_EQ(fast.rows_beside_decode(), 512);
}

TEST(PrefillPace, OneHeldUpStepAndStepsWithoutDecodingChangeLittle) {
  PrefillPace pace({.rows_max = 512});
  run(pace, 90, 0.006, 0.0001);
  const int32_t before = pace.rows_beside_decode();
  pace.note(0, 8, 5.0);  // the machine slept
  EXPECT_NEAR(pace.rows_beside_decode(), before, before);
  run(pace, 300, 0.006, 0.0001);
  EXPECT_NEAR(pace.rows_beside_decode(), before, 2);
  for (int i = 0; i < 100; ++i) pace.note(512, 0, 0.5);
  EXPECT_NEAR(pace.rows_beside_decode(), before, 2);
}

}  // namespace
}  // namespace galley::engine
