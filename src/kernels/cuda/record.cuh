// Cache records of one row by one warp: norm, rotation, quantised codes and scales.
//
// Lane l has the vectors of 8 channels l, l + 32, ...; a group of 32 is then four neighbouring
// lanes, one of 16 two, and its maximum two exchanges or one.
#pragma once

#include "kernels/cuda/formats.cuh"
#include "kernels/cuda/quantise.h"
#include "kernels/cuda/rope.cuh"
#include "kernels/cuda/row.cuh"

namespace galley::kernels::cuda {

__device__ __forceinline__ float largest(const Float8& x) {
  float amax = 0.0F;
#pragma unroll
  for (int i = 0; i < 8; ++i) amax = fmaxf(amax, fabsf(x.v[i]));
  return amax;
}

// Over `lanes` (2 or 4) neighbouring lanes, in each of them.
__device__ __forceinline__ float group_largest(const Float8& x, int lanes, float floor) {
  float amax = fmaxf(largest(x), floor);
  amax = fmaxf(amax, __shfl_xor_sync(kAllLanes, amax, 1));
  if (lanes == 4) amax = fmaxf(amax, __shfl_xor_sync(kAllLanes, amax, 2));
  return amax;
}

__device__ __forceinline__ uint32_t q8_scale(const Float8& x) {
  return power_of_two_scale(group_largest(x, 4, 1e-4F), 448.0F);
}
__device__ __forceinline__ uint2 q8_codes(const Float8& x, uint32_t scale) {
  const float inverse = e8m0_inverse(scale);
  uint32_t pair[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) pair[i] = e4m3_pair(x.v[2 * i] * inverse, x.v[2 * i + 1] * inverse);
  return {pair[0] | (pair[1] << 16), pair[2] | (pair[3] << 16)};
}

__device__ __forceinline__ uint32_t q4e8_scale(const Float8& x) {
  return power_of_two_scale(group_largest(x, 4, 6.0F * 0x1p-126F), 6.0F);
}
__device__ __forceinline__ uint32_t clamped_e2m1(float value) {
  return e2m1_code(fminf(fmaxf(value, -6.0F), 6.0F));
}
__device__ __forceinline__ uint32_t q4e8_codes(const Float8& x, uint32_t scale) {
  const float inverse = e8m0_inverse(scale);
  uint32_t codes = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) codes |= e2m1_code_of_short(x.v[i] * inverse) << (4 * i);
  return codes;
}

__device__ __forceinline__ uint32_t q4e4_scale(const Float8& x) {
  return e4m3_pair(group_largest(x, 2, 6.0F * 0x1p-9F) / 6.0F, 0.0F) & 255U;
}
__device__ __forceinline__ uint32_t q4e4_codes(const Float8& x, uint32_t scale) {
  const float divisor = e4m3_value(static_cast<uint8_t>(scale));
  uint32_t codes = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) codes |= clamped_e2m1(x.v[i] / divisor) << (4 * i);
  return codes;
}

// A record may start at any byte: `aligned` says whether words may be stored.
__device__ __forceinline__ void store_word(uint8_t* at, uint32_t word, bool aligned) {
  if (aligned) {
    *reinterpret_cast<uint32_t*>(at) = word;
  } else {
    for (int i = 0; i < 4; ++i) at[i] = static_cast<uint8_t>(word >> (8 * i));
  }
}

__device__ __forceinline__ bool is_word_aligned(const void* at) {
  return reinterpret_cast<uintptr_t>(at) % 4 == 0;
}

enum class Record { kWindow, kGlobal, kIndex };

template <Record kRecord>
__device__ __forceinline__ void write_record(const Float8& x, int64_t vector, int64_t width,
                                             uint8_t* record) {
  const bool inside = vector * 8 < width;
  const bool aligned = is_word_aligned(record);
  if constexpr (kRecord == Record::kWindow) {
    const uint32_t scale = q8_scale(x);
    if (!inside) return;
    const uint2 codes = q8_codes(x, scale);
    store_word(record + vector * 8, codes.x, aligned);
    store_word(record + vector * 8 + 4, codes.y, aligned);
    if (vector % 4 == 0) record[width + vector / 4] = static_cast<uint8_t>(scale);
  } else if constexpr (kRecord == Record::kGlobal) {
    const uint32_t scale = q4e4_scale(x);
    if (!inside) return;
    store_word(record + vector * 4, q4e4_codes(x, scale), aligned);
    if (vector % 2 == 0) record[width / 2 + vector / 2] = static_cast<uint8_t>(scale);
  } else {
    const uint32_t scale = q4e8_scale(x);
    if (!inside) return;
    store_word(record + vector * 4, q4e8_codes(x, scale), aligned);
    if (vector % 4 == 0) record[width / 2 + vector / 4] = static_cast<uint8_t>(scale);
  }
}

// norm_weight null: no norm. One of `destination` and `records` says where records go.
struct RecordArguments {
  Rows<const Bf16> x;
  const Bf16* norm_weight;
  float eps;
  Rows<const float> cosines;
  Rows<const float> sines;
  uint8_t* const* destination;
  Rows<uint8_t> records;
};

// Row `row` by one warp. wait() comes behind the loads of the norm's weight, which is constant; all
// others are under way together.
template <Record kRecord, int kVectors, bool kWhole, class Wait>
__device__ __forceinline__ void make_record(const RecordArguments& args, int64_t row,
                                            const Wait& wait) {
  const Rows<const Bf16>& x = args.x;
  const int lane = threadIdx.x % kWarp;
  uint4 weight[kVectors] = {};
  if (args.norm_weight != nullptr) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      weight[i] = load8<kWhole>(args.norm_weight, lane + i * kWarp, x.cols);
    }
  }
  wait();
  uint4 raw[kVectors];
  Turns turns[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    raw[i] = load8<kWhole>(row_of(x, row), lane + i * kWarp, x.cols);
    turns[i] = load_turns(lane + i * kWarp, x.cols, 2 * args.cosines.cols,
                          row_of(args.cosines, row), row_of(args.sines, row));
  }
  if (args.norm_weight != nullptr) {
    float squares = 0.0F;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) squares += square_sum(widen8(raw[i]));
    const float inverse = inverse_rms(warp_sum(squares), x.cols, args.eps);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) raw[i] = normed(raw[i], inverse, weight[i]);
  }
  uint8_t* record = args.destination != nullptr ? args.destination[row] : row_of(args.records, row);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int64_t vector = lane + i * kWarp;
    const uint4 turned = turn8(raw[i], vector, x.cols, 2 * args.cosines.cols, turns[i]);
    write_record<kRecord>(widen8(turned), vector, x.cols, record);
  }
}
template <Record kRecord, int kVectors, bool kWhole>
__device__ __forceinline__ void make_record(const RecordArguments& args, int64_t row) {
  make_record<kRecord, kVectors, kWhole>(args, row, [] {});
}

}  // namespace galley::kernels::cuda
