// The measured floors are positive, finite and do not exceed what any machine does;
// a buffer that cannot exist is an error, not a crash.
#include "kernels/bandwidth.h"

#include <gtest/gtest.h>

namespace galley::kernels {

TEST(Bandwidth, ReadsAtAPlausibleRate) {
  ThreadPool pool(2);
  const auto rate = read_bandwidth(pool, int64_t{64} << 20, 1);
  ASSERT_TRUE(rate.has_value());
  EXPECT_GT(*rate, 1e7);
  EXPECT_LT(*rate, 1e14);
}

TEST(Bandwidth, RefusesABufferBeyondTheAddressSpace) {
  ThreadPool pool(1);
  const auto rate = read_bandwidth(pool, int64_t{1} << 60, 1);
  ASSERT_FALSE(rate.has_value());
  EXPECT_EQ(rate.error().code, ErrorCode::kExhausted);
}

TEST(Bandwidth, DotPeakOfEachInstructionSet) {
  ThreadPool pool(2);
  for (const Isa isa : {Isa::kAvx512Bf16, Isa::kAvx2}) {
    if (!machine_has(isa)) continue;
    const double peak = dot_peak(pool, isa, 1);
    EXPECT_GT(peak, 1e7);
    EXPECT_LT(peak, 1e15);
  }
}

}  // namespace galley::kernels
