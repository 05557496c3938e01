// Shows that packing gives back the very numbers it was given, also where
// quantising them again would not, and what counts as one quantiser step.
#include "verify/packing.h"

#include <gtest/gtest.h>

#include <random>

#include "kernels/number_formats.h"

namespace galley::verify {
namespace {

using kernels::Bf16;

std::vector<uint8_t> random_record(RecordKind kind, int64_t width, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint8_t> record(static_cast<size_t>(record_bytes(kind, width)));
  const int64_t code_bytes = kind == RecordKind::kWindow ? width : width / 2;
  for (int64_t i = 0; i < static_cast<int64_t>(record.size()); ++i) {
    auto byte = static_cast<uint8_t>(random());
    if (i < code_bytes) {
      if (kind == RecordKind::kWindow && (byte & 0x7FU) == 0x7FU) byte ^= 1U;  // NaN
    } else {
      byte = kind == RecordKind::kGlobal ? static_cast<uint8_t>(1 + byte % 0x7E)
                                         : static_cast<uint8_t>(100 + byte % 40);
    }
    record[static_cast<size_t>(i)] = byte;
  }
  return record;
}

std::vector<Bf16> as_bf16(const std::vector<float>& values) {
  std::vector<Bf16> stored;
  for (const float value : values) stored.push_back(kernels::to_bf16(value));
  return stored;
}

class EveryKind : public ::testing::TestWithParam<RecordKind> {};

TEST_P(EveryKind, PackingReturnsTheSameNumbers) {
  constexpr int64_t kWidth = 64;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const auto record = random_record(GetParam(), kWidth, seed);
    std::vector<float> values(kWidth);
    unpack_record(GetParam(), record.data(), values);
    const auto packed = pack_record(GetParam(), as_bf16(values));
    ASSERT_TRUE(packed) << packed.error().message;
    const auto difference = compare_records(GetParam(), packed->data(), record.data(), kWidth);
    EXPECT_EQ(difference.elements, kWidth);
    EXPECT_EQ(difference.unequal, 0);
  }
}

TEST_P(EveryKind, AValueBetweenTheCodesIsRefused) {
  std::vector<float> values(32, 1.0F);
  values[3] = 1.0078125F;  // one bf16 step above 1: no format has eight bits of significand
  EXPECT_FALSE(pack_record(GetParam(), as_bf16(values)));
}

INSTANTIATE_TEST_SUITE_P(Packing, EveryKind,
                         ::testing::Values(RecordKind::kWindow, RecordKind::kGlobal,
                                           RecordKind::kIndex));

TEST(Packing, ScalesOnTheFloorSurvive) {
  // Codes of at most 0.5 under the scale 2^-9 would get a smaller scale if it existed.
  std::vector<float> values(16, 0x1p-10F);
  values[0] = 0;
  values[1] = -0x1p-10F;
  const auto packed = pack_record(RecordKind::kGlobal, as_bf16(values));
  ASSERT_TRUE(packed);
  std::vector<float> back(16);
  unpack_record(RecordKind::kGlobal, packed->data(), back);
  EXPECT_EQ(back, values);
}

TEST(Packing, OneStepIsNearAndTwoAreFar) {
  std::vector<float> expected(32, 1.0F);
  expected[0] = 6.0F;  // pins the scale
  std::vector<float> near = expected;
  near[5] = 1.5F;
  std::vector<float> far = expected;
  far[5] = 3.0F;
  const auto e = pack_record(RecordKind::kIndex, as_bf16(expected));
  const auto n = pack_record(RecordKind::kIndex, as_bf16(near));
  const auto f = pack_record(RecordKind::kIndex, as_bf16(far));
  ASSERT_TRUE(e && n && f);
  EXPECT_EQ(compare_records(RecordKind::kIndex, n->data(), e->data(), 32).unequal, 1);
  EXPECT_EQ(compare_records(RecordKind::kIndex, n->data(), e->data(), 32).far, 0);
  EXPECT_EQ(compare_records(RecordKind::kIndex, f->data(), e->data(), 32).far, 1);
}

}  // namespace
}  // namespace galley::verify
