// Shows the table sizes that spec/model.md 6.2 and 12 list.
#include "model/engram_primes.h"

#include <gtest/gtest.h>

namespace galley::model {
namespace {

TEST(EngramPrimes, AreThoseOfTheRelease) {
  const std::vector<EngramTable> tables = engram_tables(16'000'000, 2, 4, 8);
  ASSERT_EQ(tables.size(), 2U);
  EXPECT_EQ(tables[0].primes.front(), 16'000'057);
  EXPECT_EQ(tables[0].primes.back(), 16'000'463);
  EXPECT_EQ(tables[0].rows, 384'006'168);
  EXPECT_EQ(tables[1].primes.front(), 16'000'477);
  EXPECT_EQ(tables[1].primes.back(), 16'000'889);
  EXPECT_EQ(tables[1].rows, 384'016'682);
  EXPECT_EQ(tables[1].offsets[1], 16'000'477);
}

TEST(EngramPrimes, AreThoseOfTheTinyConfig) {
  const std::vector<EngramTable> tables = engram_tables(2000, 2, 4, 2);
  EXPECT_EQ(tables[0].primes, (std::vector<int64_t>{2003, 2011, 2017, 2027, 2029, 2039}));
  EXPECT_EQ(tables[1].primes, (std::vector<int64_t>{2053, 2063, 2069, 2081, 2083, 2087}));
}

}  // namespace
}  // namespace galley::model
