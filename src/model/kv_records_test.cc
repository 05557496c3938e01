// Packing the values of a record gives a record of the same values, for every scale, also the
// smallest ones, where quantising again would not.
#include "model/kv_records.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "kernels/number_formats.h"

namespace galley::model {
namespace {

using kernels::Bf16;

constexpr int64_t kWidth = 64;

std::vector<uint8_t> random_record(RecordKind kind, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint8_t> record(static_cast<size_t>(record_bytes(kind, kWidth)));
  const int64_t code_bytes = kind == RecordKind::kWindow ? kWidth : kWidth / 2;
  for (int64_t i = 0; i < static_cast<int64_t>(record.size()); ++i) {
    auto byte = static_cast<uint8_t>(random());
    if (i < code_bytes) {
      if (kind == RecordKind::kWindow && (byte & 0x7FU) == 0x7FU) byte ^= 1U;  // NaN
    } else if (kind == RecordKind::kGlobal) {  // any positive scale, subnormal ones often
      byte = static_cast<uint8_t>(1 + (seed % 2 == 0 ? byte % 12 : byte % 126));
    } else {
      byte = static_cast<uint8_t>(20 + byte % 200);
    }
    record[static_cast<size_t>(i)] = byte;
  }
  return record;
}

std::vector<Bf16> values_of(RecordKind kind, const uint8_t* record, int64_t width) {
  std::vector<Bf16> values;
  for (int64_t i = 0; i < width; ++i) {
    values.push_back(kernels::to_bf16(record_value(kind, record, width, i)));
  }
  return values;
}

class EveryKind : public ::testing::TestWithParam<RecordKind> {};

TEST_P(EveryKind, RecordsSurvive) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const auto record = random_record(GetParam(), seed);
    const auto values = values_of(GetParam(), record.data(), kWidth);
    std::vector<uint8_t> packed(record.size());
    const auto done = pack_record(GetParam(), values, packed.data());
    ASSERT_TRUE(done) << done.error().message;
    const auto again = values_of(GetParam(), packed.data(), kWidth);
    for (size_t i = 0; i < kWidth; ++i) ASSERT_EQ(values[i].bits, again[i].bits) << seed;
  }
}

TEST_P(EveryKind, RefusesWhatTheFormatCannotHold) {
  std::vector<uint8_t> record(static_cast<size_t>(record_bytes(GetParam(), 32)));
  std::vector<Bf16> values(32, kernels::to_bf16(1.0F));
  EXPECT_TRUE(pack_record(GetParam(), values, record.data()));
  values[3] = kernels::to_bf16(1.0078125F);  // eight bits of significand: no format has them
  EXPECT_FALSE(pack_record(GetParam(), values, record.data()));
  values[3] = kernels::to_bf16(1e30F);  // too far from the others for one scale
  EXPECT_FALSE(pack_record(GetParam(), values, record.data()));
}

INSTANTIATE_TEST_SUITE_P(KvRecords, EveryKind,
                         ::testing::Values(RecordKind::kWindow, RecordKind::kGlobal,
                                           RecordKind::kIndex));

TEST(KvRecords, KnownNumbers) {
  // Codes 1 and 15 (0.5, -6), scale 2^-1; window: e4m3 1.0 and -1.5, scale 2^1.
  std::vector<uint8_t> index(static_cast<size_t>(record_bytes(RecordKind::kIndex, 32)));
  index[0] = 0xF1;
  index[16] = 126;
  EXPECT_EQ(record_value(RecordKind::kIndex, index.data(), 32, 0), 0.25F);
  EXPECT_EQ(record_value(RecordKind::kIndex, index.data(), 32, 1), -3.0F);
  EXPECT_EQ(record_value(RecordKind::kIndex, index.data(), 32, 2), 0.0F);
  EXPECT_EQ(record_step(RecordKind::kIndex, index.data(), 32, 1), 1.0F);  // 4 to 6, halved
  std::vector<uint8_t> window(static_cast<size_t>(record_bytes(RecordKind::kWindow, 32)));
  window[0] = 0x38;
  window[1] = 0xBC;
  window[32] = 128;
  EXPECT_EQ(record_value(RecordKind::kWindow, window.data(), 32, 0), 2.0F);
  EXPECT_EQ(record_value(RecordKind::kWindow, window.data(), 32, 1), -3.0F);
}

TEST(KvRecords, ScalesOnTheFloorSurvive) {
  // Codes of at most 0.5 under the scale 2^-9 would get a smaller scale if it existed.
  std::vector<Bf16> values(16, kernels::to_bf16(0x1p-10F));
  values[0] = kernels::to_bf16(0.0F);
  values[1] = kernels::to_bf16(-0x1p-10F);
  std::vector<uint8_t> record(static_cast<size_t>(record_bytes(RecordKind::kGlobal, 16)));
  ASSERT_TRUE(pack_record(RecordKind::kGlobal, values, record.data()));
  const auto back = values_of(RecordKind::kGlobal, record.data(), 16);
  for (size_t i = 0; i < 16; ++i) EXPECT_EQ(values[i].bits, back[i].bits);
}

}  // namespace
}  // namespace galley::model
