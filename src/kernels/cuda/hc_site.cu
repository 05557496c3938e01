// The way of few rows from one hyper-connection site into the next, in as few launches as may be:
// the experts' sum, hc_leave, and hc_enter's projection, whose block has a slice of channels of all
// streams and so needs no other block; where a row is one slice, also what comes after it.
//
// All sums are those of the kernels for more rows, which hc_enter.cuh and hc_leave.cuh share with
// these: the same bits. Floor: launches, and the latency of one tile's way through the block.
#include "base/check.h"
#include "kernels/cuda/hc_enter.cuh"
#include "kernels/cuda/hc_leave.cuh"
#include "kernels/cuda/hc_site.h"
#include "kernels/cuda/ordered_launch.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int kRows = 8;                   // at most
constexpr int kSliceVectors = kSlice / 8;  // of 8 channels, a lane each
static_assert(kRows == kSiteRowsMax && kSliceVectors == kWarp && kRows <= kWarps);

struct SiteArguments {
  HcLeave leave;
  ProjectArguments project;
  FinishArguments finish;
};

struct SiteShared {
  uint4 streams[kStreams][kRows][kSliceVectors];
  uint4 x[kRows][kSliceVectors];
  float exchange[kExchangeFloats];
  uint4 lowest[kLowestBytes / 16];
  float sums[kRows][kPartials];
};

// A row's channels of this slice, behind the site that is left, a warp a row.
__device__ __forceinline__ void take_streams(const SiteArguments& args, SiteShared& shared) {
  const int row = threadIdx.x / kWarp;
  if (row >= kRows) return;
  const int lane = threadIdx.x % kWarp;
  const int64_t vector = int64_t{blockIdx.x} * kSliceVectors + lane;
  const int64_t hidden = args.project.x.cols;
  const HcLeave& leave = args.leave;
  uint4 raw[kStreams] = {};
  if (row < args.project.x.rows) {
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      raw[j] = load8<true>(row_of(args.project.streams, row) + j * hidden, vector, hidden);
    }
    if (leave.y.data != nullptr) {
      uint4 y;
      if (leave.parts.rows.data != nullptr) {
        y = combine8(leave.parts, row, vector);
        store8<true>(row_of(leave.y, row), vector, hidden, y);
      } else {
        y = load8<true>(row_of(leave.y, row), vector, hidden);
      }
      LeaveMix mix;
      mix.load(row_of(leave.comb, row), row_of(leave.post, row));
      leave8(mix, y, raw);
#pragma unroll
      for (int j = 0; j < kStreams; ++j) {
        store8<true>(row_of(leave.streams, row) + j * hidden, vector, hidden, raw[j]);
      }
    }
  }
#pragma unroll
  for (int j = 0; j < kStreams; ++j) shared.streams[j][row][lane] = raw[j];
}

// One warp's products of the tile: warps 2 g and 2 g + 1 have group g.
template <bool kAlone>
__device__ __forceinline__ void project_tile(const SiteArguments& args, const Weights& weights,
                                             SiteShared& shared) {
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int group = warp / kGroupWarps;
  const int row = lane / 4;
  const int in_slice = group * (kGroup / 8) + lane % 4;
  Tile tile = {};
#pragma unroll
  for (int j = 0; j < kStreams; ++j) tile.raw[j][0] = shared.streams[j][row][in_slice];
  Sums sums;
#pragma unroll
  for (int j = 0; j < kStreams; ++j) multiply_stream(tile.raw[j], weights.piece[j], sums);
  if (warp % kGroupWarps != 0) {
    multiply_lowest(tile, shared.lowest + group * (kStreams * kTiles * kWarp), sums);
    add_squares(tile, sums);
  } else {
    float pi[kStreams];
    const float* carried = row_of(args.project.carried, min(int64_t{row}, args.project.x.rows - 1));
#pragma unroll
    for (int j = 0; j < kStreams; ++j) pi[j] = carried[j];
    const uint4 x = collapse_half(tile, 0, pi);
    sums.squares[0] = square_sum(widen8(x));
    if constexpr (kAlone) {
      shared.x[row][in_slice] = x;
    } else if (row < args.project.x.rows) {
      store8<true>(row_of(args.project.x, row), int64_t{blockIdx.x} * kSliceVectors + in_slice,
                   args.project.x.cols, x);
    }
  }
  store_sums(sums, shared.exchange + warp * kTileRows * kExchangePitch);
}

// Mixes by the first warps, two rows each; rows of x by others.
__device__ __forceinline__ void finish_rows(const SiteArguments& args, const SiteShared& shared) {
  const FinishArguments& finish = args.finish;
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int64_t rows = finish.x.rows;
  constexpr int kMixWarps = kRows / kFinishRows;
  static_assert(kMixWarps + kRows <= kWarps);
  if (warp < kMixWarps) {
    const int64_t first = int64_t{warp} * kFinishRows;
    if (first >= rows) return;
    float sum[kFinishRows];
#pragma unroll
    for (int r = 0; r < kFinishRows; ++r) {
      sum[r] = 0.0F + shared.sums[min(first + r, rows - 1)][lane];
    }
    write_mixes(finish, first, sum);
    return;
  }
  const int64_t row = warp - kMixWarps;
  if (row >= rows) return;
  const int64_t hidden = finish.x.cols;
  const float squares = 0.0F + shared.sums[row][kOutSquares];
  const float inverse = inverse_rms(squares, hidden, finish.options.norm_eps);
  const uint4 weight = load8<true>(finish.norm_weight, lane, hidden);
  store8<true>(row_of(finish.x, row), lane, hidden, normed(shared.x[row][lane], inverse, weight));
}

// kAlone: a row is one slice, which this block finishes; else finish_kernel does.
template <bool kAlone>
__global__ void __launch_bounds__(kWarps* kWarp, 1)
    site_kernel(const __grid_constant__ SiteArguments args) {
  extern __shared__ __align__(16) uint8_t shared_bytes[];
  SiteShared& shared = *reinterpret_cast<SiteShared*>(shared_bytes);
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int group = warp / kGroupWarps;
  Weights weights;
  load_weights<true>(args.project, int64_t{blockIdx.x} * kSlice + group * kGroup,
                     warp % kGroupWarps == 0, weights,
                     shared.lowest + group * (kStreams * kTiles * kWarp));
  await_earlier();
  take_streams(args, shared);
  __syncthreads();
  project_tile<kAlone>(args, weights, shared);
  __syncthreads();
  if (warp < kRows && warp < args.project.x.rows && lane <= kOutSquares) {
    const float total = group_total(shared.exchange, warp, lane);
    if constexpr (kAlone) {
      shared.sums[warp][lane] = total;
    } else {
      args.project.partials[(warp * args.project.slices + blockIdx.x) * kPartials + lane] = total;
    }
  }
  if constexpr (kAlone) {
    __syncthreads();
    finish_rows(args, shared);
  }
}

}  // namespace

void hc_site(Stream stream, const HcLeave& leave, Rows<const Bf16> streams,
             const HcWeights& weights, const HcOptions& options, Rows<const float> carried,
             const Bf16* norm_weight, HcMix mix, Rows<Bf16> x, void* workspace) {
  CHECK(hc_site_supports(streams, weights, options, norm_weight, x));
  CHECK(leave.y.data == nullptr || (is_whole(leave.y) && leave.streams.data == streams.data));
  const int64_t slices = divide_up(x.cols, kSlice);
  auto* partials = static_cast<float*>(workspace);
  const SiteArguments args{leave,
                           {streams, weights.fn, carried, x, partials, slices},
                           {partials, slices, weights, options, norm_weight, mix, x,
                            row_threads(x.cols, kScaleVectors)}};
  const Grid grid(slices, kWarps * kWarp, sizeof(SiteShared));
  if (slices == 1) {
    launch_kernel(site_kernel<true>, grid, stream, args);
  } else {
    launch_kernel(site_kernel<false>, grid, stream, args);
    hc_finish(stream, args.finish);
  }
}

bool hc_site_supports(Rows<const Bf16> streams, const HcWeights& weights, const HcOptions& options,
                      const Bf16* norm_weight, Rows<const Bf16> x) {
  return options.streams == kStreams && x.rows <= kSiteRowsMax && x.cols <= kHiddenMax &&
         is_whole(streams) && is_whole(x) && x.cols % 8 == 0 && is_whole(weights.fn, x.cols) &&
         is_whole(norm_weight, x.cols);
}

}  // namespace galley::kernels::cuda
