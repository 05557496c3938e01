// hc_enter of many rows, and leaving the site before: hc_enter.cu's two launches, with tiles
// brought and taken away by the copy engine. The same sums in the same order, so the same bits.
//
// Floor: as in hc_enter.cu; 132 KB a row go through memory in two launches, 550 us for 16,384 rows
// at the 4.0 TB/s that a copy reaches here. Boxes of 16 rows by 160 channels, five to a tile, moved
// there and back without any work on them take 464 us of the first launch's 104 KB (3.6 TB/s; 431
// with 128 channels, 421 with 512, 415 for whole rows in order), where the same pieces took 553 us
// by asynchronous copies and stores of 16 bytes, with work on them or without.
//
// A block keeps a slice of channels with its weights. Four tiles are on chip, with the mixes of
// their rows; one warp asks for them, and hands them back to memory once they are done, in place:
// the streams as they were left, and x, not yet scaled, where y was. Three teams of five warps take
// turns at them, a warp a group of 32 channels; a warp waits for its tile alone and for nobody of
// its team. The team's sums are added up by one more warp, in the order of the groups, behind a
// barrier which the team meets again a tile later, when it has long been free: teams that met
// twice a tile spent a quarter of their time on that.
//
// The second launch sums up squares, scales x and makes its Q8, and mixes; it is short of the L2,
// so a row's squares are read plainly: nine warps of ten find them in the L1.
//
// Measured on an H200, with Q8: 682 us for 16,384 rows (hc_enter.cu's: 751), 350 for 8,192 (370),
// 184 for 4,096 (188), 98 for 2,048 (98); the first launch is 525 us of 682 (574 of 751).
//
// Stages are four and teams three, so a stage goes from team to team. With one barrier of loads a
// stage a team could take the load before for its own, when that one came later than its
// neighbours: wrong bits in one call of some hundred beside heavy copies, and failed launches.
//
// Tried, to scale x where it is still in the L2 instead of in a second launch: blocks count the
// tiles that they have told, and a half row of each tile is a block's to scale some tiles later.
// By its teams, meeting: 741 us, with 646 for the same without scaling; by three more warps, 1,018;
// by teams that do not meet, with one thread of a block that looks at the counts and two more that
// wait for the stores and tell: 719, 880 before those were apart from who copies, 1,680 when
// every warp looked at the counts. Further tiles in between make it slower (736 and 764 us for
// three and four instead of two). What limits the first launch then are its instructions, of which
// scaling is a fifth. Two teams: 882, meeting.
#include <algorithm>

#include "kernels/cuda/hc_enter.cuh"
#include "kernels/cuda/hc_leave.cuh"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/sm90.cuh"
#include "kernels/cuda/tensor_map.cuh"
#include "kernels/cuda/tile_codes.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int kTeams = 3;
constexpr int kStages = 4;
// Barriers of loads, two a stage in turns: another team has a stage next, and its wait must not
// take the load before for its own, should that one still be under way.
constexpr int kLoads = 2 * kStages;
constexpr int kTeamWarps = kTeams * kSliceGroups;
constexpr int kCopyWarp = kTeamWarps;
constexpr int kAddWarp = kTeamWarps + 1;
constexpr int kThreads = (kTeamWarps + 2) * kWarp;
constexpr int kExchangePitch = 28;  // floats a row: 24 sums, two squares
constexpr int64_t kSlicesMax = kWarp;

struct Stage {
  uint4 part[kStreams + 1][kTileRows][kSlice / 8];  // the streams; y, then x
  float comb[kTileRows][kStreams * kStreams];
  float post[kTileRows][kStreams];
  float carried[kTileRows][kStreams];
};
static_assert(sizeof(Stage) % 128 == 0);
constexpr uint32_t kPartBytes = sizeof(Stage::part) / (kStreams + 1);

struct Shared {
  Stage stage[kStages];
  uint4 weights[kSliceGroups * kGroupPieces];
  float exchange[kTeams][kSliceGroups][kTileRows][kExchangePitch];
  uint64_t full[kLoads];
  uint64_t done[kStages];
  uint64_t summed[kTeams];
  uint64_t added[kTeams];
};
static_assert(sizeof(Shared) <= 227 * 1024);

struct ManyArguments {
  CUtensorMap streams;
  CUtensorMap y;
  CUtensorMap x;
  HcLeave leave;
  ProjectArguments project;
};

// What a block works on: tiles y, y + gridDim.y and so on of slice x.
struct Turns {
  int count;

  __device__ __forceinline__ explicit Turns(int64_t rows)
      : count(static_cast<int>(((rows + kTileRows - 1) / kTileRows - blockIdx.y + gridDim.y - 1) /
                               gridDim.y)) {}
  static __device__ __forceinline__ int64_t row(int turn) {
    return (int64_t{blockIdx.y} + int64_t{turn} * gridDim.y) * kTileRows;
  }
};

template <bool kLeaves>
__device__ __forceinline__ void load_stage(const ManyArguments& args, Shared& shared, int turn) {
  const ProjectArguments& project = args.project;
  const uint32_t full = shared_address(&shared.full[turn % kLoads]);
  Stage& stage = shared.stage[turn % kStages];
  const int64_t row = Turns::row(turn);
  const auto hidden = static_cast<int32_t>(project.x.cols);
  const auto column = static_cast<int32_t>(blockIdx.x) * kSlice;
  const auto rows = static_cast<uint32_t>(min(int64_t{kTileRows}, project.x.rows - row));
  constexpr uint32_t kFour = kStreams * sizeof(float);  // bytes
  barrier_expect(full, kLeaves ? (kStreams + 1) * kPartBytes + rows * (kStreams + 2) * kFour
                               : kStreams * kPartBytes + rows * kFour);
  const uint32_t to = shared_address(&stage);
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    box_load(to + j * kPartBytes, args.streams, j * hidden + column, static_cast<int32_t>(row),
             full);
  }
  bulk_load(shared_address(stage.carried), row_of(project.carried, row), rows * kFour, full);
  if constexpr (kLeaves) {
    box_load(to + kStreams * kPartBytes, args.y, column, static_cast<int32_t>(row), full);
    bulk_load(shared_address(stage.comb), row_of(args.leave.comb, row), rows * kStreams * kFour,
              full);
    bulk_load(shared_address(stage.post), row_of(args.leave.post, row), rows * kFour, full);
  }
}

template <bool kLeaves>
__device__ __forceinline__ void store_stage(const ManyArguments& args, const Shared& shared,
                                            int turn) {
  const uint32_t from = shared_address(&shared.stage[turn % kStages]);
  const auto row = static_cast<int32_t>(Turns::row(turn));
  const auto hidden = static_cast<int32_t>(args.project.x.cols);
  const auto column = static_cast<int32_t>(blockIdx.x) * kSlice;
  if constexpr (kLeaves) {
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      box_store(args.streams, j * hidden + column, row, from + j * kPartBytes);
    }
  }
  box_store(args.x, column, row, from + kStreams * kPartBytes);
  box_stores_commit();
}

// Leaves, collapses, and projects a group of a tile, in place. Rows past the end are nobody's.
template <bool kLeaves>
__device__ __forceinline__ void take_group(Stage& stage, int group, const uint4* weights,
                                           GroupSums& sums) {
  const int lane = threadIdx.x % kWarp;
  Tile tile;
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    const int row = lane / 4 + 8 * half;
    const int piece = group * kGroupVectors + lane % 4;
    uint4 raw[kStreams];
#pragma unroll
    for (int j = 0; j < kStreams; ++j) raw[j] = stage.part[j][row][piece];
    if constexpr (kLeaves) {
      LeaveMix mix;
      mix.load_whole(stage.comb[row], stage.post[row]);
      leave8(mix, stage.part[kStreams][row][piece], raw);
#pragma unroll
      for (int j = 0; j < kStreams; ++j) stage.part[j][row][piece] = raw[j];
    }
#pragma unroll
    for (int j = 0; j < kStreams; ++j) tile.raw[j][half] = raw[j];
    const float4 pi = *reinterpret_cast<const float4*>(stage.carried[row]);
    const uint4 x = collapse_half(tile, half, {pi.x, pi.y, pi.z, pi.w});
    stage.part[kStreams][row][piece] = x;
    add_squares(tile, half, x, sums);
  }
  multiply_group(tile, weights, sums);
}

__device__ __forceinline__ void store_sums(float (&exchange)[kTileRows][kExchangePitch],
                                           const GroupSums& sums) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    float* to = exchange[lane / 4 + 8 * half];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      *reinterpret_cast<float2*>(to + 8 * t + lane % 4 * 2) = {sums.mix(t, 2 * half),
                                                               sums.mix(t, 2 * half + 1)};
    }
    if (lane % 4 == 0) {
      *reinterpret_cast<float2*>(to + kSquares) = {sums.squares[half], sums.out_squares[half]};
    }
  }
}

__device__ __forceinline__ void add_groups(
    const ProjectArguments& project,
    const float (&exchange)[kSliceGroups][kTileRows][kExchangePitch], int64_t first_row) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll 4
  for (int row = 0; row < kTileRows; ++row) {
    float total = 0.0F;
#pragma unroll
    for (int g = 0; g < kSliceGroups; ++g) total += exchange[g][row][min(lane, kOutSquares)];
    const int64_t at = first_row + row;
    if (lane <= kOutSquares && at < project.x.rows) {
      project.partials[(at * project.slices + blockIdx.x) * kPartials + lane] = total;
    }
  }
}

// One lane of a warp says that the warp was here.
__device__ __forceinline__ void arrive_warp(uint64_t* barrier) {
  __syncwarp();
  if (threadIdx.x % kWarp == 0) barrier_arrive(shared_address(barrier));
}

// Block (slice, part).
template <bool kLeaves>
__global__ void __launch_bounds__(kThreads, 1)
    pass_many_kernel(const __grid_constant__ ManyArguments args) {
  extern __shared__ __align__(128) uint8_t shared_bytes[];
  Shared& shared = *reinterpret_cast<Shared*>(shared_bytes);
  const int warp = threadIdx.x / kWarp;
  // Constant: before the wait. All of a warp's loads are under way before the first is stored.
  constexpr int kWarps = kThreads / kWarp;
  constexpr int kPieces = kSliceGroups * kStreams * kTiles;
  constexpr int kEach = (kPieces + kWarps - 1) / kWarps;
  Float8 piece[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = min(warp + i * kWarps, kPieces - 1);
    const int64_t channel = int64_t{blockIdx.x} * kSlice + at / (kStreams * kTiles) * kGroup;
    piece[i] = load_weights<true>(args.project, channel, at / kTiles % kStreams, at % kTiles);
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = min(warp + i * kWarps, kPieces - 1);
    store_weights(piece[i], shared.weights + at / (kStreams * kTiles) * kGroupPieces,
                  at / kTiles % kStreams, at % kTiles);
  }
  if (threadIdx.x == 0) {
    for (int i = 0; i < kLoads; ++i) barrier_init(shared_address(&shared.full[i]), 1);
    for (int i = 0; i < kStages; ++i) {
      barrier_init(shared_address(&shared.done[i]), kSliceGroups);
    }
    for (int i = 0; i < kTeams; ++i) {
      barrier_init(shared_address(&shared.summed[i]), kSliceGroups);
      barrier_init(shared_address(&shared.added[i]), 1);
    }
    barrier_init_fence();
  }
  await_earlier();
  __syncthreads();
  const Turns turns(args.project.x.rows);
  if (warp == kCopyWarp) {
    if (!elected()) return;
    for (int turn = 0; turn < min(kStages, turns.count); ++turn) {
      load_stage<kLeaves>(args, shared, turn);
    }
    for (int turn = 0; turn < turns.count; ++turn) {
      barrier_wait(shared_address(&shared.done[turn % kStages]), turn / kStages & 1);
      store_stage<kLeaves>(args, shared, turn);
      if (turn + kStages < turns.count) {
        box_stores_read();
        load_stage<kLeaves>(args, shared, turn + kStages);
      }
    }
    box_stores_wait();
    return;
  }
  if (warp == kAddWarp) {
    for (int turn = 0; turn < turns.count; ++turn) {
      const int team = turn % kTeams;
      barrier_wait(shared_address(&shared.summed[team]), turn / kTeams & 1);
      add_groups(args.project, shared.exchange[team], Turns::row(turn));
      arrive_warp(&shared.added[team]);
    }
    return;
  }
  const int team = warp / kSliceGroups;
  const int group = warp % kSliceGroups;
  for (int turn = team; turn < turns.count; turn += kTeams) {
    const int place = turn % kStages;
    barrier_wait(shared_address(&shared.full[turn % kLoads]), turn / kLoads & 1);
    GroupSums sums;
    take_group<kLeaves>(shared.stage[place], group, shared.weights + group * kGroupPieces, sums);
    // What is stored was made from all that was loaded, so the loads are over.
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    arrive_warp(&shared.done[place]);
    // The sums of the team's last tile: nobody can add up this one's before they are here.
    if (turn >= kTeams) barrier_wait(shared_address(&shared.added[team]), turn / kTeams - 1 & 1);
    store_sums(shared.exchange[team][group], sums);
    arrive_warp(&shared.summed[team]);
  }
}

constexpr int kRowThreads = 160;
constexpr int kRowVectors = 4;  // of a thread
constexpr int kFinishThreads = kFinishRows * kRowThreads;
constexpr int kFinishWarps = kFinishThreads / kWarp;
constexpr int64_t kHiddenOfRow = int64_t{8} * kRowVectors * kRowThreads;

__device__ __forceinline__ void mixes_of(const FinishArguments& args, int64_t first_row) {
  if (first_row >= args.x.rows) return;
  MixWeights weights;
  weights.load(args.weights);
  float sum[kFinishRows] = {};
  const float* from[kFinishRows];
#pragma unroll
  for (int r = 0; r < kFinishRows; ++r) {
    const int64_t row = min(first_row + r, args.x.rows - 1);
    from[r] = args.partials + row * args.slices * kPartials + threadIdx.x % kWarp;
  }
#pragma unroll 8
  for (int64_t slice = 0; slice < args.slices; ++slice) {
#pragma unroll
    for (int r = 0; r < kFinishRows; ++r) sum[r] += from[r][slice * kPartials];
  }
  write_mixes(args, weights, first_row, sum);
}

// A block has two rows; a further block behind as many as it has warps makes their mixes.
template <bool kMakesTiles>
__global__ void __launch_bounds__(kFinishThreads)
    finish_many_kernel(const __grid_constant__ FinishArguments args) {
  __shared__ __align__(16) float squares_of[kFinishWarps][kSlicesMax];
  await_earlier();
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int64_t turn = blockIdx.x / (kFinishWarps + 1);
  const int in_turn = static_cast<int>(blockIdx.x % (kFinishWarps + 1));
  if (in_turn == kFinishWarps) return mixes_of(args, (turn * kFinishWarps + warp) * kFinishRows);
  const int64_t row = (turn * kFinishWarps + in_turn) * kFinishRows + threadIdx.x / kRowThreads;
  if (row >= args.x.rows) return;
  const int first = threadIdx.x % kRowThreads;
  const int64_t hidden = args.x.cols;
  Bf16* x = row_of(args.x, row);
  const float* partials = args.partials + row * args.slices * kPartials + kOutSquares;
  const float one = lane < args.slices ? partials[lane * kPartials] : 0.0F;
  uint4 raw[kRowVectors];
#pragma unroll
  for (int i = 0; i < kRowVectors; ++i) raw[i] = load8<true>(x, first + i * kRowThreads, hidden);
  squares_of[warp][lane] = one;
  __syncwarp();
  float squares = 0.0F;
#pragma unroll
  for (int s = 0; s < kSlicesMax; s += 4) {
    const float4 four = *reinterpret_cast<const float4*>(&squares_of[warp][s]);
    squares = (((squares + four.x) + four.y) + four.z) + four.w;
  }
  const float inverse = inverse_rms(squares, hidden, args.options.norm_eps);
#pragma unroll
  for (int i = 0; i < kRowVectors; ++i) {
    const int64_t vector = first + i * kRowThreads;
    const uint4 result = normed(raw[i], inverse, load8<true>(args.norm_weight, vector, hidden));
    store8<true>(x, vector, hidden, result);
    if constexpr (kMakesTiles) {  // half a warp has 128 channels: all of them or none
      const TileCodes codes = tile_codes(result);
      if (vector * 8 < hidden) store_codes(args.tiles, row, vector, codes);
    }
  }
}

template <class T>
CUtensorMap tile_map(const Rows<T>& rows) {
  return matrix_map(rows.data, rows.rows, rows.cols, rows.stride * int64_t{sizeof(T)}, sizeof(T),
                    kTileRows, kSlice);
}

}  // namespace

bool enters_many(const HcLeave& leave, const ProjectArguments& project) {
  const auto is_packed = [](const Rows<const float>& rows) { return rows.stride == rows.cols; };
  return project.x.cols % kSlice == 0 && project.x.cols <= kHiddenOfRow &&
         project.slices <= kSlicesMax && is_packed(project.carried) &&
         (leave.y.data == nullptr || (is_packed(leave.post) && is_packed(leave.comb)));
}

void enter_many(Stream stream, const HcLeave& leave, const ProjectArguments& project,
                const FinishArguments& finish) {
  const bool leaves = leave.y.data != nullptr;
  const ManyArguments args{.streams = tile_map(project.streams),
                           .y = leaves ? tile_map(leave.y) : CUtensorMap{},
                           .x = tile_map(project.x),
                           .leave = leave,
                           .project = project};
  constexpr int64_t kBlocks = 132;  // one a processor
  const int64_t parts = std::min(std::max<int64_t>(kBlocks / project.slices, 1),
                                 divide_up(project.x.rows, kTileRows));
  const dim3 grid(static_cast<unsigned>(project.slices), static_cast<unsigned>(parts));
  launch_kernel(leaves ? pass_many_kernel<true> : pass_many_kernel<false>,
                {grid, kThreads, sizeof(Shared)}, stream, args);
  const int64_t turns = divide_up(divide_up(finish.x.rows, kFinishRows), kFinishWarps);
  launch_kernel(
      finish.tiles.codes != nullptr ? finish_many_kernel<true> : finish_many_kernel<false>,
      {turns * (kFinishWarps + 1), kFinishThreads}, stream, finish);
}

}  // namespace galley::kernels::cuda
