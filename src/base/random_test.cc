// Philox against the published known answers, and random_unit's shape.
#include "base/random.h"

#include <gtest/gtest.h>

namespace galley {
namespace {

// Known answers of Random123's kat_vectors for philox4x32 with 10 rounds.
TEST(Random, PhiloxKnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}),
            (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, UnitIsUniformAndDependsOnEveryInput) {
  double sum = 0;
  for (uint64_t i = 0; i < 10000; ++i) {
    const double u = random_unit(7, i);
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
  }
  EXPECT_NEAR(sum / 10000, 0.5, 0.015);  // five standard errors
  EXPECT_EQ(random_unit(7, 3, 1), random_unit(7, 3, 1));
  EXPECT_NE(random_unit(7, 3, 1), random_unit(7, 3, 2));
  EXPECT_NE(random_unit(7, 3), random_unit(7, 4));
  EXPECT_NE(random_unit(7, 3), random_unit(8, 3));
}

}  // namespace
}  // namespace galley
