// Q8 of activations (spec/model.md 0.1) in the order that the grouped product copies them.
//
// Groups of 32 are quantised as specified, then moved to the largest of the four scales of their
// 128: a value changes only below 2^-13.8 of that 128's largest, by at most 2^-17.8 of it.
// Floor: 2 bytes in and 1.03 out for each value and copy. Eight lanes own a row's 128, 32 bytes
// each; a block has 8 rows, the swizzle's period, by 512 columns. What a row goes to is asked for
// before its values are there.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "kernels/cuda/copy_row.cuh"
#include "kernels/cuda/expert_plan.h"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/weight_tiles.h"
#include "kernels/tensor.h"

namespace galley::kernels::cuda {

// 2^exponent of a biased f32 exponent.
__device__ __forceinline__ float power_of_two(int32_t biased) {
  return __int_as_float(biased << 23);
}

// Rows of x to be quantised. Item i is row i of x and goes to place[i * copies + c] of `listed` for
// each copy c; in place: item i is row place[i] and stays there. Places below 0 are skipped. In its
// own number it goes to `numbered` besides. Either may have no x8.
struct QuantiseTask {
  Rows<const Bf16> x = {};
  int64_t items = 0;
  const int32_t* place = nullptr;
  int32_t copies = 1;
  bool in_place = false;
  QuantisedRows listed = {};
  QuantisedRows numbered = {};
};

struct QuantisedPiece {
  uint4 codes;
  float scale;
};

// 16 values of each of 8 neighbouring lanes. P2(a, 448) of the two lanes of a group: up to the next
// power of two unless it is one.
__device__ __forceinline__ QuantisedPiece quantise_piece(const uint4 (&raw)[2]) {
  const uint32_t words[8] = {raw[0].x, raw[0].y, raw[0].z, raw[0].w,
                             raw[1].x, raw[1].y, raw[1].z, raw[1].w};
  const auto magnitudes = [&](int32_t i) {
    const uint32_t word = words[i] & 0x7fff7fffU;
    return *reinterpret_cast<const __nv_bfloat162*>(&word);
  };
  __nv_bfloat162 pair = magnitudes(0);
#pragma unroll
  for (int32_t i = 1; i < 8; ++i) pair = __hmax2(pair, magnitudes(i));
  float largest = fmaxf(1e-4F, fmaxf(__low2float(pair), __high2float(pair)));
  largest = fmaxf(largest, __shfl_xor_sync(0xffffffffU, largest, 1));
  const uint32_t bits = __float_as_uint(__fmul_rn(largest, 1.0F / 448.0F));
  const int32_t exponent = static_cast<int32_t>(bits >> 23) + ((bits & 0x7fffffU) != 0 ? 1 : 0);
  int32_t base = max(exponent, __shfl_xor_sync(0xffffffffU, exponent, 2));
  base = max(base, __shfl_xor_sync(0xffffffffU, base, 4));

  const float inverse = power_of_two(254 - exponent);
  // Halves hold every code, and its product with a shift down to 2^-24 where it does not round to
  // zero anyway (below 2^-10).
  const __half2 shift = __float2half2_rn(power_of_two(127 - min(base - exponent, 30)));
  QuantisedPiece piece;
  uint32_t packed[4];
#pragma unroll
  for (int32_t i = 0; i < 8; ++i) {
    const float2 value = {__uint_as_float(words[i] << 16) * inverse,
                          __uint_as_float(words[i] & 0xffff0000U) * inverse};
    const auto code = __nv_cvt_float2_to_fp8x2(value, __NV_SATFINITE, __NV_E4M3);
    const __half2 moved = __hmul2(__half2(__nv_cvt_fp8x2_to_halfraw2(code, __NV_E4M3)), shift);
    const auto folded = static_cast<uint32_t>(
        __nv_cvt_halfraw2_to_fp8x2(static_cast<__half2_raw>(moved), __NV_SATFINITE, __NV_E4M3));
    packed[i / 2] = i % 2 == 0 ? folded : packed[i / 2] | folded << 16;
  }
  piece.codes = {packed[0], packed[1], packed[2], packed[3]};
  piece.scale = power_of_two(base);
  return piece;
}

__device__ __forceinline__ void store_piece(const QuantisedRows& to, int32_t chunk, int64_t row,
                                            int32_t lane, const QuantisedPiece& piece) {
  const int64_t place = static_cast<int64_t>(chunk) * to.places + row;
  const int32_t at = lane ^ static_cast<int32_t>(row & 7);
  *reinterpret_cast<uint4*>(to.x8 + place * kChunk + at * 16) = piece.codes;
  if (lane == 0) to.scale[place] = piece.scale;
}

// A piece's sixteen values, of those that the row has; none of a row below 0.
__device__ __forceinline__ void load_values(Rows<const Bf16> x, int64_t row, int32_t column,
                                            uint4 (&raw)[2]) {
  if (row >= 0 && column < x.cols) {
    const auto* from = reinterpret_cast<const uint4*>(x.data + row * x.stride + column);
    raw[0] = from[0];
    if (column + 8 < x.cols) raw[1] = from[1];
  }
}

// Copies that the launch takes along.
struct CopyTask {
  const RowCopy* list = nullptr;
  int64_t count = 0;
};

constexpr int32_t kQuantiseThreads = 256;
constexpr int32_t kQuantiseRows = 8;    // of a block
constexpr int32_t kQuantiseChunks = 4;  // of a block

// Blocks of x: kQuantiseRows rows each, those of `first` before those of `second`; of y:
// kQuantiseChunks chunks. So all rows of a few chunks come together, and what they write lies close
// enough for the L2 to collect whole lines: an eighth faster than whole rows. Blocks of x behind
// those of `second`: a copy each, in all their y.
__global__ void __launch_bounds__(kQuantiseThreads)
    quantise_tiles_kernel(const __grid_constant__ QuantiseTask first,
                          const __grid_constant__ QuantiseTask second, int32_t first_blocks,
                          int32_t blocks, CopyTask copies) {
  await_earlier();
  if (static_cast<int32_t>(blockIdx.x) >= blocks) {
    const int64_t copy =
        (static_cast<int64_t>(blockIdx.x) - blocks) * gridDim.y + static_cast<int64_t>(blockIdx.y);
    if (copy < copies.count) copy_row<kQuantiseThreads>(copies.list[copy]);
    return;
  }
  const bool is_first = static_cast<int32_t>(blockIdx.x) < first_blocks;
  const QuantiseTask task = is_first ? first : second;
  const int64_t item =
      (static_cast<int64_t>(blockIdx.x) - (is_first ? 0 : first_blocks)) * kQuantiseRows +
      threadIdx.x / 32;
  const auto lane = static_cast<int32_t>(threadIdx.x & 7);
  const auto chunk = static_cast<int32_t>(blockIdx.y * kQuantiseChunks + (threadIdx.x & 31) / 8);
  const int32_t column = chunk * kChunk + lane * 16;

  int64_t from = item < task.items ? item : -1;
  int32_t to = -1;  // of copy `lane`
  if (from >= 0 && task.place != nullptr) {
    if (task.in_place) {
      to = task.place[item];
      from = to;
    } else if (lane < task.copies) {
      to = task.place[item * task.copies + lane];
    }
  }
  uint4 raw[2] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
  load_values(task.x, from, column, raw);
  const QuantisedPiece piece = quantise_piece(raw);
  const bool mine = item < task.items && chunk * kChunk < task.x.cols;
  if (task.numbered.x8 != nullptr && mine) store_piece(task.numbered, chunk, item, lane, piece);
  if (task.listed.x8 == nullptr) return;
  for (int32_t copy = 0; copy < task.copies; ++copy) {
    int32_t place = __shfl_sync(0xffffffffU, to, copy & 7, 8);
    if (copy >= 8 && mine) place = task.place[item * task.copies + copy];
    if (mine && place >= 0) store_piece(task.listed, chunk, place, lane, piece);
  }
}

}  // namespace galley::kernels::cuda
