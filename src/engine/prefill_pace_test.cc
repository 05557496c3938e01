// The pace finds what a simulated machine can afford, follows it when it
// changes, remembers it while no prompt comes, and is not thrown by steps that
// were held up.
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
  run(pace, 300, 0.012, 0.0001);  // each sequence costs more
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

TEST(PrefillPace, RemembersWhatALongPromptTaughtWhileStreamsAreAlone) {
  PrefillPace pace({.rows_max = 512, .stretch_max = 2.5});
  run(pace, 90, 0.006, 0.0001);
  const int32_t before = pace.rows_beside_decode();
  for (int i = 0; i < 1000; ++i) pace.note(0, 8, 0.006);
  EXPECT_EQ(pace.rows_beside_decode(), before);
  // Short prompts have few rows, each of which costs more.
  for (int i = 0; i < 1000; ++i) pace.note(i % 3 == 0 ? 25 : 0, 8, i % 3 == 0 ? 0.0095 : 0.006);
  EXPECT_NEAR(pace.rows_beside_decode(), before, 2);
}

TEST(PrefillPace, StepsThatWereHeldUpAreNotWhatStepsCost) {
  PrefillPace pace({.rows_max = 512, .stretch_max = 2.5});
  for (int i = 0; i < 600; ++i) {
    const int32_t rows = i % 30 < 10 ? pace.rows_beside_decode() : 0;
    const double held_up = i % 7 == 0 ? 0.02 : 0;
    pace.note(rows, 8, 0.006 + rows * 0.0001 + held_up);
  }
  EXPECT_NEAR(pace.rows_beside_decode(), 90, 2);
}

// Prompts all the time: no step tells what decode rows cost alone.
TEST(PrefillPace, FollowsMoreStreamsAlsoWhenPromptsNeverEnd) {
  PrefillPace pace({.rows_max = 512, .stretch_max = 2.5});
  run(pace, 90, 0.006, 0.0001);
  for (int i = 0; i < 200; ++i) {
    const int32_t rows = pace.rows_beside_decode();
    pace.note(rows, 16, 0.012 + rows * 0.0001);
  }
  EXPECT_NEAR(pace.rows_beside_decode(), 180, 2);
  for (int i = 0; i < 200; ++i) {  // as many, with longer contexts
    const int32_t rows = pace.rows_beside_decode();
    pace.note(rows, 16, 0.015 + rows * 0.0001);
  }
  EXPECT_NEAR(pace.rows_beside_decode(), 225, 60);
}

}  // namespace
}  // namespace galley::engine
