// Packing the values of a record gives a record of the same values, for every
// scale, also the smallest ones, where quantising again would not.
#include "model/kv_records.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "kernels/number_formats.h"

namespace galley::model {
namespace {

using kernels::Bf16;

constexpr int64_t kWidth = 64;

TEST(KvRecords, GlobalRecordsSurvive) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<uint8_t> record(kernels::global_record_bytes(kWidth));
    for (uint8_t& byte : record) byte = static_cast<uint8_t>(random());
    for (int64_t g = 0; g < kWidth / 16; ++g) {  // any positive scale, subnormal ones often
      record[kWidth / 2 + g] =
          static_cast<uint8_t>(random() % 2 == 0 ? 1 + random() % 12 : 1 + random() % 126);
    }
    std::vector<Bf16> values(kWidth);
    unpack_global_record(record.data(), kWidth, values.data());
    std::vector<uint8_t> packed(record.size());
    ASSERT_TRUE(pack_global_record(values.data(), kWidth, packed.data()));
    std::vector<Bf16> again(kWidth);
    unpack_global_record(packed.data(), kWidth, again.data());
    ASSERT_EQ(std::memcmp(values.data(), again.data(), kWidth * sizeof(Bf16)), 0);
  }
}

TEST(KvRecords, IndexRecordsSurvive) {
  std::mt19937 random(4);
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<uint8_t> record(kernels::index_record_bytes(kWidth));
    for (uint8_t& byte : record) byte = static_cast<uint8_t>(random());
    for (int64_t g = 0; g < kWidth / 32; ++g) {
      record[kWidth / 2 + g] = static_cast<uint8_t>(20 + random() % 200);
    }
    std::vector<Bf16> values(kWidth);
    unpack_index_record(record.data(), kWidth, values.data());
    std::vector<uint8_t> packed(record.size());
    ASSERT_TRUE(pack_index_record(values.data(), kWidth, packed.data()));
    std::vector<Bf16> again(kWidth);
    unpack_index_record(packed.data(), kWidth, again.data());
    ASSERT_EQ(std::memcmp(values.data(), again.data(), kWidth * sizeof(Bf16)), 0);
  }
}

TEST(KvRecords, KnownNumbers) {
  // Codes 1 and 15 (0.5, -6), scale 2^-1; window: e4m3 1.0 and -1.5, scale 2^1.
  std::vector<uint8_t> index(kernels::index_record_bytes(32));
  index[0] = 0xF1;
  index[16] = 126;
  std::vector<Bf16> values(32);
  unpack_index_record(index.data(), 32, values.data());
  EXPECT_EQ(kernels::to_f32(values[0]), 0.25F);
  EXPECT_EQ(kernels::to_f32(values[1]), -3.0F);
  EXPECT_EQ(kernels::to_f32(values[2]), 0.0F);
  std::vector<uint8_t> window(kernels::window_record_bytes(32));
  window[0] = 0x38;
  window[1] = 0xBC;
  window[32] = 128;
  unpack_window_record(window.data(), 32, values.data());
  EXPECT_EQ(kernels::to_f32(values[0]), 2.0F);
  EXPECT_EQ(kernels::to_f32(values[1]), -3.0F);
}

TEST(KvRecords, RefusesWhatTheFormatCannotHold) {
  std::vector<Bf16> values(32, kernels::to_bf16(1.0F));
  values[3] = kernels::to_bf16(1.1F);
  std::vector<uint8_t> record(kernels::global_record_bytes(32));
  EXPECT_FALSE(pack_global_record(values.data(), 32, record.data()));
  values[3] = kernels::to_bf16(1e30F);
  EXPECT_FALSE(pack_global_record(values.data(), 32, record.data()));
}

}  // namespace
}  // namespace galley::model
