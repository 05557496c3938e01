// hc_enter: a site's 24 mixing sums, Sinkhorn, and x = RMS(collapse(streams, carried)).
//
// Floor at the released shape: 40 KB of streams in and 10 KB of x out a row; 24 x 20,480 f32
// products a row, which CUDA cores would take longer for than the memory (60 us for 4,096 rows at
// peak, where the bytes take 45). So the projection runs on tensor cores: streams are bf16 as they
// are, and fn, f32, is exactly the sum of three bf16 (rounded, the rest rounded, and its rest).
// Products are exact, sums are f32.
//
// Few rows go through hc_site.cu, all others through two launches. `pass` leaves the site before on
// its way, if one is held back for it (of up to 128 rows it sums the experts up in front of that,
// which takes as long as a launch for it), so that streams are read and written once: 90 KB in and
// out a row, 12 more for x and what is said next. It cuts the channels into slices of 160, a slice
// into five groups of 32. A block keeps a slice and its weights, all three parts in shared memory;
// teams of five warps go through tiles of 16 rows, a warp a group, which asynchronous copies bring
// while the tile before is worked on. What is left in memory is x not yet scaled and, a slice, 26
// numbers a row. `finish` adds these up in slice order, scales x, makes its Q8 where folded
// products read it, and does Sinkhorn in 16 lanes; of many rows blocks of their own do the latter,
// since it waits on latencies only.
//
// A group's sums start at zero, groups are added in order within a slice, slices in order: the same
// for any number of rows.
//
// Measured on an H200, leaving and entering: 717 us for 16,384 rows (2.0 GB with x read and written
// again: 2.85 TB/s, 59 % of bandwidth), 178 for 4,096, 92 for 2,048, 53 for 1,024, 27 for 512, 10.3
// for 64; with Q8 749, 189, 98, 55, 29 and 10.5, where a launch for it took 60 more at 16,384 and
// 2 at 64. With two teams of many rows: 734, 205 and 114. Of up to 264 rows finish has all its
// loads of a row's slices on their way at once: 0.7 us of the 10.3. Entering alone, with two: 526.
// Apart, with a projection whose sixteen warps had weights in registers: 841, 230, 68, 34, 17;
// alone 460 (before stores were of 16 bytes: 870; row.cuh). pass takes about 600 of them. It is no
// longer short of memory but of instructions: 1,500 a group, half of them the f32 products and sums
// of leaving, none of which may be fused; the ten warps of two teams issue in every second cycle,
// wait for their team in 18 % of their time and for memory in 6 %.
//
// Tried: each warp a tile of its own, group after group, with eight warps and a ring of three
// stages 788 (878 with copies that do not ask L2 for the whole line), two stages 1,305, twelve and
// sixteen warps with one stage 848 and 933: the more tiles in work, the slower, as if memory rows
// were left too soon. The team's tile brought to L2 in pieces of 20 KB ahead: 759. Without products
// the ring of three takes as long.
//
// Multiply-adds in leaving and collapsing, as fast/ has them: 750 us instead of 749, so these are
// not what is short; in plain/ they leave the golden vectors' limits. x, sum and norm by a cluster
// a row, without the projection, take 608 us for 1.7 GB: as few bytes a second as all of it here.
//
// More than 1,024 rows with tiles moved in place by the copy engine, both ways, and warps that wait
// for no team: 682 us instead of 751 for 16,384, with Q8, in a program of its own (without work on
// the tiles the copies alone take 464; the rest is finish, which brings 24 KB a row once more). In
// the steps of a prefill, on a card that is held at its power, 765 instead of 735, so it is not
// here. Of its stages three teams shared one barrier of loads, which was wrong now and then beside
// heavy copies; two in turns were right.
//
// Every access of shared memory is a lane's own behind its own copies (a stage), or between two
// meetings of a team (mixes, sums).
#include <algorithm>
#include <type_traits>

#include "kernels/cuda/expert_layer.h"
#include "kernels/cuda/global_loads.cuh"
#include "kernels/cuda/hc_enter.cuh"
#include "kernels/cuda/hc_leave.cuh"
#include "kernels/cuda/hyper_connections.h"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/row.cuh"
#include "kernels/cuda/sm90.cuh"
#include "kernels/cuda/tile_codes.cuh"

namespace galley::kernels::cuda {
namespace {

// Teams of a block and tiles that a team has on chip: of few rows two teams bring the next tile in
// front of this one's work; of many rows three do once this one's is in registers.
template <int kTeamsIn, int kStagesIn>
struct PassForm {
  static constexpr int kTeams = kTeamsIn;
  static constexpr int kStages = kStagesIn;
  static constexpr int kWarps = kTeams * kSliceGroups;
};
using FewRowsPass = PassForm<2, 2>;
using ManyRowsPass = PassForm<3, 1>;

// What a team of warps has on chip: of a stage's tile 16 bytes a lane and warp of both halves of
// the streams and y; the mixes of the rows of this tile and of the next; and this tile's sums,
// group by group.
constexpr int kStageVectors = (kStreams + 1) * kHalves * kWarp;
constexpr int kMixFloats = kStreams * kStreams + 2 * kStreams;  // comb, post, carried
constexpr int kExchangePitch = 28;  // floats a row: 24 sums, two squares
template <class Form>
struct PassTeam {
  uint4 stage[kSliceGroups][Form::kStages][kStageVectors];
  float mix[2][kTileRows][kMixFloats];
  float exchange[kSliceGroups][kTileRows][kExchangePitch];
};
template <class Form>
struct PassShared {
  uint4 weights[kSliceGroups * kGroupPieces];
  PassTeam<Form> team[Form::kTeams];
};
static_assert(sizeof(PassShared<FewRowsPass>) <= 227 * 1024);
static_assert(sizeof(PassShared<ManyRowsPass>) <= 227 * 1024);

struct PassArguments {
  HcLeave leave;
  ProjectArguments project;
};

// 16 bytes, on their way to shared memory.
__device__ __forceinline__ void copy16(void* to, const void* from, bool inside) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
               "l"(from), "r"(inside ? 16 : 0)
               : "memory");
}

// Eight channels of a row's `width`; zeros past its end. Not whole, they are there at once.
template <bool kWhole>
__device__ __forceinline__ void copy_vector(uint4* to, const Bf16* row, int64_t vector,
                                            int64_t width) {
  if constexpr (kWhole) {
    const bool inside = vector * 8 < width;
    copy16(to, inside ? row + vector * 8 : row, inside);
  } else {
    *to = load8<false>(row, vector, width);
  }
}

// What a pass does in front of entering.
enum class Leave : uint8_t { kNot, kSite, kSumAndSite };

template <class Form, bool kWhole, Leave kLeave>
struct Pass {
  static constexpr bool kLeaves = kLeave != Leave::kNot;

  const PassArguments& args;
  PassTeam<Form>& shared;
  int group;  // this warp's

  // A group of a tile, on its way to the stage. Rows past the end are the last one, again.
  __device__ __forceinline__ void copy_group(int64_t tile, int64_t vector, int buffer) {
    const ProjectArguments& project = args.project;
    const int lane = threadIdx.x % kWarp;
    const int64_t hidden = project.x.cols;
    uint4* to = shared.stage[group][Form::kStages > 1 ? buffer : 0] + lane;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int64_t row = min(tile * kTileRows + lane / 4 + 8 * half, project.x.rows - 1);
      const Bf16* streams = row_of(project.streams, row);
#pragma unroll
      for (int j = 0; j < kStreams; ++j) {
        copy_vector<kWhole>(to + (j * kHalves + half) * kWarp, streams + j * hidden,
                            vector + lane % 4, hidden);
      }
      uint4* y = to + (kStreams * kHalves + half) * kWarp;
      if constexpr (kLeave == Leave::kSite) {
        copy_vector<kWhole>(y, row_of(args.leave.y, row), vector + lane % 4, hidden);
      } else if constexpr (kLeave == Leave::kSumAndSite) {  // while the streams are on their way
        *y = combine8(args.leave.parts, row, vector + lane % 4);
        store8<true>(row_of(args.leave.y, row), vector + lane % 4, hidden, *y);
      }
    }
  }

  // The mixes of a tile's rows: six pieces of four floats each, two lanes a row.
  __device__ __forceinline__ void copy_mixes(int64_t tile, int buffer) {
    const int in_tile = threadIdx.x % kTileRows;
    const int64_t row = min(tile * kTileRows + in_tile, args.project.x.rows - 1);
    float* to = shared.mix[buffer][in_tile];
    const int upper = threadIdx.x % kWarp / kTileRows;
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      const int piece = 2 * i + upper;
      const float* from = nullptr;
      if (piece == 5) {
        from = row_of(args.project.carried, row);
      } else if (!kLeaves) {
        continue;
      } else if (piece == 4) {
        from = row_of(args.leave.post, row);
      } else {
        from = row_of(args.leave.comb, row) + piece * 4;
      }
      if constexpr (kWhole) {
        copy16(to + piece * 4, from, true);
      } else {
        for (int e = 0; e < 4; ++e) to[piece * 4 + e] = from[e];
      }
    }
  }

  __device__ __forceinline__ void take_stage(int buffer, Tile& tile, uint4 (&y)[kHalves]) const {
    const uint4* from = shared.stage[group][Form::kStages > 1 ? buffer : 0] + threadIdx.x % kWarp;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int j = 0; j < kStreams; ++j) {
        tile.raw[j][half] = from[(j * kHalves + half) * kWarp];
      }
      if constexpr (kLeaves) y[half] = from[(kStreams * kHalves + half) * kWarp];
    }
  }

  // Leaves, collapses, and projects a group.
  __device__ __forceinline__ void take_group(Tile& tile, const uint4 (&y)[kHalves],
                                             int64_t first_row, int64_t vector, int buffer,
                                             const uint4* weights, GroupSums& sums) {
    const ProjectArguments& project = args.project;
    const int lane = threadIdx.x % kWarp;
    const int64_t hidden = project.x.cols;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int64_t row = first_row + lane / 4 + 8 * half;
      const bool inside = row < project.x.rows;
      const float* mixes = shared.mix[buffer][lane / 4 + 8 * half];
      if constexpr (kLeaves) {
        LeaveMix mix;
        mix.load_whole(mixes, mixes + kStreams * kStreams);
        uint4 raw[kStreams];
#pragma unroll
        for (int j = 0; j < kStreams; ++j) raw[j] = tile.raw[j][half];
        leave8(mix, y[half], raw);
        Bf16* to = row_of(args.leave.streams, row);
#pragma unroll
        for (int j = 0; j < kStreams; ++j) {
          tile.raw[j][half] = raw[j];
          if (inside) store8<kWhole>(to + j * hidden, vector + lane % 4, hidden, raw[j]);
        }
      }
      const float4 pi = *reinterpret_cast<const float4*>(mixes + kMixFloats - kStreams);
      const uint4 x = collapse_half(tile, half, {pi.x, pi.y, pi.z, pi.w});
      if (inside) store8<kWhole>(row_of(project.x, row), vector + lane % 4, hidden, x);
      add_squares(tile, half, x, sums);
    }
    multiply_group(tile, weights, sums);
  }

  __device__ __forceinline__ void store_sums(const GroupSums& sums) const {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      float* to = shared.exchange[group][lane / 4 + 8 * half];
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

  // Adds up the groups; a warp a row.
  __device__ __forceinline__ void add_groups(int64_t tile) const {
    const int lane = threadIdx.x % kWarp;
    const ProjectArguments& project = args.project;
    for (int row = group; row < kTileRows; row += kSliceGroups) {
      float total = 0.0F;
#pragma unroll
      for (int g = 0; g < kSliceGroups; ++g) {
        total += shared.exchange[g][row][min(lane, kOutSquares)];
      }
      const int64_t at = tile * kTileRows + row;
      if (lane <= kOutSquares && at < project.x.rows) {
        project.partials[(at * project.slices + blockIdx.x) * kPartials + lane] = total;
      }
    }
  }
};

// Block (slice, part); its teams go through tiles of 16 rows, each for itself, a warp a group.
template <class Form, bool kWhole, Leave kLeave>
__global__ void __launch_bounds__(Form::kWarps* kWarp, 1)
    pass_kernel(const __grid_constant__ PassArguments args) {
  extern __shared__ __align__(128) uint8_t shared_bytes[];
  PassShared<Form>& shared = *reinterpret_cast<PassShared<Form>*>(shared_bytes);
  const int warp = threadIdx.x / kWarp;
  const int64_t channel = int64_t{blockIdx.x} * kSlice;
  // Constant: before the wait. All of a warp's loads are under way before the first is stored.
  constexpr int kPieces = kSliceGroups * kStreams * kTiles;
  constexpr int kEach = (kPieces + Form::kWarps - 1) / Form::kWarps;
  Float8 piece[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = min(warp + i * Form::kWarps, kPieces - 1);
    piece[i] = load_weights<kWhole>(args.project, channel + at / (kStreams * kTiles) * kGroup,
                                    at / kTiles % kStreams, at % kTiles);
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = min(warp + i * Form::kWarps, kPieces - 1);
    store_weights(piece[i], shared.weights + at / (kStreams * kTiles) * kGroupPieces,
                  at / kTiles % kStreams, at % kTiles);
  }
  await_earlier();
  __syncthreads();
  const int team = warp / kSliceGroups;
  const int group = warp % kSliceGroups;
  Pass<Form, kWhole, kLeave> pass{args, shared.team[team], group};
  const auto meet = [&] {
    asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(kSliceGroups * kWarp) : "memory");
  };
  const int64_t tiles = (args.project.x.rows + kTileRows - 1) / kTileRows;
  const int64_t step = int64_t{gridDim.y} * Form::kTeams;
  const int64_t vector = channel / 8 + group * kGroupVectors;
  const auto copy = [&](int64_t tile, int buffer) {
    if (tile < tiles) {
      if (group == 0) pass.copy_mixes(tile, buffer);
      pass.copy_group(tile, vector, buffer);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  constexpr bool kAhead = Form::kStages > 1;  // of the tile's own work
  int64_t tile = int64_t{blockIdx.y} * Form::kTeams + team;
  int buffer = 0;
  copy(tile, 0);
  for (; tile < tiles; tile += step, buffer ^= 1) {
    if constexpr (kAhead) copy(tile + step, buffer ^ 1);
    asm volatile("cp.async.wait_group %0;" ::"n"(Form::kStages - 1) : "memory");
    meet();  // the mixes are there, and all have read the last tile's sums
    Tile taken;
    uint4 y[kHalves];
    pass.take_stage(buffer, taken, y);
    if constexpr (!kAhead) {
      __syncwarp();
      copy(tile + step, buffer ^ 1);
    }
    GroupSums sums;
    pass.take_group(taken, y, tile * kTileRows, vector, buffer,
                    shared.weights + group * kGroupPieces, sums);
    pass.store_sums(sums);
    meet();
    pass.add_groups(tile);
  }
}

// A number of each of kRows rows, summed over the slices, kAtOnce of them asked for together; zeros
// behind the last one change nothing.
template <int kAtOnce, int kRows>
__device__ __forceinline__ void sum_slices(const float* const (&from)[kRows], int64_t slices,
                                           float (&sum)[kRows]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) sum[r] = 0.0F;
#pragma unroll 1
  for (int64_t first = 0; first < slices; first += kAtOnce) {
    float part[kAtOnce][kRows];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        part[i][r] = first + i < slices ? load_written(from[r] + (first + i) * kPartials) : 0.0F;
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) sum[r] += part[i][r];
    }
  }
}

// By one warp.
template <int kAtOnce>
__device__ void coefficients(const FinishArguments& args, const MixWeights& weights,
                             int64_t first_row) {
  if (first_row >= args.x.rows) return;
  const float* from[kFinishRows];
#pragma unroll
  for (int r = 0; r < kFinishRows; ++r) {
    const int64_t row = min(first_row + r, args.x.rows - 1);
    from[r] = args.partials + row * args.slices * kPartials + threadIdx.x % kWarp;
  }
  float sum[kFinishRows];
  sum_slices<kAtOnce>(from, args.slices, sum);
  write_mixes(args, weights, first_row, sum);
}

// A block has two rows, each of them threads that scale x. Of few rows a last warp makes their
// mixes; of many a further block behind as many as it has warps does, since that waits on latencies
// only and so passes beside the others' copying.
template <bool kWhole, bool kMakesTiles, int kAtOnce>
__global__ void __launch_bounds__(kFinishRows* kScaleThreadsMax + kWarp, kAtOnce > 8 ? 1 : 2)
    finish_kernel(FinishArguments args) {
  const int threads = args.row_threads;
  const int64_t hidden = args.x.cols;
  const int first = static_cast<int>(threadIdx.x) % threads;
  constexpr bool kAlone = kAtOnce > 8;  // then weights are asked for before the wait
  MixWeights mix_weights;
  uint4 norm_weights[kScaleVectors];
  const auto load_norm = [&](int i) {
    norm_weights[i] = load8<kWhole>(args.norm_weight, first + i * threads, hidden);
  };
  if constexpr (kAlone) {
    mix_weights.load(args.weights);
#pragma unroll
    for (int i = 0; i < kScaleVectors; ++i) load_norm(i);
  }
  await_earlier();
  if constexpr (!kAlone) mix_weights.load(args.weights);
  int64_t pair = blockIdx.x;
  if (args.mixes_apart) {
    const int warps = kFinishRows * threads / kWarp;
    const int64_t turn = blockIdx.x / (warps + 1);
    const int in_turn = static_cast<int>(blockIdx.x % (warps + 1));
    if (in_turn == warps) {
      coefficients<kAtOnce>(args, mix_weights, (turn * warps + threadIdx.x / kWarp) * kFinishRows);
      return;
    }
    pair = turn * warps + in_turn;
  }
  const int64_t first_row = pair * kFinishRows;
  const int which = static_cast<int>(threadIdx.x) / threads;
  if (which == kFinishRows) {
    coefficients<kAtOnce>(args, mix_weights, first_row);
    return;
  }
  const int64_t row = first_row + which;
  if (row >= args.x.rows) return;
  Bf16* x = row_of(args.x, row);
  const float* const squares_of[1] = {args.partials + row * args.slices * kPartials + kOutSquares};
  uint4 raw[kScaleVectors];
#pragma unroll
  for (int i = 0; i < kScaleVectors; ++i) raw[i] = load8<kWhole>(x, first + i * threads, hidden);
  float squares[1];
  sum_slices<kAtOnce>(squares_of, args.slices, squares);
  const float inverse = inverse_rms(squares[0], hidden, args.options.norm_eps);
#pragma unroll
  for (int i = 0; i < kScaleVectors; ++i) {
    const int64_t vector = first + i * threads;
    if constexpr (!kAlone) load_norm(i);
    const uint4 result = normed(raw[i], inverse, norm_weights[i]);
    store8<kWhole>(x, vector, hidden, result);
    if constexpr (kMakesTiles) {  // half a warp has 128 channels: all of them or none
      const TileCodes codes = tile_codes(result);
      if (vector * 8 < hidden) store_codes(args.tiles, row, vector, codes);
    }
  }
}

int64_t slice_count(int64_t hidden) { return divide_up(hidden, kSlice); }

constexpr int64_t kFewRows = 1024;
constexpr int64_t kSumRows = 128;  // above, the sum of the experts is a launch of its own

template <class Form, bool kWhole>
void launch_pass(Stream stream, const PassArguments& args) {
  constexpr int64_t kBlocks = 132;  // one a processor
  const ProjectArguments& project = args.project;
  const int64_t blocks = divide_up(divide_up(project.x.rows, kTileRows), Form::kTeams);
  const int64_t parts = std::min(std::max<int64_t>(kBlocks / project.slices, 1), blocks);
  const Grid grid(dim3(static_cast<unsigned>(project.slices), static_cast<unsigned>(parts)),
                  Form::kWarps * kWarp, sizeof(PassShared<Form>));
  auto kernel = args.leave.y.data != nullptr ? pass_kernel<Form, kWhole, Leave::kSite>
                                             : pass_kernel<Form, kWhole, Leave::kNot>;
  if constexpr (kWhole && std::is_same_v<Form, FewRowsPass>) {
    if (args.leave.parts.rows.data != nullptr) {
      kernel = pass_kernel<Form, kWhole, Leave::kSumAndSite>;
    }
  }
  launch_kernel(kernel, grid, stream, args);
}

template <bool kWhole>
void launch_finish(Stream stream, const FinishArguments& args) {
  const int64_t pairs = divide_up(args.x.rows, kFinishRows);
  const int threads = args.row_threads * kFinishRows;
  constexpr int64_t kAloneRows = 264;  // one block a processor: only latency counts
  auto kernel = args.tiles.codes != nullptr ? finish_kernel<kWhole, true, 8>
                                            : finish_kernel<kWhole, false, 8>;
  if constexpr (kWhole) {
    if (args.x.rows <= kAloneRows) {
      kernel = args.tiles.codes != nullptr ? finish_kernel<kWhole, true, 32>
                                           : finish_kernel<kWhole, false, 32>;
    }
  }
  if (args.mixes_apart) {
    const int warps = threads / kWarp;
    launch_kernel(kernel, {divide_up(pairs, warps) * (warps + 1), threads}, stream, args);
  } else {
    launch_kernel(kernel, {pairs, threads + kWarp}, stream, args);
  }
}

template <bool kWhole>
void launch_both(Stream stream, const PassArguments& pass, const FinishArguments& finish) {
  if (pass.project.x.rows <= kFewRows) {
    launch_pass<FewRowsPass, kWhole>(stream, pass);
  } else {
    launch_pass<ManyRowsPass, kWhole>(stream, pass);
  }
  launch_finish<kWhole>(stream, finish);
}

}  // namespace

int64_t hc_enter_workspace_bytes(int64_t rows, int64_t hidden) {
  return rows * slice_count(hidden) * kPartials * static_cast<int64_t>(sizeof(float));
}

void hc_enter(Stream stream, const HcLeave& left, Rows<const Bf16> streams,
              const HcWeights& weights, const HcOptions& options, Rows<const float> carried,
              const Bf16* norm_weight, HcMix mix, Rows<Bf16> x, const InputTiles& tiles,
              void* workspace) {
  CHECK(tiles.codes == nullptr || x.cols % kChunk == 0);
  CHECK(options.streams == kStreams && streams.cols == kStreams * x.cols);
  CHECK(x.cols <= kHiddenMax);
  CHECK(left.y.data == nullptr || left.streams.data == streams.data);
  if (x.rows == 0) return;
  const int64_t slices = slice_count(x.cols);
  auto* partials = static_cast<float*>(workspace);
  const FinishArguments finish{.partials = partials,
                               .slices = slices,
                               .weights = weights,
                               .options = options,
                               .norm_weight = norm_weight,
                               .mix = mix,
                               .x = x,
                               .tiles = tiles,
                               .row_threads = row_threads(x.cols, kScaleVectors),
                               .mixes_apart = x.rows > kFewRows};
  const bool whole = is_whole_site(left, streams, weights, carried, norm_weight, x);
  PassArguments args{left, {streams, weights.fn, carried, x, partials, slices}};
  ExpertParts& parts = args.leave.parts;
  const bool sums = whole && x.rows <= kSumRows && is_whole(parts.rows) && is_whole(parts.shared);
  if (parts.rows.data != nullptr && !sums) {
    sum_experts(stream, parts, left.y);
    parts = {};
  }
  if (whole) {
    launch_both<true>(stream, args, finish);
  } else {
    launch_both<false>(stream, args, finish);
  }
}

}  // namespace galley::kernels::cuda
