// The fold of fp4 weights, on the host: every magnitude is exact for every shift that a nibble
// names, words give back the codes they were made of, and slots are a permutation of the rows.
#include "kernels/cuda/weight_tiles.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <set>
#include <utility>

namespace galley::kernels::cuda {
namespace {

constexpr std::array<double, 8> kMagnitude = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

double e4m3_value(uint32_t byte) {
  const auto exponent = static_cast<int32_t>((byte >> 3) & 15);
  const double mantissa = byte & 7;
  return exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(1 + mantissa / 8, exponent - 7);
}

TEST(WeightTiles, FoldedMagnitudesAreExact) {
  for (int32_t shift = -kShiftBias; shift <= kShiftMax; ++shift) {
    for (int32_t code = 0; code < 8; ++code) {
      EXPECT_EQ(e4m3_value(folded_magnitude(code, shift)),
                std::ldexp(kMagnitude[static_cast<size_t>(code)], shift))
          << code << " at " << shift;
    }
  }
}

TEST(WeightTiles, WordsHoldTheirCodes) {
  std::array<uint8_t, 16> block{};
  for (size_t i = 0; i < block.size(); ++i) block[i] = static_cast<uint8_t>(37 * i + 11);
  const auto code_of = [&](int32_t k) {
    return (block[static_cast<size_t>(k / 2)] >> (k % 2 == 0 ? 0 : 4)) & 15;
  };
  for (int32_t t = 0; t < 4; ++t) {
    const uint32_t word = fold_fp4_word(block.data(), t);
    for (int32_t i = 0; i < 4; ++i) {
      const int32_t low = code_of(4 * t + i);
      const int32_t high = code_of(16 + 4 * t + i);
      EXPECT_EQ((word >> (4 * i)) & 7, static_cast<uint32_t>(low & 7));
      EXPECT_EQ((word >> (16 + 4 * i)) & 7, static_cast<uint32_t>(high & 7));
      EXPECT_EQ((word >> (8 * i + 3)) & 1, static_cast<uint32_t>(low >> 3));
      EXPECT_EQ((word >> (8 * i + 7)) & 1, static_cast<uint32_t>(high >> 3));
    }
  }
}

TEST(WeightTiles, SlotsAreAPermutation) {
  for (const bool paired : {false, true}) {
    std::set<std::pair<int32_t, int64_t>> seen;
    for (int64_t slot = 0; slot < 512; ++slot) {
      const SlotSource source = slot_source(slot, paired);
      EXPECT_LT(source.part, paired ? 2 : 1);
      EXPECT_LT(source.row, paired ? 256 : 512);
      seen.emplace(source.part, source.row);
    }
    EXPECT_EQ(seen.size(), 512U);
  }
}

// The integer rule against arithmetic: a code rounds when its value over 2^gap is no E4M3 number.
TEST(WeightTiles, Fp8CodesRoundWhereE4m3Ends) {
  std::set<double> numbers;
  for (uint32_t code = 0; code < 0x7f; ++code) numbers.insert(e4m3_value(code));
  for (int32_t gap = 0; gap < 40; ++gap) {
    for (uint32_t code = 0; code < 256; ++code) {
      if ((code & 0x7f) == 0x7f) continue;
      const double moved = std::ldexp(e4m3_value(code & 0x7f), -gap);
      EXPECT_EQ(rounds_when_moved(code, gap), !numbers.contains(moved)) << code << " by " << gap;
      EXPECT_EQ(std::ldexp(e4m3_units(code), -9), e4m3_value(code & 0x7f));
    }
  }
}

// A tile's row: its largest value in units of the base, and how many codes move.
TEST(WeightTiles, Fp8RowsAreMeasuredInTheirBase) {
  std::array<uint8_t, 128> codes{};
  codes.fill(0x08);   // 2^-6
  codes[5] = 0x76;    // 224, in the first block
  codes[127] = 0x7e;  // 448, in the last one
  const std::array<uint8_t, 4> even = {120, 120, 120, 120};
  EXPECT_EQ(fold_fp8_row(codes.data(), even.data(), 128).rounded, 0);
  EXPECT_EQ(fold_fp8_row(codes.data(), even.data(), 128).largest, 448U << 9);
  // The last block four octaves below the first: 2^-10 and below is no E4M3 number.
  const std::array<uint8_t, 4> steep = {120, 120, 120, 116};
  EXPECT_EQ(fold_fp8_row(codes.data(), steep.data(), 128).rounded, 31);
  EXPECT_EQ(fold_fp8_row(codes.data(), steep.data(), 128).largest, 224U << 9);
  EXPECT_GE(fold_fp8_row(codes.data(), steep.data(), 128).largest, kFp8TileLargest);
  // A block of small values under a large scale: what the others lose is not in proportion.
  codes[5] = 0x08;
  const std::array<uint8_t, 4> hollow = {127, 110, 110, 110};
  EXPECT_LT(fold_fp8_row(codes.data(), hollow.data(), 128).largest, kFp8TileLargest);
  EXPECT_EQ(fold_fp8_row(codes.data(), hollow.data(), 128).rounded, 96);
  // Zeros never round.
  codes.fill(0x80);
  EXPECT_EQ(fold_fp8_row(codes.data(), hollow.data(), 128).rounded, 0);
}

}  // namespace
}  // namespace galley::kernels::cuda
