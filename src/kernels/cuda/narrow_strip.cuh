// 16 outputs x 8 kTiles rows of a product by one warp, for narrow inputs that a block has prepared
// in shared memory: with the bits of product_tile.cuh, in fewer instructions behind the wait.
//
// Where rows are few and inputs narrow, a warp is alone on its part of the multiprocessor, and what
// it does one after the other is what the kernel takes. So weights are unpacked to operands before
// the wait for earlier kernels (up to 256 of K, the rest behind it), and Q8 of an input is made
// once by the block, a thread 16 inputs of a row, not by every warp of all.
#pragma once

#include "kernels/cuda/product_tile.cuh"

namespace galley::kernels::cuda {

constexpr int64_t kNarrowInputMax = 512;
constexpr int kPreparedPad = 8;  // elements, so that rows begin in different banks

inline __host__ __device__ int64_t prepared_pitch(int64_t cols) { return cols + kPreparedPad; }

// Inputs 16 `piece` .. of a row, as they are and in simulated Q8 (null: not wanted). A group of 32
// is two neighbouring lanes; all lanes of a warp come along. Pieces past the end are zeros.
__device__ __forceinline__ void prepare_piece(const Bf16* row, int64_t cols, int piece, bool inside,
                                              Bf16* exact, Bf16* quantised) {
  inside = inside && piece * 16 < cols;
  uint4 raw[2] = {};
  if (inside) {
    const auto* from = reinterpret_cast<const uint4*>(row + piece * 16);
    raw[0] = from[0];
    raw[1] = from[1];
  }
  if (exact != nullptr && inside) {
    auto* to = reinterpret_cast<uint4*>(exact + piece * 16);
    to[0] = raw[0];
    to[1] = raw[1];
  }
  if (quantised == nullptr) return;  // the same in all lanes
  quantise_inputs(raw);
  if (!inside) return;
  auto* to = reinterpret_cast<uint4*>(quantised + piece * 16);
  to[0] = raw[0];
  to[1] = raw[1];
}

// `rows` rows, row_of(r) each, by kThreads threads, to rows of prepared_pitch(cols). Where a warp
// is alone its instructions count, so nothing is divided exactly or twice.
template <int kThreads, class RowOf>
__device__ __forceinline__ void prepare_rows(int rows, int64_t cols, const RowOf& row_of,
                                             Bf16* exact, Bf16* quantised) {
  const auto width = static_cast<int>(cols);
  const int pieces = (width + 31) / 32 * 2;
  const int pitch = width + kPreparedPad;
  const int tasks = (rows * pieces + 31) / 32 * 32;
  const auto quotient = [pieces](int number) {  // half a piece is more than it is off by
    return static_cast<int>(
        __fdividef(static_cast<float>(number) + 0.5F, static_cast<float>(pieces)));
  };
  int row = quotient(static_cast<int>(threadIdx.x));
  int piece = static_cast<int>(threadIdx.x) - row * pieces;
  const int row_step = quotient(kThreads);
  const int piece_step = kThreads - row_step * pieces;
  for (int task = static_cast<int>(threadIdx.x); task < tasks; task += kThreads) {
    const bool inside = row < rows;
    prepare_piece(inside ? row_of(row) : nullptr, cols, piece, inside,
                  exact != nullptr ? exact + row * pitch : nullptr,
                  quantised != nullptr ? quantised + row * pitch : nullptr);
    row += row_step;
    piece += piece_step;
    if (piece < pieces) continue;
    piece -= pieces;
    ++row;
  }
}

// x: row 0 of the prepared rows, where the strip's inputs begin. ready() is called once, when the
// first weights are unpacked and before any input is read; rows() tells behind it how many there
// are. Sums of rows that are not there are anything.
template <WeightFormat kFormat, int kTiles, class Ready, class RowCount>
__device__ __forceinline__ void narrow_strip(const WeightView& weight, int64_t output,
                                             const Bf16* x, int pitch, const Ready& ready,
                                             const RowCount& row_count, float (&sums)[kTiles][4]) {
  constexpr int kAhead = 4;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int g = lane / 4;
  const int q = lane % 4;
  const auto end = static_cast<int>(weight.in);
  const int64_t upper = output + g;
  const int64_t lower = upper + 8;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[t][e] = 0.0F;
  }
  int rows = 0;
  for (int first = 0; first < end; first += kAhead * kTileK) {
    uint32_t a_upper[kAhead][8];
    uint32_t a_lower[kAhead][8];
    {
      StoredWeights<kFormat> stored_upper[kAhead];
      StoredWeights<kFormat> stored_lower[kAhead];
#pragma unroll
      for (int ahead = 0; ahead < kAhead; ++ahead) {
        const int k = first + ahead * kTileK + 16 * q;
        if (k >= end) continue;
        if (upper < weight.out) stored_upper[ahead].load(weight, upper, k);
        if (lower < weight.out) stored_lower[ahead].load(weight, lower, k);
      }
#pragma unroll
      for (int ahead = 0; ahead < kAhead; ++ahead) {
        stored_upper[ahead].decode(a_upper[ahead]);
        stored_lower[ahead].decode(a_lower[ahead]);
      }
    }
    if (first == 0) {
#pragma unroll
      for (int ahead = 0; ahead < kAhead; ++ahead) {
        pin_here(a_upper[ahead]);
        pin_here(a_lower[ahead]);
      }
      ready();
      rows = row_count();
    }
#pragma unroll
    for (int ahead = 0; ahead < kAhead; ++ahead) {
      const int k = first + ahead * kTileK + 16 * q;
      if (first + ahead * kTileK >= end) break;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        if (kTiles > 1 && 8 * t >= rows) break;
        uint4 low = {};
        uint4 high = {};
        if (k < end) {
          const auto* from = reinterpret_cast<const uint4*>(x + (8 * t + g) * pitch + k);
          low = from[0];
          high = from[1];
        }
        const uint32_t b[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const uint32_t a[4] = {a_upper[ahead][2 * j], a_lower[ahead][2 * j],
                                 a_upper[ahead][2 * j + 1], a_lower[ahead][2 * j + 1]};
          multiply_add(sums[t], a, b[2 * j], b[2 * j + 1]);
        }
      }
    }
  }
}

template <int kTiles, class Ready, class RowCount>
__device__ __forceinline__ void narrow_strip_any(const WeightView& weight, int64_t output,
                                                 const Bf16* x, int pitch, const Ready& ready,
                                                 const RowCount& row_count,
                                                 float (&sums)[kTiles][4]) {
  switch (weight.format) {
    case WeightFormat::kFp8Tile32:
      return narrow_strip<WeightFormat::kFp8Tile32>(weight, output, x, pitch, ready, row_count,
                                                    sums);
    case WeightFormat::kFp4Row32:
      return narrow_strip<WeightFormat::kFp4Row32>(weight, output, x, pitch, ready, row_count,
                                                   sums);
    default:
      return narrow_strip<WeightFormat::kBf16>(weight, output, x, pitch, ready, row_count, sums);
  }
}

}  // namespace galley::kernels::cuda
