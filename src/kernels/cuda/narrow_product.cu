// Exact inputs times narrow bf16 weights: compressors (512 x 5,120, two of them) and the indexer's
// head weights (32 x 5,120), all of one input in a launch.
//
// Floor of a layer's three at 64 rows: 10.8 MB of weights, 2.4 us. With a whole sum a warp they
// were 60 us each on an H200, since 34 warps of 16 outputs walked along K with a load's latency a
// step. So a sum has eight parts, for every number of rows: each summed from zero, then added in
// order. Few rows: eight warps of a block take a part each of 16 outputs by 32 rows (or 8). Many
// rows: four warps take 16 outputs each of the same 32 rows, and all parts one after the other.
// Bound by the latency of loads again: 5 steps of two blocks of 64 (two of five for 8 rows).
#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/product_tile.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int kParts = 8;  // of every sum
constexpr int kSplitThreads = 32 * kParts;
constexpr int kManyWarps = 4;
constexpr int64_t kOutputsMax = 1024;
constexpr int64_t kWidthMin = 2048;
constexpr int64_t kSplitRowsMax = 256;  // beyond it inputs are read too often

// The product that strip `strip` of 16 outputs is of, and its number there; null: of none.
__device__ __forceinline__ const RowProduct* find_strip(const ProductSet& set, int64_t& strip) {
  for (int32_t i = 0; i < set.count; ++i) {
    const int64_t strips = (set.products[i].weight.out + kTileOutputs - 1) / kTileOutputs;
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

// Part `part` of a strip's sums for rows from `first` on.
template <int kTiles, int kAhead>
__device__ __forceinline__ void sum_part(const RowProduct& p, int64_t output, int64_t first,
                                         int part, float (&sums)[kTiles][4]) {
  const int64_t width = p.weight.in / kParts;
  product_range<WeightFormat::kBf16, kTiles, kAhead>(
      p.weight, output, part * width, (part + 1) * width,
      [&](int t) -> const Bf16* {
        const int64_t row = first + 8 * t + threadIdx.x % 32 / 4;
        return row < p.x.rows ? row_at(p.x, row) : nullptr;
      },
      false, await_earlier, sums);
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

__global__ void __launch_bounds__(32 * kManyWarps)
    many_rows_kernel(const __grid_constant__ ProductSet set) {
  constexpr int kTiles = 4;
  int64_t strip = int64_t{blockIdx.x} * kManyWarps + threadIdx.x / 32;
  const RowProduct* p = find_strip(set, strip);
  if (p == nullptr) return await_earlier();
  const int64_t output = strip * kTileOutputs;
  const int64_t first = int64_t{blockIdx.y} * 8 * kTiles;
  float totals[kTiles][4] = {};
  for (int part = 0; part < kParts; ++part) {
    float sums[kTiles][4];
    sum_part<kTiles, 1>(*p, output, first, part, sums);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) totals[t][e] += sums[t][e];
    }
  }
  each_sum<kTiles>(output, totals,
                   [&](int64_t o, int row, float sum) { store(*p, o, first + row, sum); });
}

}  // namespace

bool takes_narrow(const RowProduct& p) {
  return p.weight.format == WeightFormat::kBf16 && !p.weight.folded && p.groups == 1 &&
         p.weight.out <= kOutputsMax && p.weight.in >= kWidthMin &&
         p.weight.in % (kParts * kTileK) == 0;
}

void launch_narrow(const ProductSet& set, Stream stream) {
  int64_t strips = 0;
  for (int32_t i = 0; i < set.count; ++i) {
    const RowProduct& one = set.products[i];
    CHECK(takes_narrow(one) && !one.quantise && one.x.rows == set.products[0].x.rows);
    strips += (one.weight.out + kTileOutputs - 1) / kTileOutputs;
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
    launch_kernel(many_rows_kernel,
                  {dim3((blocks + kManyWarps - 1) / kManyWarps, row_blocks), 32 * kManyWarps},
                  stream, set);
  }
}

}  // namespace galley::kernels::cuda
