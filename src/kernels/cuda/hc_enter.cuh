// What the kernels that enter a hyper-connection site share: the projection of a tile of rows onto
// 24 sums by tensor cores, and from the sums the mixes. hc_enter.cu tells the whole.
#pragma once

#include "kernels/cuda/exponential.cuh"
#include "kernels/cuda/hyper_connections.h"
#include "kernels/cuda/row.cuh"

namespace galley::kernels::cuda {

constexpr int kMixes = (2 + kStreams) * kStreams;  // 24
constexpr int kTiles = kMixes / 8;                 // of 8 outputs, as mma has them
constexpr int kGroup = 32;                         // channels
constexpr int kSliceGroups = 8;
constexpr int kSlice = kGroup * kSliceGroups;
constexpr int kGroupWarps = 2;
constexpr int kWarps = kSliceGroups * kGroupWarps;
constexpr int kTileRows = 16;
constexpr int kPartials = 32;  // floats a row and slice: 24 sums, squares, squares of x, six unused
constexpr int kSquares = kMixes;
constexpr int kOutSquares = kMixes + 1;
static_assert(kMixes % 8 == 0 && kWarps == kTileRows);

// What warps hand each other: 24 sums and a sum of squares a row, two buffers.
constexpr int kExchangePitch = 28;  // floats a row
constexpr int kExchangeFloats = kWarps * kTileRows * kExchangePitch;
constexpr int kExchangeBytes = 2 * kExchangeFloats * static_cast<int>(sizeof(float));
// The lowest parts of the weights.
constexpr int kLowestBytes = kSliceGroups * kStreams * kTiles * kWarp * 16;

struct ProjectArguments {
  Rows<const Bf16> streams;
  const float* fn;
  Rows<const float> carried;
  Rows<Bf16> x;
  float* partials;  // [rows, slices, kPartials]
  int64_t slices;
};

__device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// One part of the weights of a group of channels, all streams. The k index of mma is free as long
// as both operands agree: lane q of four has channels 8q .. 8q + 7 of a group, the first four in
// the first product, the others in the second.
struct Weights {
  uint4 piece[kStreams][kTiles];
};

__device__ __forceinline__ Float8 minus(const Float8& a, const Float8& b) {
  Float8 rest;
#pragma unroll
  for (int i = 0; i < 8; ++i) rest.v[i] = a.v[i] - b.v[i];
  return rest;
}

// The upper part to registers, or the middle one, and then the lowest to shared memory.
template <bool kWhole>
__device__ __forceinline__ void load_weights(const ProjectArguments& args, int64_t channel,
                                             bool is_upper, Weights& weights, uint4* lowest) {
  const int64_t hidden = args.x.cols;
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const float* row = args.fn + (tile * 8 + lane / 4) * (kStreams * hidden) + j * hidden;
      const Float8 w = load8_f32<kWhole>(row, channel / 8 + lane % 4, hidden);
      const uint4 upper = narrow8(w);
      if (is_upper) {
        weights.piece[j][tile] = upper;
      } else {
        const Float8 rest = minus(w, widen8(upper));
        const uint4 middle = narrow8(rest);
        weights.piece[j][tile] = middle;
        lowest[(j * kTiles + tile) * kWarp + lane] = narrow8(minus(rest, widen8(middle)));
      }
    }
  }
}

// Rows lane / 4 and lane / 4 + 8 of a tile, 8 channels of each stream.
struct Tile {
  uint4 raw[kStreams][2];
};

struct Sums {
  float mix[kTiles][4] = {};
  float squares[2] = {};  // of x by the warp of the upper parts, else of streams
};

__device__ __forceinline__ void multiply_stream(const uint4 (&raw)[2], const uint4 (&w)[kTiles],
                                                Sums& sums) {
  const uint32_t first[4] = {raw[0].x, raw[1].x, raw[0].y, raw[1].y};
  const uint32_t second[4] = {raw[0].z, raw[1].z, raw[0].w, raw[1].w};
#pragma unroll
  for (int t = 0; t < kTiles; ++t) multiply(sums.mix[t], first, w[t].x, w[t].y);
#pragma unroll
  for (int t = 0; t < kTiles; ++t) multiply(sums.mix[t], second, w[t].z, w[t].w);
}

__device__ __forceinline__ void multiply_lowest(const Tile& tile, const uint4* lowest, Sums& sums) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    uint4 w[kTiles];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) w[t] = lowest[(j * kTiles + t) * kWarp + lane];
    multiply_stream(tile.raw[j], w, sums);
  }
}

__device__ __forceinline__ void add_squares(const Tile& tile, Sums& sums) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float part[kStreams];
#pragma unroll
    for (int j = 0; j < kStreams; ++j) part[j] = square_sum(widen8(tile.raw[j][half]));
    sums.squares[half] = (part[0] + part[1]) + (part[2] + part[3]);
  }
}

__device__ __forceinline__ uint4 collapse_half(const Tile& tile, int half,
                                               const float (&pi)[kStreams]) {
  Float8 x = {};
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    const Float8 value = widen8(tile.raw[j][half]);
#pragma unroll
    for (int e = 0; e < 8; ++e) x.v[e] += pi[j] * value.v[e];
  }
  return narrow8(x);
}

__device__ __forceinline__ void store_sums(Sums sums, float* warp_buffer) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sums.squares[half] += __shfl_xor_sync(kAllLanes, sums.squares[half], 1);
    sums.squares[half] += __shfl_xor_sync(kAllLanes, sums.squares[half], 2);
    float* to = warp_buffer + (lane / 4 + 8 * half) * kExchangePitch;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      *reinterpret_cast<float2*>(to + 8 * t + lane % 4 * 2) = {sums.mix[t][2 * half],
                                                               sums.mix[t][2 * half + 1]};
    }
    if (lane % 4 == 0) to[kMixes] = sums.squares[half];
  }
}

// A row's sum of index `lane` (kOutSquares at most) over the groups in order, of each the one with
// the upper parts first.
__device__ __forceinline__ float group_total(const float* buffer, int in_tile, int lane) {
  const float* from = buffer + in_tile * kExchangePitch + min(lane, kMixes);
  constexpr int kWarpFloats = kTileRows * kExchangePitch;
  float upper[kSliceGroups];
  float rest[kSliceGroups];
#pragma unroll
  for (int g = 0; g < kSliceGroups; ++g) {
    upper[g] = from[(2 * g) * kWarpFloats];
    rest[g] = from[(2 * g + 1) * kWarpFloats];
  }
  float total = 0.0F;
#pragma unroll
  for (int g = 0; g < kSliceGroups; ++g) {
    if (lane != kSquares) total += upper[g];
    if (lane != kOutSquares) total += rest[g];
  }
  return total;
}

constexpr int kScaleVectors = 4;
constexpr int kScaleThreadsMax = 256;  // of a row
constexpr int64_t kHiddenMax = 8 * kScaleVectors * kScaleThreadsMax;
static_assert(kHiddenMax <= kSlice * kWarp);

struct FinishArguments {
  const float* partials;
  int64_t slices;
  HcWeights weights;
  HcOptions options;
  const Bf16* norm_weight;
  HcMix mix;
  Rows<Bf16> x;
  int row_threads;  // that scale a row
};

__device__ __forceinline__ float from_lane(float x, int lane) {
  return __shfl_sync(kAllLanes, x, lane);
}

// Sinkhorn of two rows in one warp: lane 16 r + 4 i + j has a[i][j] of row r. Every sum runs in
// index order, as plain/ has it.
inline __device__ float sinkhorn(float a, const HcOptions& options) {
  const int lane = threadIdx.x % kWarp;
  const int row = lane & ~3;
  const int column = (lane & ~15) + (lane & 3);
  const auto row_total = [&](float x) {
    return ((from_lane(x, row) + from_lane(x, row + 1)) + from_lane(x, row + 2)) +
           from_lane(x, row + 3);
  };
  const auto column_total = [&](float x) {
    return ((from_lane(x, column) + from_lane(x, column + 4)) + from_lane(x, column + 8)) +
           from_lane(x, column + 12);
  };
  const float most = fmaxf(fmaxf(from_lane(a, row), from_lane(a, row + 1)),
                           fmaxf(from_lane(a, row + 2), from_lane(a, row + 3)));
  // Through double: the C library's expf, which plain/ calls here, is correctly rounded but for
  // rare cases.
  a = static_cast<float>(exp(static_cast<double>(a - most)));
  a = a / row_total(a) + options.hc_eps;
  a = a / (column_total(a) + options.hc_eps);
  for (int t = 1; t < options.sinkhorn_iterations; ++t) {
    a = a / (row_total(a) + options.hc_eps);
    a = a / (column_total(a) + options.hc_eps);
  }
  return a;
}

constexpr int kFinishRows = 2;  // of a block
// The mixes of rows `first_row` and the next from their sums, index `lane` of each, by one warp.
__device__ __forceinline__ void write_mixes(const FinishArguments& args, int64_t first_row,
                                            const float (&sum)[kFinishRows]) {
  const int lane = threadIdx.x % kWarp;
  const int place = lane % 16;
  const int64_t row = first_row + lane / 16;
  const auto mix = [&](int index) {  // of this half's row
    const float first = from_lane(sum[0], index);
    const float second = from_lane(sum[1], index);
    return lane < 16 ? first : second;
  };
  const float nu = inverse_rms(mix(kSquares), kStreams * args.x.cols, args.options.norm_eps);
  const float* scale = args.weights.scale;
  const float* base = args.weights.base;
  const float gate = mix(place % 8) * nu * scale[place / 4 % 2] + base[place % 8];
  const float a = sinkhorn(mix(8 + place) * nu * scale[2] + base[8 + place], args.options);
  if (row >= args.x.rows) return;
  row_of(args.mix.comb, row)[place] = a;
  if (place < kStreams) {
    row_of(args.mix.pre, row)[place] = sigmoid(gate) + args.options.hc_eps;
  } else if (place < 2 * kStreams) {
    row_of(args.mix.post, row)[place - kStreams] = 2.0F * sigmoid(gate);
  }
}

// What is left of few rows once their sums and their x, not yet scaled, are in memory
// (hc_enter.cu).
void hc_finish(Stream stream, const FinishArguments& args);

}  // namespace galley::kernels::cuda
