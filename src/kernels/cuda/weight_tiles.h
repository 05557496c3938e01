// The order in which the grouped product reads quantised weights, and the fold that makes a
// block's scale part of its codes.
//
// A matrix [out, in] becomes tiles of 256 slots x 128 of `in` ("chunks"), chunk after chunk, so
// that a block of threads streams one contiguous piece. Slots are rows in another order: a thread
// of wgmma owns rows g and g + 8 of 16, and gets two neighbours (plain), or the gate and the up
// row of one channel (paired), so that it can store or multiply without asking anybody.
//
//   fp4: per chunk 4 strips, each 4,096 B of codes and 128 B of shifts. A block of 32 has the value
//        code * 2^shift * 2^base(row), shift in [-8, 6], where E2M1 * 2^shift is exactly E4M3;
//        the shift is stored as a nibble 0..14, and 15 stands for a block of zeros. A row whose
//        scales span more than 14 octaves does not fit: it is counted, never rounded.
//   fp8: per chunk 2 pairs of strips, each 2 x 8,192 B of codes in the swizzled order of wgmma and
//        2 x 32 B of scales (one for each 8 slots). The four scales of 128 become the largest of
//        them; codes of the smaller ones are shifted and may round: by at most 2^-18 of what the
//        tile can hold.
//
// Compiled for host and device alike: the host checks it, the device does it.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define GALLEY_HOST_DEVICE __host__ __device__
#else
#define GALLEY_HOST_DEVICE
#endif

namespace galley::kernels::cuda {

constexpr int32_t kChunk = 128;      // of `in`, between two promotions to f32
constexpr int32_t kTileSlots = 256;  // slots of one tile
constexpr int32_t kStripSlots = 64;  // slots of one wgmma
constexpr int32_t kFp4Codes = 4096;  // bytes of a strip's chunk
constexpr int32_t kFp4Shifts = 128;
constexpr int32_t kFp8Codes = 8192;
constexpr int32_t kFp8Scales = 32;
constexpr int32_t kShiftBias = 8;  // nibble = shift + 8
constexpr int32_t kShiftMax = 6;
constexpr int32_t kZeroBlock = 15;

// Where slot `slot` of a matrix comes from: row `row` of matrix `part` (paired: 0 gate, 1 up).
struct SlotSource {
  int32_t part;
  int64_t row;
};

GALLEY_HOST_DEVICE inline SlotSource slot_source(int64_t slot, bool paired) {
  const int64_t strip_warp = slot / 16;
  const int32_t inside = static_cast<int32_t>(slot % 16);
  const int32_t g = inside % 8;
  const int32_t upper = inside / 8;
  if (paired) return {upper, strip_warp * 8 + g};
  return {0, strip_warp * 16 + 2 * g + upper};
}

GALLEY_HOST_DEVICE inline int64_t tiled_slots(int64_t rows) {
  return (rows + kTileSlots - 1) / kTileSlots * kTileSlots;
}
GALLEY_HOST_DEVICE inline int64_t tiled_chunks(int64_t in) { return (in + kChunk - 1) / kChunk; }

GALLEY_HOST_DEVICE inline int64_t fp4_chunk_bytes() { return 4 * (kFp4Codes + kFp4Shifts); }
GALLEY_HOST_DEVICE inline int64_t fp8_chunk_bytes() { return 4 * (kFp8Codes + kFp8Scales); }

// Of strip 0..3 inside a chunk.
GALLEY_HOST_DEVICE inline int64_t fp4_codes_at(int64_t strip) {
  return strip * (kFp4Codes + kFp4Shifts);
}
GALLEY_HOST_DEVICE inline int64_t fp4_shifts_at(int64_t strip) {
  return fp4_codes_at(strip) + kFp4Codes;
}
GALLEY_HOST_DEVICE inline int64_t fp8_codes_at(int64_t strip) {
  return strip / 2 * (2 * (kFp8Codes + kFp8Scales)) + strip % 2 * kFp8Codes;
}
GALLEY_HOST_DEVICE inline int64_t fp8_scales_at(int64_t strip) {
  return strip / 2 * (2 * (kFp8Codes + kFp8Scales)) + 2 * kFp8Codes + strip % 2 * kFp8Scales;
}

// Eight codes of one row, K 4 t..4 t + 3 and 16 more of a block of 32 (16 bytes at `block`), in
// the order that the unpacking reads: magnitudes are nibbles 0..3 and 4..7 (selectors of a byte
// permutation), signs are bits 8 i + 3 and 8 i + 7.
GALLEY_HOST_DEVICE inline uint32_t fold_fp4_word(const uint8_t* block, int32_t t) {
  const uint32_t low = block[2 * t] | (static_cast<uint32_t>(block[2 * t + 1]) << 8);
  const uint32_t high = block[8 + 2 * t] | (static_cast<uint32_t>(block[9 + 2 * t]) << 8);
  uint32_t word = (low & 0x7777) | ((high & 0x7777) << 16);
  for (int32_t i = 0; i < 4; ++i) {
    word |= ((low >> (4 * i + 3)) & 1) << (8 * i + 3);
    word |= ((high >> (4 * i + 3)) & 1) << (8 * i + 7);
  }
  return word;
}

// The fp8 fold of one tile of 32 rows x 128, whose four scales become the largest of them: codes
// move `gap` octaves down. Row by row, so that a warp does a tile.
//
// A code is a multiple of 2^-9 times its scale; what lands below the normal numbers must stay a
// multiple of 2^-9 times the base, or it rounds, by at most half of that. The tile keeps its values
// while this is at most 2^-17.8 of its largest one, which is then 224 or more of the base: every
// tile whose scale was chosen for its largest value. Others do not fit.
constexpr uint32_t kFp8TileLargest = 224U << 9;

// Magnitude of a code in units of 2^-9.
GALLEY_HOST_DEVICE inline uint32_t e4m3_units(uint32_t code) {
  const uint32_t exponent = (code >> 3) & 15;
  const uint32_t mantissa = code & 7;
  return exponent == 0 ? mantissa : (8 + mantissa) << (exponent - 1);
}
GALLEY_HOST_DEVICE inline bool rounds_when_moved(uint32_t code, int32_t gap) {
  const auto exponent = static_cast<int32_t>((code >> 3) & 15);
  if (gap <= 0 || exponent - gap >= 1) return false;
  const uint32_t units = e4m3_units(code);
  return units != 0 && (gap > 17 || (units & ((1U << gap) - 1)) != 0);
}

struct Fp8RowFold {
  uint32_t largest = 0;  // in units of 2^-9 times the base, rounded down
  int32_t rounded = 0;
};
// `count` codes (at most 128) of a row, and the scales of its tile.
GALLEY_HOST_DEVICE inline Fp8RowFold fold_fp8_row(const uint8_t* codes, const uint8_t* scale,
                                                  int32_t count) {
  int32_t base = 0;
  for (int32_t i = 0; i < count; i += 32) base = scale[i / 32] > base ? scale[i / 32] : base;
  Fp8RowFold fold;
  for (int32_t i = 0; i < count; ++i) {
    const int32_t gap = base - scale[i / 32];
    const uint32_t units = gap > 17 ? 0 : e4m3_units(codes[i]) >> gap;
    fold.largest = units > fold.largest ? units : fold.largest;
    fold.rounded += rounds_when_moved(codes[i], gap) ? 1 : 0;
  }
  return fold;
}

// Byte of an E2M1 magnitude code times 2^shift in E4M3: exact for shift in [-8, 6].
GALLEY_HOST_DEVICE inline uint32_t folded_magnitude(int32_t code, int32_t shift) {
  if (code == 0) return 0;
  // Value = m * 2^(exponent - 1): m = 1 of code 1; 2 or 3 otherwise, m counts halves.
  int32_t exponent = code == 1 ? -1 : (code >> 1) - 1;  // of the leading bit
  const bool half = code != 1 && (code & 1) != 0;       // leading bit and a half
  exponent += shift;
  if (exponent >= -6) {
    return static_cast<uint32_t>((exponent + 7) << 3) | (half ? 4U : 0U);
  }
  const int32_t steps = exponent + 9;  // subnormal: units of 2^-9
  return (1U << steps) + (half ? (1U << steps) / 2 : 0U);
}

}  // namespace galley::kernels::cuda
