// What the kernels that enter a hyper-connection site share: the projection of a tile of rows onto
// 24 sums by tensor cores, and from the sums the mixes. hc_enter.cu tells the whole.
#pragma once

#include "kernels/cuda/exponential.cuh"
#include "kernels/cuda/global_loads.cuh"
#include "kernels/cuda/hyper_connections.h"
#include "kernels/cuda/input_tiles.h"
#include "kernels/cuda/mma_bf16.cuh"
#include "kernels/cuda/row.cuh"

namespace galley::kernels::cuda {

constexpr int kMixes = (2 + kStreams) * kStreams;  // 24
constexpr int kTiles = kMixes / 8;                 // of 8 outputs, as mma has them
constexpr int kGroup = 32;                         // channels
constexpr int kGroupVectors = kGroup / 8;
constexpr int kSliceGroups = 5;
constexpr int kSlice = kGroup * kSliceGroups;
constexpr int kTileRows = 16;
constexpr int kHalves = 2;     // of a tile, 8 rows each
constexpr int kPartials = 32;  // floats a row and slice: 24 sums, squares, squares of x, six unused
constexpr int kSquares = kMixes;
constexpr int kOutSquares = kMixes + 1;
static_assert(kMixes % 8 == 0);

struct ProjectArguments {
  Rows<const Bf16> streams;
  const float* fn;
  Rows<const float> carried;
  Rows<Bf16> x;
  float* partials;  // [rows, slices, kPartials]
  int64_t slices;
};

// The weights of a group of channels in shared memory: of each stream three parts (upper, middle,
// lowest) of three tiles, 16 bytes a lane. The k index of mma is free as long as both operands
// agree: lane q of four has channels 8q .. 8q + 7 of a group, the first four in the first product,
// the others in the second.
constexpr int kParts = 3;
constexpr int kStreamPieces = kParts * kTiles * kWarp;
constexpr int kGroupPieces = kStreams * kStreamPieces;
constexpr int kGroupBytes = kGroupPieces * 16;

__device__ __forceinline__ Float8 minus(const Float8& a, const Float8& b) {
  Float8 rest;
#pragma unroll
  for (int i = 0; i < 8; ++i) rest.v[i] = a.v[i] - b.v[i];
  return rest;
}

// A lane's eight weights of one stream and tile of the group that starts at `channel`.
template <bool kWhole>
__device__ __forceinline__ Float8 load_weights(const ProjectArguments& args, int64_t channel,
                                               int stream, int tile) {
  const int lane = threadIdx.x % kWarp;
  const int64_t hidden = args.x.cols;
  const float* row = args.fn + (tile * 8 + lane / 4) * (kStreams * hidden) + stream * hidden;
  return load8_f32<kWhole>(row, channel / 8 + lane % 4, hidden);
}

// Their three parts to the group's place in shared memory.
__device__ __forceinline__ void store_weights(const Float8& w, uint4* group, int stream, int tile) {
  uint4* to = group + stream * kStreamPieces + tile * kWarp + threadIdx.x % kWarp;
  const uint4 upper = narrow8(w);
  const Float8 rest = minus(w, widen8(upper));
  const uint4 middle = narrow8(rest);
  to[0] = upper;
  to[kTiles * kWarp] = middle;
  to[2 * kTiles * kWarp] = narrow8(minus(rest, widen8(middle)));
}

// Rows lane / 4 and lane / 4 + 8 of a tile, 8 channels of each stream.
struct Tile {
  uint4 raw[kStreams][kHalves];
};

// Of one group of channels.
struct GroupSums {
  float upper[kTiles][4] = {};
  float rest[kTiles][4] = {};
  float squares[kHalves] = {};      // of the streams, of both rows
  float out_squares[kHalves] = {};  // of x

  __device__ __forceinline__ float mix(int tile, int i) const {
    return upper[tile][i] + rest[tile][i];
  }
};

__device__ __forceinline__ void multiply_part(const uint32_t (&first)[4],
                                              const uint32_t (&second)[4], const uint4* weights,
                                              float (&sums)[kTiles][4]) {
  uint4 w[kTiles];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) w[t] = weights[t * kWarp];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) multiply_add(sums[t], first, w[t].x, w[t].y);
#pragma unroll
  for (int t = 0; t < kTiles; ++t) multiply_add(sums[t], second, w[t].z, w[t].w);
}

// A chain of the upper parts, and one of the middle and the lowest, stream after stream.
__device__ __forceinline__ void multiply_group(const Tile& tile, const uint4* group,
                                               GroupSums& sums) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    const uint4(&raw)[kHalves] = tile.raw[j];
    const uint32_t first[4] = {raw[0].x, raw[1].x, raw[0].y, raw[1].y};
    const uint32_t second[4] = {raw[0].z, raw[1].z, raw[0].w, raw[1].w};
    const uint4* weights = group + j * kStreamPieces + lane;
    multiply_part(first, second, weights, sums.upper);
    multiply_part(first, second, weights + kTiles * kWarp, sums.rest);
    multiply_part(first, second, weights + 2 * kTiles * kWarp, sums.rest);
  }
}

// x of one half, not yet scaled.
__device__ __forceinline__ uint4 collapse_half(const Tile& tile, int half,
                                               const float (&pi)[kStreams]) {
  Float8 x;
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    const Float8 value = widen8(tile.raw[j][half]);
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      x.v[e] = j == 0 ? plus_zero(pi[j], value.v[e]) : x.v[e] + pi[j] * value.v[e];
    }
  }
  return narrow8(x);
}

// The squares of one half over a group's channels, in all four lanes of a row.
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}
__device__ __forceinline__ void add_squares(const Tile& tile, int half, uint4 x, GroupSums& sums) {
  float part[kStreams];
#pragma unroll
  for (int j = 0; j < kStreams; ++j) part[j] = square_sum(widen8(tile.raw[j][half]));
  sums.squares[half] = quad_sum((part[0] + part[1]) + (part[2] + part[3]));
  sums.out_squares[half] = quad_sum(square_sum(widen8(x)));
}

constexpr int kScaleVectors = 4;
constexpr int kScaleThreadsMax = 256;  // of a row
constexpr int64_t kHiddenMax = 8 * kScaleVectors * kScaleThreadsMax;

struct FinishArguments {
  const float* partials;
  int64_t slices;
  HcWeights weights;
  HcOptions options;
  const Bf16* norm_weight;
  HcMix mix;
  Rows<Bf16> x;
  InputTiles tiles;  // of x, if wanted
  int row_threads;   // that scale a row
  bool mixes_apart;  // by blocks of their own
};

__device__ __forceinline__ float from_lane(float x, int lane) {
  return __shfl_sync(kAllLanes, x, lane);
}

// a / b as division rounds it, for b and quotients far from the ends of the range: what division
// does there, without its question whether they are. A quotient that is too small may be off.
__device__ __forceinline__ float quotient(float a, float b) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(b));
  r = fmaf(r, fmaf(-b, r, 1.0F), r);
  float q = a * r;
  q = fmaf(r, fmaf(-b, q, a), q);
  return fmaf(r, fmaf(-b, q, a), q);
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
    a = quotient(a, row_total(a) + options.hc_eps);
    a = quotient(a, column_total(a) + options.hc_eps);
  }
  return a;
}

// What a lane's mixes are made with: constant, so it may be asked for before any wait.
struct MixWeights {
  float gate_scale, gate_base, comb_scale, comb_base;

  __device__ __forceinline__ void load(const HcWeights& weights) {
    const int place = threadIdx.x % 16;
    gate_scale = load_constant(weights.scale + place / 4 % 2);
    gate_base = load_constant(weights.base + place % 8);
    comb_scale = load_constant(weights.scale + 2);
    comb_base = load_constant(weights.base + 8 + place);
  }
};

constexpr int kFinishRows = 2;  // of a block
// The mixes of rows `first_row` and the next from their sums, index `lane` of each, by one warp.
__device__ __forceinline__ void write_mixes(const FinishArguments& args, const MixWeights& weights,
                                            int64_t first_row, const float (&sum)[kFinishRows]) {
  const int lane = threadIdx.x % kWarp;
  const int place = lane % 16;
  const int64_t row = first_row + lane / 16;
  const auto mix = [&](int index) {  // of this half's row
    const float first = from_lane(sum[0], index);
    const float second = from_lane(sum[1], index);
    return lane < 16 ? first : second;
  };
  const float nu = inverse_rms(mix(kSquares), kStreams * args.x.cols, args.options.norm_eps);
  const float gate = mix(place % 8) * nu * weights.gate_scale + weights.gate_base;
  const float a =
      sinkhorn(mix(8 + place) * nu * weights.comb_scale + weights.comb_base, args.options);
  if (row >= args.x.rows) return;
  row_of(args.mix.comb, row)[place] = a;
  if (place < kStreams) {
    row_of(args.mix.pre, row)[place] = sigmoid(gate) + args.options.hc_eps;
  } else if (place < 2 * kStreams) {
    row_of(args.mix.post, row)[place - kStreams] = 2.0F * sigmoid(gate);
  }
}

// Whether all rows of a site can be read and written in whole vectors.
inline bool is_whole_site(const HcLeave& leave, const Rows<const Bf16>& streams,
                          const HcWeights& weights, const Rows<const float>& carried,
                          const Bf16* norm_weight, const Rows<const Bf16>& x) {
  const auto in_fours = [](const Rows<const float>& rows) {
    return is_whole(rows.data, 8) && rows.stride % 4 == 0;
  };
  return is_whole(streams) && is_whole(x) && x.cols % 8 == 0 && is_whole(weights.fn, x.cols) &&
         is_whole(norm_weight, x.cols) && in_fours(carried) && is_whole(leave.y) &&
         in_fours(leave.post) && in_fours(leave.comb);
}

}  // namespace galley::kernels::cuda
