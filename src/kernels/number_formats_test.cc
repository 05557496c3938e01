// Shows the scalar conversions on their edges: every code there and back, ties,
// saturation. The golden units test repeats this against the reference's bits.
#include "kernels/number_formats.h"

#include <gtest/gtest.h>

#include <limits>

namespace galley::kernels {
namespace {

TEST(NumberFormats, EveryE4m3CodeSurvives) {
  for (int code = 0; code < 256; ++code) {
    const float value = e4m3_to_f32(static_cast<uint8_t>(code));
    if (std::isnan(value)) continue;
    EXPECT_EQ(f32_to_e4m3(value), code) << code;
  }
  EXPECT_EQ(f32_to_e4m3(1e9F), 0x7E);
  EXPECT_EQ(f32_to_e4m3(-449.0F), 0xFE);
  EXPECT_EQ(f32_to_e4m3(std::numeric_limits<float>::quiet_NaN()) & 0x7F, 0x7F);
}

TEST(NumberFormats, E4m3TiesGoToEven) {
  for (int code = 0; code < 0x7E; ++code) {
    const float low = e4m3_to_f32(static_cast<uint8_t>(code));
    const float high = e4m3_to_f32(static_cast<uint8_t>(code + 1));
    EXPECT_EQ(f32_to_e4m3((low + high) / 2), code + (code & 1)) << code;
  }
}

TEST(NumberFormats, E2m1CodesAndTies) {
  for (int code = 0; code < 16; ++code) {
    EXPECT_EQ(f32_to_e2m1(e2m1_to_f32(static_cast<uint8_t>(code))), code);
  }
  const float ties[7] = {0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5.0F};
  const uint8_t even[7] = {0, 2, 2, 4, 4, 6, 6};
  for (int i = 0; i < 7; ++i) EXPECT_EQ(f32_to_e2m1(ties[i]), even[i]) << ties[i];
}

TEST(NumberFormats, Bf16RoundsTiesToEven) {
  EXPECT_EQ(to_bf16(1.0F).bits, 0x3F80);
  EXPECT_EQ(to_bf16(1.0F + 0x1p-8F).bits, 0x3F80);
  EXPECT_EQ(to_bf16(1.0F + 3 * 0x1p-8F).bits, 0x3F82);
  EXPECT_TRUE(std::isnan(to_f32(to_bf16(std::numeric_limits<float>::quiet_NaN()))));
}

TEST(NumberFormats, PowerOfTwoScaleIsTheSmallestNotBelow) {
  EXPECT_EQ(e8m0_to_f32(power_of_two_scale(448.0F, 448.0F)), 1.0F);
  EXPECT_EQ(e8m0_to_f32(power_of_two_scale(449.0F, 448.0F)), 2.0F);
  EXPECT_EQ(e8m0_to_f32(power_of_two_scale(6.0F * 0x1p-126F, 6.0F)), 0x1p-126F);
}

}  // namespace
}  // namespace galley::kernels
