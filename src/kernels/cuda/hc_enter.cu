// hc_enter: a site's 24 mixing sums, Sinkhorn, and x = RMS(collapse(streams, carried)).
//
// Floor at the released shape: 40 KB of streams in and 10 KB of x out a row; 24 x 20,480 f32
// products a row, which CUDA cores would take longer for than the memory (60 us for 4,096 rows at
// peak, where the bytes take 45). So the projection runs on tensor cores: streams are bf16 as they
// are, and fn, f32, is exactly the sum of three bf16 (rounded, the rest rounded, and its rest).
// Products are exact, sums are f32.
//
// Few rows go through hc_site.cu, all others through two launches. `project` cuts the channels into
// slices of 256, a slice into eight groups of 32. A block keeps a slice and goes through tiles of
// 16 rows, which asynchronous copies bring into a ring of stages; two of its warps keep the weights
// of one group of all streams in 48 registers each: one the upper parts, and it collapses; the
// other the middle ones, the lowest in shared memory, and it adds up the streams' squares. So
// streams are read once. What is left in memory is x not yet scaled and, a slice, 26 numbers a row.
// `finish` adds these up in slice order, scales x, and does Sinkhorn in 16 lanes; of many rows a
// launch of their own does the latter, since it waits on latencies only.
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

#include "kernels/cuda/hc_enter.cuh"
#include "kernels/cuda/hyper_connections.h"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/row.cuh"
#include "kernels/cuda/sm90.cuh"

namespace galley::kernels::cuda {
namespace {

// A stage: what lanes of a group's two warps read, 16 bytes each, of each stream and half of rows.
constexpr int kRing = 3;
constexpr int kGroupBytes = kStreams * 2 * kWarp * 16;
constexpr int kStageBytes = kSliceGroups * kGroupBytes;
constexpr int kSharedBytes = kRing * kStageBytes + kExchangeBytes + kLowestBytes + 2 * 8;
static_assert(kSharedBytes <= 227 * 1024);

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

template <bool kWhole>
__device__ __forceinline__ void collapse(const ProjectArguments& args, const Tile& tile,
                                         const float (&pi)[2][kStreams], int64_t first_row,
                                         int64_t channel, Sums& sums) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint4 collapsed = collapse_half(tile, half, pi[half]);
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

// Row `threadIdx.x / kWarp` of a tile.
__device__ __forceinline__ void add_groups(const ProjectArguments& args, const float* buffer,
                                           int64_t first_row) {
  const int in_tile = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int64_t row = first_row + in_tile;
  if (lane > kOutSquares || row >= args.x.rows) return;
  args.partials[(row * args.slices + blockIdx.x) * kPartials + lane] =
      group_total(buffer, in_tile, lane);
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

constexpr int64_t kFewRows = 1024;

// By one warp.
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
  write_mixes(args, first_row, sum);
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
    const uint4 w = load8<kWhole>(args.norm_weight, vector, hidden);
    store8<kWhole>(x, vector, hidden, normed(raw[i], inverse, w));
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

void hc_finish(Stream stream, const FinishArguments& args) { launch_finish<true>(stream, args); }

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
