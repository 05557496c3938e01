// Exact inputs times narrow bf16 weights: compressors (512 x 5,120, two of them) and the indexer's
// head weights (32 x 5,120), all of one input in a launch.
//
// Floor of a layer's three at 64 rows: 10.8 MB of weights, 2.4 us. With a whole sum a warp they
// were 60 us each on an H200, since 34 warps of 16 outputs walked along K with a load's latency a
// step. So a sum has eight parts, for every number of rows: each summed from zero, then added in
// order. Few rows: eight warps of a block take a part each of 16 outputs by 32 rows (or 8), bound
// by the latency of loads again: 5 steps of two blocks of 64 (two of five for 8 rows). More rows go
// through wgmma (split_product.cu): 275 us for 16,384 of a layer's three, where mma.sync took
// 1,427. Both have the same bits, since each mma has the 16 of K that a wgmma has; lanes load 16
// bytes and exchange halves for that, since 8 bytes at a time 64 rows took 16.2 us where 16 had
// taken 9.8.
#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/product_tile.cuh"
#include "kernels/cuda/split_product.h"

namespace galley::kernels::cuda {
namespace {

constexpr int kParts = 8;  // of every sum
constexpr int kSplitThreads = 32 * kParts;
constexpr int64_t kOutputsMax = 1024;
constexpr int64_t kWidthMin = 2048;
constexpr int64_t kSplitRowsMax = 128;  // beyond it inputs are read too often

// The product that strip `strip` of 16 outputs is of, and its number there; null: of none.
__device__ __forceinline__ const RowProduct* find_strip(const ProductSet& set, int64_t& strip) {
  for (int32_t i = 0; i < set.count; ++i) {
    const int64_t strips = strips_of(set.products[i].weight);
    if (strip < strips) return &set.products[i];
    strip -= strips;
  }
  return nullptr;
}

__device__ __forceinline__ void store(const RowProduct& p, int64_t output, int64_t row, float sum) {
  if (output >= p.weight.out || row >= p.x.rows) return;
  if (p.y.data != nullptr) {
    row_at(p.y, row)[output] = narrow(sum);
  } else {
    row_at(p.y_f32, row)[output] = sum;
  }
}

// Of 32 neighbouring K a row's four lanes load 8 each; for the first and the last 16 of them every
// lane then has 4: lanes exchange their upper halves with the lane two further.
__device__ __forceinline__ void share_halves(uint4 raw, uint2 (&of)[2]) {
  const uint2 low = {raw.x, raw.y};
  const uint2 other = {__shfl_xor_sync(0xFFFFFFFFU, raw.z, 2),
                       __shfl_xor_sync(0xFFFFFFFFU, raw.w, 2)};
  const bool first = threadIdx.x % 4 < 2;
  of[0] = first ? low : other;
  of[1] = first ? other : low;
}

// Part `part` of a strip's sums for rows from `first` on. Each mma has 16 of K that lie together,
// so that wgmma (split_product.cu) makes the same sums.
template <int kTiles, int kAhead>
__device__ __forceinline__ void sum_part(const RowProduct& p, int64_t output, int64_t first,
                                         int part, float (&sums)[kTiles][4]) {
  constexpr int kPieces = kAhead * kTileK / 32;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t width = p.weight.in / kParts;
  const int64_t begin = part * width + lane % 4 * 8;
  const Bf16* weights[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = output + lane / 4 + 8 * half;
    const auto* from = static_cast<const Bf16*>(p.weight.data) + row * p.weight.in + begin;
    weights[half] = row < p.weight.out ? from : nullptr;
  }
  const Bf16* x[kTiles];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    const int64_t row = first + 8 * t + lane / 4;
    x[t] = row < p.x.rows ? row_at(p.x, row) + begin : nullptr;
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[t][e] = 0.0F;
  }
  const auto load = [width](const Bf16* row, int64_t k) {  // zeros change no sum
    return row != nullptr && k < width ? *reinterpret_cast<const uint4*>(row + k) : uint4{};
  };
#pragma unroll 1
  for (int64_t k = 0; k < width; k += kAhead * kTileK) {
    uint4 stored[kPieces][2];
    uint4 inputs[kPieces][kTiles];
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) stored[i][half] = load(weights[half], k + 32 * i);
    }
    if (k == 0) await_earlier();  // weights are constant
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) inputs[i][t] = load(x[t], k + 32 * i);
    }
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      uint2 upper[2];
      uint2 lower[2];
      share_halves(stored[i][0], upper);
      share_halves(stored[i][1], lower);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        uint2 b[2];
        share_halves(inputs[i][t], b);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const uint32_t a[4] = {upper[j].x, lower[j].x, upper[j].y, lower[j].y};
          multiply_add(sums[t], a, b[j].x, b[j].y);
        }
      }
    }
  }
}

template <int kTiles, int kAhead>
__global__ void __launch_bounds__(kSplitThreads)
    split_kernel(const __grid_constant__ ProductSet set) {
  __shared__ float parts[kParts][kTiles * 8][kTileOutputs];
  int64_t strip = blockIdx.x;
  const RowProduct& p = *find_strip(set, strip);
  const int64_t output = strip * kTileOutputs;
  const int64_t first = int64_t{blockIdx.y} * 8 * kTiles;
  const int part = static_cast<int>(threadIdx.x) / 32;
  float sums[kTiles][4];
  sum_part<kTiles, kAhead>(p, output, first, part, sums);
  each_sum<kTiles>(0, sums, [&](int64_t o, int row, float sum) { parts[part][row][o] = sum; });
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kTiles * 8 * kTileOutputs; i += kSplitThreads) {
    float total = 0.0F;
#pragma unroll
    for (int of = 0; of < kParts; ++of) total += parts[of][i / kTileOutputs][i % kTileOutputs];
    store(p, output + i % kTileOutputs, first + i / kTileOutputs, total);
  }
}

}  // namespace

bool takes_narrow(const RowProduct& p) {
  return p.weight.out <= kOutputsMax && p.weight.in >= kWidthMin &&
         p.weight.in % (kParts * kTileK) == 0 && split_product_supports(p);
}

void launch_narrow(const ProductSet& set, Stream stream) {
  int64_t strips = 0;
  for (int32_t i = 0; i < set.count; ++i) {
    const RowProduct& one = set.products[i];
    CHECK(takes_narrow(one) && !one.quantise && one.x.rows == set.products[0].x.rows);
    strips += strips_of(one.weight);
  }
  const int64_t rows = set.count > 0 ? set.products[0].x.rows : 0;
  if (rows == 0) return;
  const auto blocks = static_cast<unsigned>(strips);
  const auto row_blocks = static_cast<unsigned>((rows + 31) / 32);
  if (rows <= 8) {
    launch_kernel(split_kernel<1, 5>, {dim3(blocks, 1), kSplitThreads}, stream, set);
  } else if (rows <= kSplitRowsMax) {
    launch_kernel(split_kernel<4, 2>, {dim3(blocks, row_blocks), kSplitThreads}, stream, set);
  } else {
    split_products(stream, set, set.products[0].weight.in / kParts);
  }
}

}  // namespace galley::kernels::cuda
