// What counts as equal, as one quantiser step and as more.
#include "verify/record_difference.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/number_formats.h"

namespace galley::verify {
namespace {

using model::RecordKind;

// An index record of ones, but 6 at channel 0, which pins the scale, and `value` at channel 5.
std::vector<uint8_t> record_with(float value) {
  std::vector<kernels::Bf16> values(32, kernels::to_bf16(1.0F));
  values[0] = kernels::to_bf16(6.0F);
  values[5] = kernels::to_bf16(value);
  std::vector<uint8_t> record(static_cast<size_t>(model::record_bytes(RecordKind::kIndex, 32)));
  EXPECT_TRUE(model::pack_record(RecordKind::kIndex, values, record.data()));
  return record;
}

TEST(RecordDifference, OneStepIsNearAndTwoAreFar) {
  const auto expected = record_with(1.0F);
  const auto same = compare_records(RecordKind::kIndex, expected.data(), expected.data(), 32);
  EXPECT_EQ(same.elements, 32);
  EXPECT_EQ(same.unequal, 0);
  const auto near =
      compare_records(RecordKind::kIndex, record_with(1.5F).data(), expected.data(), 32);
  EXPECT_EQ(near.unequal, 1);
  EXPECT_EQ(near.far, 0);
  const auto far =
      compare_records(RecordKind::kIndex, record_with(3.0F).data(), expected.data(), 32);
  EXPECT_EQ(far.unequal, 1);
  EXPECT_EQ(far.far, 1);
}

}  // namespace
}  // namespace galley::verify
