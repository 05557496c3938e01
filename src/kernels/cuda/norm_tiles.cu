// The query's latent on its way from wq_a to wq_b: norm and Q8 in one launch, any number of rows,
// with the window keys of the same rows on further blocks. Both read what one launch of products
// wrote, so of the chain wq_a, norm, quantise, wq_b and of wkv, record only three launches stay.
//
// Floor: 2 bytes in and 1.03 out a value, 1.06 for keys; at 16,384 rows of 1,280 + 512 some 23 us.
// A row's vectors fall to threads as in norm.cu (one order of summation a width), so half a warp
// has 128 neighbouring values and quantises what it normed without storing it.
//
// Of few rows the keys' chain of loads was what took time: weight and angles asked for with the
// values, and the weight before the wait, 3.5 us instead of 7.4 behind wq_a at one row. wq_b then
// has less of its weights when it begins, so both together are 0.4 us faster at one row and 0.5 at
// 64. Tried: the whole body once on constants in front of the wait, so that its code is at hand:
// nothing.
#include <algorithm>

#include "kernels/cuda/norm.cuh"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/norm_tiles.h"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/record.cuh"
#include "kernels/cuda/row.cuh"
#include "kernels/cuda/tile_codes.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int kThreadsWanted = 256;
constexpr int kThreadsMax = 512;
constexpr int kKeyVectors = 2;  // widths up to 512

// Blocks of (threads of a row, rows of a block); `row_blocks` of them, then the keys', a warp each.
__global__ void __launch_bounds__(kThreadsMax)
    norm_tiles_kernel(const __grid_constant__ NormTiles norm, int32_t row_blocks) {
  const auto block = static_cast<int32_t>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  if (block >= row_blocks) {
    const WindowKeys& keys = norm.keys;
    const int flat = static_cast<int>(threadIdx.y) * threads + thread;
    const int64_t row =
        (int64_t{block} - row_blocks) * (threads * blockDim.y / kWarp) + flat / kWarp;
    if (row >= keys.x.rows) return await_earlier();
    make_record<Record::kWindow, kKeyVectors, true>(
        {keys.x, keys.norm_weight, keys.eps, keys.angles.cos, keys.angles.sin, nullptr,
         keys.records},
        row, await_earlier);
    return;
  }
  uint4 weights[kNormVectors];  // constant: before the wait
#pragma unroll
  for (int i = 0; i < kNormVectors; ++i) {
    weights[i] = load8<true>(norm.weight, thread + i * threads, norm.x.cols);
  }
  await_earlier();
  __shared__ float scratch[kThreadsMax / kWarp];
  const int64_t row = int64_t{block} * blockDim.y + threadIdx.y;
  const bool inside = row < norm.x.rows;
  const Bf16* x = row_of(norm.x, inside ? row : 0);
  uint4 raw[kNormVectors];
#pragma unroll
  for (int i = 0; i < kNormVectors; ++i) raw[i] = load8<true>(x, thread + i * threads, norm.x.cols);
  float squares = 0.0F;
#pragma unroll
  for (int i = 0; i < kNormVectors; ++i) squares += square_sum(widen8(raw[i]));
  squares = warp_sum(squares);
  const int warps = threads / kWarp;
  if (warps > 1) {  // as block_sum adds them up
    float* mine = scratch + threadIdx.y * warps;
    if (thread % kWarp == 0) mine[thread / kWarp] = squares;
    __syncthreads();
    squares = 0.0F;
    for (int warp = 0; warp < warps; ++warp) squares += mine[warp];
  }
  const float inverse = inverse_rms(squares, norm.x.cols, norm.eps);
  const int64_t vectors = tiled_chunks(norm.x.cols) * (kChunk / 8);
#pragma unroll
  for (int i = 0; i < kNormVectors; ++i) {
    const int64_t vector = thread + i * threads;
    if (vector / kWarp * kWarp >= vectors) break;  // for the whole warp
    const TileCodes codes = tile_codes(normed(raw[i], inverse, weights[i]));
    if (inside && vector < vectors) store_codes(norm.tiles, row, vector, codes);
  }
}

}  // namespace

bool norm_tiles_supports(Rows<const Bf16> x, const Bf16* weight) {
  return x.cols <= kNormWidthMax && is_whole(x) && is_whole(weight, x.cols);
}

bool keys_beside_norm(const WindowKeys& keys) {
  return is_whole(keys.x) && is_whole(keys.norm_weight, keys.x.cols) && keys.x.cols % 32 == 0 &&
         keys.x.cols <= 8 * kWarp * kKeyVectors && 2 * keys.angles.cos.cols <= keys.x.cols;
}

void norm_tiles(Stream stream, const NormTiles& norm) {
  CHECK(norm_tiles_supports(norm.x, norm.weight) && keys_beside_norm(norm.keys));
  const int threads = row_threads(norm.x.cols, kNormVectors);
  const int rows = std::max(1, kThreadsWanted / threads);
  const auto row_blocks = static_cast<int32_t>(divide_up(norm.x.rows, rows));
  const auto key_blocks = static_cast<int32_t>(divide_up(norm.keys.x.rows, threads * rows / kWarp));
  if (row_blocks + key_blocks == 0) return;
  launch_kernel(norm_tiles_kernel, {row_blocks + key_blocks, dim3(threads, rows)}, stream, norm,
                row_blocks);
}

}  // namespace galley::kernels::cuda
