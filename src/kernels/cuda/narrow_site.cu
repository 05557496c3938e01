// The way of rows of a narrow model (hidden up to 256) from one hyper-connection site into the
// next, without the mixes of the one that is entered.
//
// Floor: a launch, and the latency of one tile's way through the block. hc_site.cu's kernel, whose
// sums these are, to the bit, takes 8.4 us of a step of 256 rows, of which the mixes are some
// three: Sinkhorn is forty divisions behind each other, and the next site alone reads what comes of
// it. So a block leaves the sums of its 8 rows in memory, and the launch after next (products of
// the query, or gate and up) has blocks that make the mixes beside its own work (site_mixes.cuh).
// Then it takes 3.7 us, and that launch 0.6 to 0.9 more; in a launch of their own mixes take 4.4.
//
// A warp has a group of 32 channels of eight rows, from the loads to the stores. One barrier.
#include "base/check.h"
#include "kernels/cuda/hc_enter.cuh"
#include "kernels/cuda/hc_leave.cuh"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/site_mixes.cuh"
#include "kernels/cuda/site_mixes.h"

namespace galley::kernels::cuda {
namespace {

constexpr int kGroups = 8;
constexpr int kThreads = kGroups * kWarp;
constexpr int kRows = 8;
constexpr int64_t kRowsMax = 256;
constexpr int kSlices = (kGroups + kSliceGroups - 1) / kSliceGroups;
constexpr int kExchangePitch = 28;  // floats a row: 24 sums, two squares

struct NarrowSite {
  HcLeave leave;
  ProjectArguments project;
  const Bf16* norm_weight;
  float norm_eps;
};

struct NarrowShared {
  uint4 weights[kGroups * kGroupPieces];
  float exchange[kGroups][kRows][kExchangePitch];
};

// The sum of one row's groups of a slice.
__device__ __forceinline__ float slice_sum(const NarrowShared& shared, int row, int slice,
                                           int index) {
  float total = 0.0F;
#pragma unroll
  for (int g = 0; g < kSliceGroups; ++g) {
    const int group = slice * kSliceGroups + g;
    if (group < kGroups) total += shared.exchange[group][row][index];
  }
  return total;
}

__global__ void __launch_bounds__(kThreads, 1)
    narrow_site_kernel(const __grid_constant__ NarrowSite args) {
  extern __shared__ __align__(128) uint8_t shared_bytes[];
  NarrowShared& shared = *reinterpret_cast<NarrowShared*>(shared_bytes);
  const ProjectArguments& project = args.project;
  const HcLeave& leave = args.leave;
  const int64_t hidden = project.x.cols;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int in_tile = lane / 4;
  const int64_t vector = warp * kGroupVectors + lane % 4;
  const int64_t first_row = int64_t{blockIdx.x} * kRows;
  const int64_t row = first_row + in_tile;
  const bool inside = row < project.x.rows;
  const int64_t from = inside ? row : project.x.rows - 1;
  uint4* weights = shared.weights + warp * kGroupPieces;
  // Constant: before the wait.
  const uint4 norm_weight = load8<true>(args.norm_weight, vector, hidden);
  {
    Float8 w[kStreams][kTiles];
#pragma unroll
    for (int i = 0; i < kStreams * kTiles; ++i) {
      w[i / kTiles][i % kTiles] =
          load_weights<true>(project, warp * kGroup, i / kTiles, i % kTiles);
    }
#pragma unroll
    for (int i = 0; i < kStreams * kTiles; ++i) {
      store_weights(w[i / kTiles][i % kTiles], weights, i / kTiles, i % kTiles);
    }
  }
  await_earlier();

  uint4 streams[kStreams];
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    streams[j] = load8<true>(row_of(project.streams, from) + j * hidden, vector, hidden);
  }
  const float4 pi = *reinterpret_cast<const float4*>(row_of(project.carried, from));
  if (leave.y.data != nullptr) {
    LeaveMix mix;
    mix.load_whole(row_of(leave.comb, from), row_of(leave.post, from));
    const bool sums = leave.parts.rows.data != nullptr;
    const uint4 y = sums ? combine8(leave.parts, from, vector)
                         : load8<true>(row_of(leave.y, from), vector, hidden);
    leave8(mix, y, streams);
    if (inside) {
#pragma unroll
      for (int j = 0; j < kStreams; ++j) {
        store8<true>(row_of(leave.streams, row) + j * hidden, vector, hidden, streams[j]);
      }
      if (sums) store8<true>(row_of(leave.y, row), vector, hidden, y);
    }
  }
  Tile tile = {};
#pragma unroll
  for (int j = 0; j < kStreams; ++j) tile.raw[j][0] = streams[j];
  GroupSums sums;
  const uint4 x = collapse_half(tile, 0, {pi.x, pi.y, pi.z, pi.w});
  add_squares(tile, 0, x, sums);
  multiply_group(tile, weights, sums);
  float* to = shared.exchange[warp][in_tile];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    *reinterpret_cast<float2*>(to + 8 * t + lane % 4 * 2) = {sums.mix(t, 0), sums.mix(t, 1)};
  }
  if (lane % 4 == 0) {
    *reinterpret_cast<float2*>(to + kSquares) = {sums.squares[0], sums.out_squares[0]};
  }
  __syncthreads();

  float squares = 0.0F;
#pragma unroll
  for (int slice = 0; slice < kSlices; ++slice) {
    squares += slice_sum(shared, in_tile, slice, kOutSquares);
  }
  const float inverse = inverse_rms(squares, hidden, args.norm_eps);
  if (inside) {
    store8<true>(row_of(project.x, row), vector, hidden, normed(x, inverse, norm_weight));
  }
  // What the mixes are made of: a warp a row.
  const int64_t own = first_row + warp;
  if (own >= project.x.rows || lane > kSquares) return;
  const int64_t slices = project.slices;
#pragma unroll
  for (int slice = 0; slice < kSlices; ++slice) {
    if (slice >= slices) break;
    project.partials[(own * slices + slice) * kPartials + lane] =
        slice_sum(shared, warp, slice, lane);
  }
}

__global__ void __launch_bounds__(kThreads) mixes_kernel(const __grid_constant__ SiteMixes mixes) {
  make_site_mixes(mixes, int64_t{blockIdx.x} * kGroups + threadIdx.x / kWarp,
                  int64_t{gridDim.x} * kGroups);
}

}  // namespace

void site_mixes(Stream stream, const SiteMixes& mixes) {
  const int64_t blocks = divide_up(mixes.rows, kFinishRows * kGroups);
  launch_kernel(mixes_kernel, {blocks, kThreads}, stream, mixes);
}

bool narrow_site_supports(Rows<const Bf16> x) {
  return x.cols <= kGroups * kGroup && x.rows > 1 && x.rows <= kRowsMax;
}

void narrow_site(Stream stream, const HcLeave& leave, Rows<const Bf16> streams,
                 const HcWeights& weights, const HcOptions& options, Rows<const float> carried,
                 const Bf16* norm_weight, Rows<Bf16> x, float* sums) {
  CHECK(narrow_site_supports(x) && options.streams == kStreams &&
        is_whole_site(leave, streams, weights, carried, norm_weight, x));
  CHECK(leave.y.data == nullptr || leave.streams.data == streams.data);
  const NarrowSite args{.leave = leave,
                        .project = {.streams = streams,
                                    .fn = weights.fn,
                                    .carried = carried,
                                    .x = x,
                                    .partials = sums,
                                    .slices = divide_up(x.cols, kSlice)},
                        .norm_weight = norm_weight,
                        .norm_eps = options.norm_eps};
  launch_kernel(narrow_site_kernel, {divide_up(x.rows, kRows), kThreads, sizeof(NarrowShared)},
                stream, args);
}

}  // namespace galley::kernels::cuda
