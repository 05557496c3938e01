// The part of a site that is on the way of a step of few rows: leaving the site before, x, and its
// Q8. What the next site needs besides, the mixes, is hc_site_mixes (hc_site.cu) on a second
// stream.
//
// Floor: a launch, a read of 50 KB a row, one exchange in a cluster. Measured on an H200, alone or
// behind a kernel that fills the card: 2.4 us up to 8 rows, 2.6 for 16, 3.0 for 32; with the sum of
// six experts 3.0, 3.2 and 3.7 (hc_site.cu, which makes the mixes too: 10.7 to 12).
//
// A cluster of blocks has a row, a thread eight channels of all streams, which stay in registers
// from the loads to the stores. Squares of x are sums of 32 channels, of five of those, and of all
// slices, in the order of hc_enter.cu, from sums that every block tells all others: the same bits.
#include "base/check.h"
#include "kernels/cuda/cluster_push.cuh"
#include "kernels/cuda/hc_enter.cuh"
#include "kernels/cuda/hc_leave.cuh"
#include "kernels/cuda/hc_site.h"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/tile_codes.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kBlockChannels = kThreads * 8;
constexpr int kClusterMax = 8;
constexpr int kSlicesMax = 64;
constexpr int kBlockGroups = kBlockChannels / kGroup;
static_assert(kClusterMax * kBlockGroups <= kSlicesMax * kSliceGroups);

struct SiteX {
  HcLeave leave;
  Rows<const Bf16> streams;
  Rows<const float> carried;
  const Bf16* norm_weight;
  float eps;
  Rows<Bf16> x;
  InputTiles tiles;
};

// Block x of cluster y, which has row y.
__global__ void __launch_bounds__(kThreads) site_x_kernel(const __grid_constant__ SiteX args) {
  __shared__ float groups[kSlicesMax * kSliceGroups];  // squares of x
  __shared__ __align__(16) float slices[kThreads / kWarp][kSlicesMax];
  cluster_arrive_apart();  // so that nobody pushes into a block that has not begun
  const HcLeave& leave = args.leave;
  const int64_t hidden = args.x.cols;
  const int64_t row = blockIdx.y;
  const int64_t vector = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int lane = threadIdx.x % kWarp;
  const uint4 norm_weight = load8<true>(args.norm_weight, vector, hidden);
  for (int i = threadIdx.x; i < kSlicesMax * kSliceGroups; i += kThreads) {
    if (i >= static_cast<int>(gridDim.x) * kBlockGroups) groups[i] = 0.0F;
  }
  await_earlier();
  uint4 raw[kStreams];
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    raw[j] = load8<true>(row_of(args.streams, row) + j * hidden, vector, hidden);
  }
  const float4 pi = *reinterpret_cast<const float4*>(row_of(args.carried, row));
  if (leave.y.data != nullptr) {
    LeaveMix mix;
    mix.load_whole(row_of(leave.comb, row), row_of(leave.post, row));
    uint4 y;
    if (leave.parts.rows.data != nullptr) {
      y = vector * 8 < hidden ? combine8(leave.parts, row, vector) : uint4{};
      store8<true>(row_of(leave.y, row), vector, hidden, y);
    } else {
      y = load8<true>(row_of(leave.y, row), vector, hidden);
    }
    leave8(mix, y, raw);
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      store8<true>(row_of(leave.streams, row) + j * hidden, vector, hidden, raw[j]);
    }
  }
  Tile tile;
#pragma unroll
  for (int j = 0; j < kStreams; ++j) tile.raw[j][0] = raw[j];
  const uint4 x = collapse_half(tile, 0, {pi.x, pi.y, pi.z, pi.w});
  const float squares = quad_sum(square_sum(widen8(x)));
  cluster_wait_apart();
  const int group = static_cast<int>(blockIdx.x) * kBlockGroups + threadIdx.x / 4;
  for (uint32_t block = lane % 4; block < gridDim.x; block += 4) {
    push(&groups[group], block, squares);
  }
  cluster_arrive_apart();
  cluster_wait_apart();
  float* of_warp = slices[threadIdx.x / kWarp];
#pragma unroll
  for (int i = 0; i < kSlicesMax; i += kWarp) {
    float sum = 0.0F;
#pragma unroll
    for (int g = 0; g < kSliceGroups; ++g) sum += groups[(lane + i) * kSliceGroups + g];
    of_warp[lane + i] = sum;
  }
  __syncwarp();
  float total = 0.0F;
  const int count = static_cast<int>(hidden + kSlice - 1) / kSlice;
#pragma unroll 4
  for (int slice = 0; slice < count; slice += 4) {  // those behind the last are zeros
    const float4 four = *reinterpret_cast<const float4*>(of_warp + slice);
    total = (((total + four.x) + four.y) + four.z) + four.w;
  }
  const float inverse = inverse_rms(total, hidden, args.eps);
  const uint4 result = normed(x, inverse, norm_weight);
  store8<true>(row_of(args.x, row), vector, hidden, result);
  if (args.tiles.codes == nullptr) return;
  const TileCodes codes = tile_codes(result);
  if (vector * 8 < hidden) store_codes(args.tiles, row, vector, codes);
}

}  // namespace

bool hc_site_splits(const HcLeave& leave, Rows<const Bf16> streams, const HcWeights& weights,
                    const HcOptions& options, Rows<const float> carried, const Bf16* norm_weight,
                    Rows<const Bf16> x) {
  constexpr int64_t kRowsMax = 16;  // at 32 a step takes as long
  return x.rows <= kRowsMax && divide_up(x.cols, kBlockChannels) <= kClusterMax &&
         hc_site_supports(leave, streams, weights, options, carried, norm_weight, x);
}

void hc_site_x(Stream stream, const HcLeave& leave, Rows<const Bf16> streams,
               const HcOptions& options, Rows<const float> carried, const Bf16* norm_weight,
               Rows<Bf16> x, const InputTiles& tiles) {
  CHECK(tiles.codes == nullptr || x.cols % kChunk == 0);
  CHECK(leave.y.data == nullptr || leave.streams.data == streams.data);
  const SiteX args{leave, streams, carried, norm_weight, options.norm_eps, x, tiles};
  const int64_t blocks = divide_up(x.cols, kBlockChannels);
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(x.rows));
  launch_kernel(site_x_kernel, {grid, kThreads, 0, static_cast<uint32_t>(blocks)}, stream, args);
}

}  // namespace galley::kernels::cuda
