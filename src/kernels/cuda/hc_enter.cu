// hc_enter: a site's 24 mixing sums, Sinkhorn, and x = RMS(collapse(streams, carried)).
//
// Floor at the released shape: 40 KB of streams in and 10 KB of x out a row; 24 x 20,480 f32
// products a row, which CUDA cores would take longer for than the memory (60 us for 4,096 rows at
// peak, where the bytes take 45). So the projection runs on tensor cores: streams are bf16 as they
// are, and fn, f32, is exactly the sum of three bf16 (rounded, the rest rounded, and its rest).
// Products are exact, sums are f32.
//
// Two launches. `project` cuts the channels into slices of 256, a slice into eight groups of 32. A
// block keeps a slice and goes through tiles of 16 rows, which asynchronous copies bring into a
// ring of stages; two of its warps keep the weights of one group of all streams in 48 registers
// each: one the upper parts, and it collapses; the other the middle ones, the lowest in shared
// memory, and it adds up the streams' squares. So streams are read once. What is left in memory is
// x not yet scaled and, a slice, 26 numbers a row. `finish` adds these up in slice order, scales x,
// and does Sinkhorn in 16 lanes; of many rows a launch of their own does the latter, since it waits
// on latencies only.
//
// A group's sums start at zero, groups are added in order within a slice, slices in order: the same
// for any number of rows.
//
// Measured on an H200: 460 us for 16,384 rows, where the bytes take 207 (project 346, finish 114),
// 14 us for 64 rows. A version with one warp for all parts of the weights and bulk copies of 512
// bytes (669 us) took as long without its products and two thirds of the time without its copies:
// a tile is a chain of latencies that eight, now sixteen warps do not hide; more of them have no
// registers for the weights. finish reads and writes x once more, a fifth of all bytes; a cluster
// that holds all slices of a tile could keep x on chip. Weights in shared memory and rows loaded
// straight to registers: 511 us.
//
// compute-sanitizer's racecheck counts hazards here (122 in one run), memcheck was not run. By
// reading, the accesses are ordered: a stage by each lane's wait for its own copies and the barrier
// of the group's two warps; the sums of a tile by one arrival a warp, after __syncwarp, on a
// barrier in shared memory that every reader waits for. Which of them the tool does not follow was
// not looked into.
#include <algorithm>

#include "kernels/cuda/exponential.cuh"
#include "kernels/cuda/hyper_connections.h"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/row.cuh"
#include "kernels/cuda/sm90.cuh"

namespace galley::kernels::cuda {
namespace {

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

// A stage: what lanes of a group's two warps read, 16 bytes each, of each stream and half of rows.
constexpr int kRing = 3;
constexpr int kGroupBytes = kStreams * 2 * kWarp * 16;
constexpr int kStageBytes = kSliceGroups * kGroupBytes;
// What warps hand each other: 24 sums and a sum of squares a row, two buffers.
constexpr int kExchangePitch = 28;  // floats a row
constexpr int kExchangeFloats = kWarps * kTileRows * kExchangePitch;
constexpr int kExchangeBytes = 2 * kExchangeFloats * static_cast<int>(sizeof(float));
// The lowest parts of the weights.
constexpr int kLowestBytes = kSliceGroups * kStreams * kTiles * kWarp * 16;
constexpr int kSharedBytes = kRing * kStageBytes + kExchangeBytes + kLowestBytes + 2 * 8;
static_assert(kSharedBytes <= 227 * 1024);

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

// Blocks until the barrier's phase of this parity is over.
__device__ __forceinline__ void wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// The first row of the block's `turn`-th tile.
__device__ __forceinline__ int64_t tile_row(int64_t turn) {
  return (int64_t{blockIdx.y} + turn * gridDim.y) * kTileRows;
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

template <bool kWhole>
__device__ __forceinline__ void collapse(const ProjectArguments& args, const Tile& tile,
                                         const float (&pi)[2][kStreams], int64_t first_row,
                                         int64_t channel, Sums& sums) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    Float8 x = {};
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      const Float8 value = widen8(tile.raw[j][half]);
#pragma unroll
      for (int e = 0; e < 8; ++e) x.v[e] += pi[half][j] * value.v[e];
    }
    const uint4 collapsed = narrow8(x);
    sums.squares[half] = square_sum(widen8(collapsed));
    const int64_t row = first_row + lane / 4 + 8 * half;
    if (row < args.x.rows) {
      store8<kWhole>(row_of(args.x, row), channel / 8 + lane % 4, args.x.cols, collapsed);
    }
  }
}

template <bool kWhole>
__device__ __forceinline__ void load_carried(const ProjectArguments& args, int64_t first_row,
                                             float (&pi)[2][kStreams]) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = min(first_row + lane / 4 + 8 * half, args.x.rows - 1);
    const float* from = row_of(args.carried, row);
    if constexpr (kWhole) {
      const float4 all = *reinterpret_cast<const float4*>(from);
      pi[half][0] = all.x;
      pi[half][1] = all.y;
      pi[half][2] = all.z;
      pi[half][3] = all.w;
    } else {
#pragma unroll
      for (int j = 0; j < kStreams; ++j) pi[half][j] = from[j];
    }
  }
}

// A lane's 16 bytes of each stream, of the rows of one half, on their way to a stage.
__device__ __forceinline__ void copy_half(const ProjectArguments& args, uint32_t group_stage,
                                          int64_t first_row, int64_t channel, int half) {
  const int lane = threadIdx.x % kWarp;
  const int64_t hidden = args.x.cols;
  const int64_t row = first_row + lane / 4 + 8 * half;
  const int64_t at = channel + lane % 4 * 8;
  const bool inside = row < args.x.rows && at < hidden;
  const Bf16* from = inside ? row_of(args.streams, row) + at : args.streams.data;
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     group_stage + ((j * 2 + half) * kWarp + lane) * 16),
                 "l"(inside ? from + j * hidden : from), "r"(inside ? 16 : 0)
                 : "memory");
  }
}

template <bool kWhole>
__device__ __forceinline__ void load_tile(const ProjectArguments& args, const uint8_t* group_stage,
                                          int64_t first_row, int64_t channel, Tile& tile) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if constexpr (kWhole) {
        tile.raw[j][half] =
            *reinterpret_cast<const uint4*>(group_stage + ((j * 2 + half) * kWarp + lane) * 16);
      } else {
        const int64_t row = first_row + lane / 4 + 8 * half;
        tile.raw[j][half] = row < args.x.rows
                                ? load8<false>(row_of(args.streams, row) + j * args.x.cols,
                                               channel / 8 + lane % 4, args.x.cols)
                                : uint4{};
      }
    }
  }
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

// Row `threadIdx.x / kWarp` of a tile: groups in order, of each the sum with the upper parts first.
__device__ __forceinline__ void add_groups(const ProjectArguments& args, const float* buffer,
                                           int64_t first_row) {
  const int in_tile = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int64_t row = first_row + in_tile;
  if (lane > kOutSquares || row >= args.x.rows) return;
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
  args.partials[(row * args.slices + blockIdx.x) * kPartials + lane] = total;
}

// Block (slice, part) goes through every part-th tile of 16 rows; warps 2g and 2g + 1 have group g.
// A tile's sums are added while the next one is multiplied. Two buffers suffice: who writes one
// again has waited for all warps to write the other, which they did after reading this one. Groups
// past the row's end multiply zeros.
template <bool kWhole>
__global__ void __launch_bounds__(kWarps* kWarp, 1) project_kernel(ProjectArguments args) {
  extern __shared__ __align__(128) uint8_t shared[];
  auto* exchange = reinterpret_cast<float*>(shared + kRing * kStageBytes);
  uint8_t* behind = shared + kRing * kStageBytes + kExchangeBytes;
  // Two barriers: all warps wrote their sums.
  const uint32_t written = shared_address(behind + kLowestBytes);
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int group = warp / kGroupWarps;
  const bool upper = warp % kGroupWarps == 0;
  const int64_t channel = int64_t{blockIdx.x} * kSlice + group * kGroup;
  const auto group_stage = [&](int64_t turn) {
    return static_cast<uint32_t>(turn % kRing) * kStageBytes + group * kGroupBytes;
  };
  const auto copy_ahead = [&](int64_t turn) {
    if (kWhole && tile_row(turn) < args.x.rows) {
      copy_half(args, shared_address(shared) + group_stage(turn), tile_row(turn), channel,
                upper ? 0 : 1);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < 2; ++i) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(written + i * 8), "r"(kWarps)
                   : "memory");
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  Weights weights;
  auto* lowest = reinterpret_cast<uint4*>(behind) + group * (kStreams * kTiles * kWarp);
  load_weights<kWhole>(args, channel, upper, weights, lowest);  // constant: before the wait
  await_earlier();
  for (int turn = 0; turn < kRing - 1; ++turn) copy_ahead(turn);
  float next_pi[2][kStreams] = {};
  if (upper) load_carried<kWhole>(args, tile_row(0), next_pi);
  __syncthreads();
  const auto finish_tile = [&](int64_t turn) {
    wait(written + static_cast<uint32_t>(turn % 2) * 8, static_cast<uint32_t>(turn / 2) & 1U);
    add_groups(args, exchange + turn % 2 * kExchangeFloats, tile_row(turn));
  };
  int64_t turn = 0;
  for (; tile_row(turn) < args.x.rows; ++turn) {
    asm volatile("cp.async.wait_group %0;" ::"n"(kRing - 2) : "memory");
    // Both warps of the group see each other's half, and have read the stage to be filled next.
    asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(kGroupWarps * kWarp) : "memory");
    copy_ahead(turn + kRing - 1);
    Tile tile;
    load_tile<kWhole>(args, shared + group_stage(turn), tile_row(turn), channel, tile);
    Sums sums;
#pragma unroll
    for (int j = 0; j < kStreams; ++j) multiply_stream(tile.raw[j], weights.piece[j], sums);
    if (!upper) {
      multiply_lowest(tile, lowest, sums);
      add_squares(tile, sums);
    } else {
      float pi[2][kStreams];
#pragma unroll
      for (int i = 0; i < 2 * kStreams; ++i)
        pi[i / kStreams][i % kStreams] = next_pi[i / kStreams][i % kStreams];
      load_carried<kWhole>(args, tile_row(turn + 1), next_pi);
      collapse<kWhole>(args, tile, pi, tile_row(turn), channel, sums);
    }
    if (turn > 0) finish_tile(turn - 1);
    store_sums(sums, exchange + turn % 2 * kExchangeFloats + warp * kTileRows * kExchangePitch);
    __syncwarp();
    if (lane == 0) {
      asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(
                       written + static_cast<uint32_t>(turn % 2) * 8)
                   : "memory");
    }
  }
  finish_tile(turn - 1);
}

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
__device__ float sinkhorn(float a, const HcOptions& options) {
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
constexpr int64_t kFewRows = 1024;
constexpr int kScaleVectors = 4;
constexpr int kScaleThreadsMax = 256;  // of a row
constexpr int64_t kHiddenMax = 8 * kScaleVectors * kScaleThreadsMax;
static_assert(kHiddenMax <= kSlice * kWarp);

// The mixes of two rows from their sums, by one warp.
__device__ void coefficients(const FinishArguments& args, int64_t first_row) {
  const int lane = threadIdx.x % kWarp;
  const int64_t slices = args.slices;
  float sum[kFinishRows] = {};
  const float* from[kFinishRows];
#pragma unroll
  for (int r = 0; r < kFinishRows; ++r) {
    from[r] = args.partials + min(first_row + r, args.x.rows - 1) * slices * kPartials + lane;
  }
#pragma unroll 10
  for (int64_t slice = 0; slice < slices; ++slice) {
#pragma unroll
    for (int r = 0; r < kFinishRows; ++r) sum[r] += __ldg(from[r] + slice * kPartials);
  }
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

constexpr int kCoefficientWarps = 8;

__global__ void __launch_bounds__(kCoefficientWarps* kWarp)
    coefficients_kernel(FinishArguments args) {
  await_earlier();
  const int64_t pair = int64_t{blockIdx.x} * kCoefficientWarps + threadIdx.x / kWarp;
  if (pair * kFinishRows < args.x.rows) coefficients(args, pair * kFinishRows);
}

// A block has two rows, each of them threads that scale x; a last warp, if there is one, makes
// their coefficients.
template <bool kWhole>
__global__ void __launch_bounds__(kFinishRows* kScaleThreadsMax + kWarp)
    finish_kernel(FinishArguments args) {
  await_earlier();
  const int64_t first_row = int64_t{blockIdx.x} * kFinishRows;
  const int threads = args.row_threads;
  const int which = static_cast<int>(threadIdx.x) / threads;
  if (which == kFinishRows) {
    coefficients(args, first_row);
    return;
  }
  const int64_t row = first_row + which;
  if (row >= args.x.rows) return;
  Bf16* x = row_of(args.x, row);
  const float* squares_of = args.partials + row * args.slices * kPartials + kOutSquares;
  const int64_t hidden = args.x.cols;
  const int lane = threadIdx.x % kWarp;
  const int first = static_cast<int>(threadIdx.x) % threads;
  uint4 raw[kScaleVectors];
#pragma unroll
  for (int i = 0; i < kScaleVectors; ++i) raw[i] = load8<kWhole>(x, first + i * threads, hidden);
  const int slices = static_cast<int>(args.slices);  // at most a warp's lanes
  const float part = lane < slices ? __ldg(squares_of + lane * kPartials) : 0.0F;
  float squares = 0.0F;
  for (int slice = 0; slice < slices; ++slice) squares += from_lane(part, slice);
  const float inverse = inverse_rms(squares, hidden, args.options.norm_eps);
#pragma unroll
  for (int i = 0; i < kScaleVectors; ++i) {
    const int64_t vector = first + i * threads;
    const Float8 w = widen8(load8<kWhole>(args.norm_weight, vector, hidden));
    Float8 value = widen8(raw[i]);
#pragma unroll
    for (int e = 0; e < 8; ++e) value.v[e] = value.v[e] * inverse * w.v[e];
    store8<kWhole>(x, vector, hidden, narrow8(value));
  }
}

int64_t slice_count(int64_t hidden) { return divide_up(hidden, kSlice); }

template <bool kWhole>
void project(Stream stream, const ProjectArguments& args) {
  constexpr int64_t kBlocks = 132;  // one a processor
  const int64_t tiles = divide_up(args.x.rows, kTileRows);
  const int64_t parts = std::min(std::max<int64_t>(kBlocks / args.slices, 1), tiles);
  const dim3 grid(static_cast<unsigned>(args.slices), static_cast<unsigned>(parts));
  launch_kernel(project_kernel<kWhole>, {grid, kWarps * kWarp, kSharedBytes}, stream, args);
}

template <bool kWhole>
void launch_finish(Stream stream, const FinishArguments& args) {
  const int64_t rows = args.x.rows;
  const auto grid = static_cast<unsigned>(divide_up(rows, kFinishRows));
  const int threads = args.row_threads * kFinishRows;
  if (rows <= kFewRows) {
    launch_kernel(finish_kernel<kWhole>, {grid, threads + kWarp}, stream, args);
    return;
  }
  launch_kernel(finish_kernel<kWhole>, {grid, threads}, stream, args);
  const auto warps = static_cast<unsigned>(divide_up(grid, kCoefficientWarps));
  launch_kernel(coefficients_kernel, {warps, kCoefficientWarps * kWarp}, stream, args);
}

}  // namespace

int64_t hc_enter_workspace_bytes(int64_t rows, int64_t hidden) {
  return rows * slice_count(hidden) * kPartials * static_cast<int64_t>(sizeof(float));
}

void hc_enter(Stream stream, Rows<const Bf16> streams, const HcWeights& weights,
              const HcOptions& options, Rows<const float> carried, const Bf16* norm_weight,
              HcMix mix, Rows<Bf16> x, void* workspace) {
  CHECK(options.streams == kStreams && streams.cols == kStreams * x.cols);
  CHECK(x.cols <= kHiddenMax);
  if (x.rows == 0) return;
  const int64_t slices = slice_count(x.cols);
  auto* partials = static_cast<float*>(workspace);
  const ProjectArguments args{streams, weights.fn, carried, x, partials, slices};
  const FinishArguments finish{partials,    slices, weights, options,
                               norm_weight, mix,    x,       row_threads(x.cols, kScaleVectors)};
  const bool whole = is_whole(streams) && is_whole(x) && x.cols % 8 == 0 &&
                     is_whole(weights.fn, x.cols) && is_whole(norm_weight, x.cols) &&
                     is_whole(carried.data, 8) && carried.stride % kStreams == 0;
  if (whole) {
    project<true>(stream, args);
    launch_finish<true>(stream, finish);
  } else {
    project<false>(stream, args);
    launch_finish<false>(stream, finish);
  }
}

}  // namespace galley::kernels::cuda
