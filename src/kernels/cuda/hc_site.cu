// The way of few rows from one hyper-connection site into the next in one launch: the experts' sum,
// hc_leave, and all of hc_enter. Or the mixes of a site alone.
//
// Floor: a launch, and the latency of one tile's way through the block; the weights, 2 MB at the
// released width, are asked for before the wait for earlier kernels.
//
// A cluster of blocks has a tile of 8 rows (half of what mma multiplies: only latency counts), a
// block two slices of its channels, a warp a group of them, from the loads to the stores: streams
// and x stay in registers. Blocks push a slice's sums into the shared memory of those that need
// them: 25 to the one that makes the row's mixes, the squares of x to all, which scale their part
// of x. One barrier of the cluster in all. Mixes are made by further warps, two rows each, beside
// the scaling. All sums are those of hc_enter.cu, in the same order: the same bits.
//
// Q8 of x wants the largest exponent of 128 channels, and a block's 320 are two and a half times as
// many: blocks in pairs give each other 64 channels of x, not yet scaled, with the sums, and two
// warps scale the neighbour's for their exponents. So there is no second barrier.
//
// Measured on an H200, one behind the other, with Q8: 8.7 us for up to 4 rows, 9.0 for 16, 9.8 for
// 32, 10.5 for 48; with the sum of six released experts 9.4, 9.8, 10.9 and 11.7, where three
// launches took 12.8, 13.7, 14.0 and 14.6. Without Q8 0.3 less. Some 1.7 us of it are Sinkhorn, one
// division behind the other; asking each of them whether it is an ordinary one was another 0.4
// (hc_leave and two launches of hc_enter before: 15 to 16; this file's two launches, up to 8 rows:
// 11.6). hc_enter.cu's two launches now take 9.4 to 11.5. Seven clusters of 16 are in work at a
// time; tiles of 16 rows (12.2 us for 64, 12.7 for 96) are behind hc_enter.cu, and so was a version
// that went through many tiles and read the next one ahead: 8.4 us a tile, 1,240 for 16,384 rows.
// Of ten warps with 2,000 instructions a tile most time is latency.
//
// In a step it costs 10.7 us, 11.7 with the experts' sum: its blocks want a multiprocessor each, so
// weights are asked for once the kernel in front is over. But x does not need the projection, whose
// mixes only the next site reads: of up to 16 rows leaving, x and Q8 are a launch of small blocks
// (hc_site_x.cu: 2.4 us, 3.1 with the sum, wherever they are), and the mixes one of this file,
// 9.5 us beside something else (held_site.h). Where that is decides what it is worth. Beside the
// products that follow, which want all multiprocessors, a step of one sequence took 5.79 ms instead
// of 5.94. Those of sites behind attention beside router and shared expert: 5.70 instead of 5.85;
// the others beside attention too, which leaves most of the card idle up to 8 rows: 5.45. Of four
// sequences 8.46 instead of 8.85, of eight 12.1 instead of 12.4, of 16 17.1 instead of 17.4; of 32
// as long as before.
#include <array>

#include "base/check.h"
#include "kernels/cuda/cluster_push.cuh"
#include "kernels/cuda/hc_enter.cuh"
#include "kernels/cuda/hc_leave.cuh"
#include "kernels/cuda/hc_site.h"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/sm90.cuh"
#include "kernels/cuda/tile_codes.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int kBlockSlices = 2;
constexpr int kBlockGroups = kBlockSlices * kSliceGroups;
constexpr int kBlockChannels = kBlockSlices * kSlice;
constexpr int kClusterMax = 16;  // above 8 where the device lets a kernel have so many
constexpr int kSlicesMax = kClusterMax * kBlockSlices;
constexpr int kSquaresPitch = kSlicesMax + 4;  // so that rows meet different banks
// Rows whose mixes a block makes, times slices: ceil(pairs / blocks) * 2 * 2 * blocks.
constexpr int kSumsMax = 64;
constexpr int kExchangePitch = 28;  // floats a row: 24 sums, two squares
constexpr int kMixFloats = kStreams * kStreams + 2 * kStreams;  // comb, post, carried

constexpr int kMixWarps = 4;
constexpr int kSiteThreads = (kBlockGroups + kMixWarps) * kWarp;
constexpr int kRows = 8;  // of a cluster

// A block's ten groups of 32 and two of its neighbour (block index ^ 1) are three chunks of 128:
// those of even blocks come first, the neighbour's behind them.
constexpr int kChunkGroups = kChunk / kGroup;
constexpr int kSharedGroups = kChunkGroups - kBlockGroups % kChunkGroups;
constexpr int kBlockChunks = (kBlockGroups + kSharedGroups) / kChunkGroups;
static_assert(kSharedGroups == 2 && kBlockChunks == 3 && kSharedGroups <= kMixWarps);

struct SiteArguments {
  HcLeave leave;
  ProjectArguments project;
  FinishArguments finish;
  bool mixes_alone;  // x is not wanted: its rows and columns alone count
};

struct SiteShared {
  uint4 weights[kBlockGroups * kGroupPieces];
  float exchange[kBlockGroups][kRows][kExchangePitch];
  float sums[kSumsMax][kPartials];  // what other blocks push
  float out_squares[kRows][kSquaresPitch];
  float mix[kRows][kMixFloats];  // what rows are left with
  // Of Q8: the neighbour's x of the chunk that is half this block's, and the groups' exponents.
  uint4 neighbour[kSharedGroups][kWarp];
  int4 exponents[kBlockChunks][kRows];
};
static_assert(sizeof(SiteShared) <= 227 * 1024);

struct Site {
  const SiteArguments& args;
  SiteShared& shared;
  int64_t first_row;

  // What a lane reads of a tile.
  struct Loaded {
    uint4 streams[kStreams];
    uint4 y;
  };

  __device__ __forceinline__ int64_t vector() const {
    return int64_t{blockIdx.x} * (kBlockChannels / 8) +
           static_cast<int>(threadIdx.x) / kWarp * kGroupVectors + threadIdx.x % 4;
  }
  __device__ __forceinline__ int in_tile() const {
    return static_cast<int>(threadIdx.x) % kWarp / 4;
  }

  // Rows past the end are the last one, again.
  __device__ __forceinline__ void load(Loaded& loaded) const {
    const ProjectArguments& project = args.project;
    const HcLeave& leave = args.leave;
    const int64_t hidden = project.x.cols;
    const int64_t from = min(first_row + in_tile(), project.x.rows - 1);
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      loaded.streams[j] = load8<true>(row_of(project.streams, from) + j * hidden, vector(), hidden);
    }
    if (leave.parts.rows.data != nullptr) {
      loaded.y = combine8(leave.parts, from, vector());
    } else if (leave.y.data != nullptr) {
      loaded.y = load8<true>(row_of(leave.y, from), vector(), hidden);
    }
  }

  // By a warp.
  __device__ __forceinline__ void load_mixes() const {
    constexpr int kPieces = kMixFloats / 4;
#pragma unroll
    for (int item = threadIdx.x % kWarp; item < kRows * kPieces; item += kWarp) {
      const int64_t row = min(first_row + item / kPieces, args.project.x.rows - 1);
      const int piece = item % kPieces;
      const float* from = nullptr;
      if (args.mixes_alone) {
        continue;
      } else if (piece == kPieces - 1) {
        from = row_of(args.project.carried, row);
      } else if (args.leave.y.data == nullptr) {
        continue;
      } else {
        from = piece < kStreams ? row_of(args.leave.comb, row) + piece * 4
                                : row_of(args.leave.post, row);
      }
      *reinterpret_cast<float4*>(&shared.mix[item / kPieces][piece * 4]) =
          *reinterpret_cast<const float4*>(from);
    }
  }

  // One warp's part of the rows leaves and is collapsed.
  __device__ __forceinline__ uint4 leave_and_collapse(Loaded& loaded, Tile& tile,
                                                      GroupSums& sums) const {
    const HcLeave& leave = args.leave;
    const int64_t hidden = args.project.x.cols;
    const int64_t row = first_row + in_tile();
    const float* mixes = shared.mix[in_tile()];
    if (leave.y.data != nullptr) {
      LeaveMix mix;
      mix.load_whole(mixes, mixes + kStreams * kStreams);
      leave8(mix, loaded.y, loaded.streams);
      if (row < args.project.x.rows) {
#pragma unroll
        for (int j = 0; j < kStreams; ++j) {
          store8<true>(row_of(leave.streams, row) + j * hidden, vector(), hidden,
                       loaded.streams[j]);
        }
        if (leave.parts.rows.data != nullptr) {
          store8<true>(row_of(leave.y, row), vector(), hidden, loaded.y);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kStreams; ++j) tile.raw[j][0] = loaded.streams[j];
    if (args.mixes_alone) {
      add_squares(tile, 0, {}, sums);
      return {};
    }
    const float4 pi = *reinterpret_cast<const float4*>(mixes + kMixFloats - kStreams);
    const uint4 x = collapse_half(tile, 0, {pi.x, pi.y, pi.z, pi.w});
    add_squares(tile, 0, x, sums);
    return x;
  }

  __device__ __forceinline__ void store_sums(const GroupSums& sums) const {
    const int lane = threadIdx.x % kWarp;
    float* to = shared.exchange[threadIdx.x / kWarp][in_tile()];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      *reinterpret_cast<float2*>(to + 8 * t + lane % 4 * 2) = {sums.mix(t, 0), sums.mix(t, 1)};
    }
    if (lane % 4 == 0) {
      *reinterpret_cast<float2*>(to + kSquares) = {sums.squares[0], sums.out_squares[0]};
    }
  }

  // Adds up the groups of slices and hands the sums out; a warp a row and slice.
  __device__ __forceinline__ void push_sums() const {
    const int lane = threadIdx.x % kWarp;
    const uint32_t blocks = gridDim.x;
#pragma unroll 1
    for (int item = threadIdx.x / kWarp; item < kRows * kBlockSlices; item += kBlockGroups) {
      const int row = item / kBlockSlices;
      const int in_block = item % kBlockSlices;
      float total = 0.0F;
#pragma unroll
      for (int g = 0; g < kSliceGroups; ++g) {
        total += shared.exchange[in_block * kSliceGroups + g][row][min(lane, kOutSquares)];
      }
      const int slice = static_cast<int>(blockIdx.x) * kBlockSlices + in_block;
      const float squares = from_lane(total, kOutSquares);
      const uint32_t pair = row / kFinishRows;
      const uint32_t place = pair / blocks * kFinishRows + row % kFinishRows;
      if (lane <= kSquares) {
        const uint32_t slices = blocks * kBlockSlices;
        push(&shared.sums[place * slices + slice][lane], pair % blocks, total);
      }
      if (lane < static_cast<int>(blocks)) {
        push(&shared.out_squares[row][slice], lane, squares);
      }
    }
  }

  __device__ __forceinline__ bool makes_tiles() const { return args.finish.tiles.codes != nullptr; }
  __device__ __forceinline__ bool is_odd() const { return blockIdx.x % 2 != 0; }

  // What the neighbour needs of x, not yet scaled, to know the scale of a chunk that is half its.
  __device__ __forceinline__ void push_shared_groups(uint4 x) const {
    const int group = static_cast<int>(threadIdx.x) / kWarp;
    const int which = is_odd() ? group : group - (kBlockGroups - kSharedGroups);
    const uint32_t neighbour = blockIdx.x ^ 1U;
    if (which < 0 || which >= kSharedGroups || neighbour >= gridDim.x) return;
    push(&shared.neighbour[which][threadIdx.x % kWarp], neighbour, x);
  }

  // Of this lane's row, once all squares are there. Slices past the row's end add zeros.
  __device__ __forceinline__ float inverse() const {
    float squares = 0.0F;
#pragma unroll 8
    for (uint32_t slice = 0; slice < gridDim.x * kBlockSlices; slice += 2) {
      const float2 two = *reinterpret_cast<const float2*>(&shared.out_squares[in_tile()][slice]);
      squares = (squares + two.x) + two.y;
    }
    return inverse_rms(squares, args.finish.x.cols, args.finish.options.norm_eps);
  }

  // Group `slot` of the three chunks is this warp's.
  __device__ __forceinline__ void tell_exponent(int slot, int exponent) const {
    if (threadIdx.x % 4 != 0) return;
    auto* row = reinterpret_cast<int*>(&shared.exponents[slot / kChunkGroups][in_tile()]);
    row[slot % kChunkGroups] = exponent;
  }
  static constexpr int kExponentThreads = (kBlockGroups + kSharedGroups) * kWarp;

  // One warp's part of x.
  __device__ __forceinline__ void scale(uint4 x, uint4 weight) const {
    if (args.mixes_alone) return;
    const FinishArguments& finish = args.finish;
    const int64_t row = first_row + in_tile();
    const bool inside = row < finish.x.rows;
    const uint4 result = normed(x, inverse(), weight);
    if (inside) store8<true>(row_of(finish.x, row), vector(), finish.x.cols, result);
    if (!makes_tiles()) return;
    const Float8 values = widen8(result);
    const int exponent = group_exponent(values);
    const int slot = static_cast<int>(threadIdx.x) / kWarp + (is_odd() ? kSharedGroups : 0);
    tell_exponent(slot, exponent);
    asm volatile("bar.sync 2, %0;" ::"n"(kExponentThreads) : "memory");
    const int4 four = shared.exponents[slot / kChunkGroups][in_tile()];
    const int base = max(max(four.x, four.y), max(four.z, four.w));
    if (inside && vector() * 8 < finish.x.cols) {
      store_codes(finish.tiles, row, vector(), codes_of(values, exponent, base));
    }
  }

  // A group of the neighbour's, by one of the last warps: its exponents alone.
  __device__ __forceinline__ int64_t shared_vector(int which) const {
    const int64_t group = int64_t{blockIdx.x} * kBlockGroups + which;
    return (group + (is_odd() ? -kSharedGroups : kBlockGroups)) * kGroupVectors + threadIdx.x % 4;
  }
  __device__ __forceinline__ void scale_shared_group(int which, uint4 weight) const {
    uint4 x = {};
    if ((blockIdx.x ^ 1U) < gridDim.x) x = shared.neighbour[which][threadIdx.x % kWarp];
    const int slot = which + (is_odd() ? 0 : kBlockGroups);
    tell_exponent(slot, group_exponent(widen8(normed(x, inverse(), weight))));
    asm volatile("bar.arrive 2, %0;" ::"n"(kExponentThreads) : "memory");
  }

  // The mixes of this block's pairs of rows.
  __device__ __forceinline__ void make_mixes(const MixWeights& weights) const {
    const int lane = threadIdx.x % kWarp;
    const int blocks = static_cast<int>(gridDim.x);
    const int slices = blocks * kBlockSlices;
    for (int turn = static_cast<int>(threadIdx.x) / kWarp - kBlockGroups;; turn += kMixWarps) {
      const int pair = static_cast<int>(blockIdx.x) + turn * blocks;
      const int64_t at = first_row + pair * kFinishRows;
      if (pair * kFinishRows >= kRows || at >= args.finish.x.rows) return;
      const float* from = shared.sums[turn * kFinishRows * slices] + lane;
      float sum[kFinishRows] = {};
#pragma unroll 8
      for (int slice = 0; slice < slices; ++slice) {
#pragma unroll
        for (int r = 0; r < kFinishRows; ++r) sum[r] += from[(r * slices + slice) * kPartials];
      }
      write_mixes(args.finish, weights, at, sum);
    }
  }
};

// Block x of cluster y, which has a tile.
__global__ void __launch_bounds__(kSiteThreads, 1)
    site_kernel(const __grid_constant__ SiteArguments args) {
  extern __shared__ __align__(128) uint8_t shared_bytes[];
  SiteShared& shared = *reinterpret_cast<SiteShared*>(shared_bytes);
  cluster_arrive_apart();  // so that nobody pushes into a block that has not begun
  const int warp = threadIdx.x / kWarp;
  const bool has_group = warp < kBlockGroups;
  const int shares = warp - (kBlockGroups + kMixWarps - kSharedGroups);  // a group, from 0 on
  uint4* weights = shared.weights + warp * kGroupPieces;
  uint4 norm_weight = {};
  MixWeights mix_weights = {};
  const Site site{args, shared, int64_t{blockIdx.y} * kRows};
  if (has_group) {  // constant: before the wait
    if (!args.mixes_alone) {
      norm_weight = load8<true>(args.finish.norm_weight, site.vector(), args.project.x.cols);
    }
    const int64_t channel = int64_t{blockIdx.x} * kBlockChannels + warp * kGroup;
    Float8 w[kStreams][kTiles];  // all under way before the first is stored
#pragma unroll
    for (int i = 0; i < kStreams * kTiles; ++i) {
      w[i / kTiles][i % kTiles] = load_weights<true>(args.project, channel, i / kTiles, i % kTiles);
    }
#pragma unroll
    for (int i = 0; i < kStreams * kTiles; ++i) {
      store_weights(w[i / kTiles][i % kTiles], weights, i / kTiles, i % kTiles);
    }
  } else {
    mix_weights.load(args.finish.weights);
    if (shares >= 0 && site.makes_tiles()) {
      norm_weight =
          load8<true>(args.finish.norm_weight, site.shared_vector(shares), args.project.x.cols);
    }
  }
  await_earlier();
  Site::Loaded loaded = {};
  if (has_group) {
    site.load(loaded);
  } else if (warp == kBlockGroups) {
    site.load_mixes();
  }
  cluster_wait_apart();
  __syncthreads();  // the mixes
  if (!has_group) {
    cluster_arrive_apart();
    cluster_wait_apart();
    if (shares >= 0 && site.makes_tiles()) site.scale_shared_group(shares, norm_weight);
    site.make_mixes(mix_weights);
    return;
  }
  Tile tile = {};
  GroupSums sums;
  const uint4 x = site.leave_and_collapse(loaded, tile, sums);
  if (site.makes_tiles()) site.push_shared_groups(x);
  multiply_group(tile, weights, sums);
  site.store_sums(sums);
  asm volatile("bar.sync 1, %0;" ::"n"(kBlockGroups * kWarp) : "memory");
  site.push_sums();
  cluster_arrive_apart();
  cluster_wait_apart();
  site.scale(x, norm_weight);
}

// Clusters of so many blocks that the device runs at a time; 0: none.
struct Concurrency {
  std::array<int, kClusterMax + 1> clusters = {};

  Concurrency() {
    const auto allow = [](auto kernel) {
      return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  sizeof(SiteShared)) == cudaSuccess &&
             cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) ==
                 cudaSuccess;
    };
    if (!allow(site_kernel)) return;
    for (int size = 1; size <= kClusterMax; ++size) {
      cudaLaunchAttribute cluster = {};
      cluster.id = cudaLaunchAttributeClusterDimension;
      cluster.val.clusterDim.x = static_cast<unsigned>(size);
      cluster.val.clusterDim.y = 1;
      cluster.val.clusterDim.z = 1;
      cudaLaunchConfig_t config = {};
      config.gridDim = dim3(static_cast<unsigned>(size));
      config.blockDim = dim3(kSiteThreads);
      config.dynamicSmemBytes = sizeof(SiteShared);
      config.attrs = &cluster;
      config.numAttrs = 1;
      int count = 0;
      if (cudaOccupancyMaxActiveClusters(&count, site_kernel, &config) == cudaSuccess) {
        clusters[static_cast<size_t>(size)] = count;
      }
    }
    cudaGetLastError();  // what a device lacks is no error
  }
};

int64_t clusters_at_once(int64_t size) {
  static const Concurrency concurrency;
  return size <= kClusterMax ? concurrency.clusters[static_cast<size_t>(size)] : 0;
}

void launch_site(Stream stream, const HcLeave& leave, Rows<const Bf16> streams,
                 const HcWeights& weights, const HcOptions& options, Rows<const float> carried,
                 const Bf16* norm_weight, const HcMix& mix, Rows<Bf16> x, const InputTiles& tiles,
                 bool mixes_alone) {
  const int64_t slices = divide_up(x.cols, kSlice);
  const int64_t blocks = divide_up(x.cols, kBlockChannels);
  const SiteArguments args{.leave = leave,
                           .project = {.streams = streams,
                                       .fn = weights.fn,
                                       .carried = carried,
                                       .x = x,
                                       .partials = nullptr,
                                       .slices = slices},
                           .finish = {.partials = nullptr,
                                      .slices = slices,
                                      .weights = weights,
                                      .options = options,
                                      .norm_weight = norm_weight,
                                      .mix = mix,
                                      .x = x,
                                      .tiles = tiles,
                                      .row_threads = 0,
                                      .mixes_apart = false},
                           .mixes_alone = mixes_alone};
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(divide_up(x.rows, kRows)));
  launch_kernel(site_kernel,
                {grid, kSiteThreads, sizeof(SiteShared), static_cast<uint32_t>(blocks)}, stream,
                args);
}

}  // namespace

void hc_site(Stream stream, const HcLeave& leave, Rows<const Bf16> streams,
             const HcWeights& weights, const HcOptions& options, Rows<const float> carried,
             const Bf16* norm_weight, HcMix mix, Rows<Bf16> x, const InputTiles& tiles) {
  CHECK(tiles.codes == nullptr || x.cols % kChunk == 0);
  CHECK(hc_site_supports(leave, streams, weights, options, carried, norm_weight, x));
  CHECK(leave.y.data == nullptr || leave.streams.data == streams.data);
  launch_site(stream, leave, streams, weights, options, carried, norm_weight, mix, x, tiles, false);
}

void hc_site_mixes(Stream stream, const LateMixes& site) {
  const Rows<Bf16> x(nullptr, site.streams.rows, site.streams.cols / kStreams);
  launch_site(stream, {}, site.streams, site.weights, site.options, {}, nullptr, site.mix, x, {},
              true);
}

bool hc_site_supports(const HcLeave& leave, Rows<const Bf16> streams, const HcWeights& weights,
                      const HcOptions& options, Rows<const float> carried, const Bf16* norm_weight,
                      Rows<const Bf16> x) {
  return options.streams == kStreams &&
         is_whole_site(leave, streams, weights, carried, norm_weight, x) &&
         divide_up(x.rows, kRows) <= clusters_at_once(divide_up(x.cols, kBlockChannels));
}

}  // namespace galley::kernels::cuda
