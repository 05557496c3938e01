// Index scores, candidate pool and selection, the version for every shape
// (spec/model.md 4.5).
//
// Scores: heads that are a power of two have a thread each (index_narrow.cuh), others a lane
// (several where there are more than 32); the dot along the width in order, f32; then the sum over
// heads by halves. Selection, a block a row: up to 1,024 candidates each count how many come before
// them, more are found by a radix descent over the sortable bits of the k-th largest. Both are
// exact, the lower entry wins a tie.
//
// Before, one thread walked the 256 counts of each of four digits: 16 to 38 us a row of 100
// entries.
#include "kernels/cuda/index_narrow.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/reduce.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int kScoreWarps = 8;

__global__ void __launch_bounds__(32 * kScoreWarps)
    index_scores_kernel(Rows<const Bf16> queries, Rows<const Bf16> head_weights, IndexShape shape,
                        float factor, const IndexRow* rows, float* scores, int64_t entries_max) {
  await_earlier();
  extern __shared__ float shared[];
  const IndexRow& row = rows[blockIdx.x];
  const int64_t width = shape.head_dim;
  const int32_t heads = shape.heads;
  const int32_t stride = (heads + 31) / 32 * 32;
  float* q = shared;              // [width, stride]
  float* w = q + width * stride;  // [stride]
  float* keys = w + stride;       // [kScoreWarps, width]
  for (int64_t at = threadIdx.x; at < width * stride; at += blockDim.x) {
    const int64_t head = at % stride;
    const int64_t i = at / stride;
    q[at] = head < heads ? widen(row_at(queries, blockIdx.x)[head * width + i]) : 0.0F;
  }
  for (int32_t head = static_cast<int32_t>(threadIdx.x); head < stride; head += 32 * kScoreWarps) {
    w[head] =
        head < heads ? round_bf16(widen(row_at(head_weights, blockIdx.x)[head]) * factor) : 0.0F;
  }
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  float* key = keys + warp * width;
  for (int64_t j = int64_t{blockIdx.y} * kScoreWarps + warp; j < row.visible;
       j += int64_t{gridDim.y} * kScoreWarps) {
    const PagedRecords& k = row.keys;
    const uint8_t* record = k.pool + k.page_table[j / k.records_per_page] * k.page_stride +
                            j % k.records_per_page * k.record_bytes;
    __syncwarp();
    for (int64_t pair = lane; pair < width / 2; pair += 32) {
      const uint32_t two = record[pair];
      const float scale = e8m0_value(record[width / 2 + 2 * pair / 32]);
      key[2 * pair] = e2m1_value(two & 15U) * scale;
      key[2 * pair + 1] = e2m1_value(two >> 4) * scale;
    }
    __syncwarp();
    float sum = 0.0F;
    for (int32_t first = 0; first < stride; first += 32) {
      float dot = 0.0F;
      for (int64_t i = 0; i < width; ++i) dot = fmaf(q[i * stride + first + lane], key[i], dot);
      sum = fmaf(fmaxf(dot, 0.0F), w[first + lane], sum);
    }
    sum = warp_sum(sum);
    if (lane == 0) {
      scores[blockIdx.x * entries_max + j] = sum;
      if (row.scores != nullptr) row.scores[j] = sum;
    }
  }
}

__global__ void __launch_bounds__(kIndexThreads)
    narrow_scores_kernel(const __grid_constant__ IndexArguments args) {
  extern __shared__ __align__(16) float narrow_shared[];
  score_keys(args, blockIdx.x, blockIdx.y, gridDim.y, narrow_shared);
}

__global__ void __launch_bounds__(kIndexThreads)
    index_select_kernel(const __grid_constant__ IndexArguments args) {
  __shared__ SelectShared shared;
  select_entries(args, blockIdx.x, shared);
}

bool takes_narrow(const IndexShape& shape) {
  return shape.heads <= 32 && (shape.heads & (shape.heads - 1)) == 0 && shape.head_dim % 32 == 0 &&
         shape.head_dim <= 128;
}

}  // namespace

void launch_index_select(Rows<const Bf16> queries, Rows<const Bf16> head_weights,
                         const IndexShape& shape, const IndexRow* rows, float* scores,
                         int64_t entries_max, float* block_scores, int64_t blocks_max,
                         Stream stream) {
  if (queries.rows == 0) return;
  const int64_t stride = (shape.heads + 31) / 32 * 32;
  const size_t bytes = sizeof(float) * static_cast<size_t>(shape.head_dim * stride + stride +
                                                           kScoreWarps * shape.head_dim);
  const double factor = 1.0 / sqrt(static_cast<double>(shape.head_dim) * shape.heads);
  // Enough blocks for few rows, few for many.
  const int64_t parts = (entries_max + kScoreWarps * 16 - 1) / (kScoreWarps * 16);
  const int64_t wanted = 512 / queries.rows + 1;
  const int64_t grid_y = parts < 1 ? 1 : (parts < wanted ? parts : wanted);
  const IndexArguments args{queries,   head_weights, shape,       static_cast<float>(factor),
                            rows,      scores,       entries_max, block_scores,
                            blocks_max};
  if (takes_narrow(shape)) {
    launch_kernel(narrow_scores_kernel,
                  {dim3(static_cast<unsigned>(queries.rows), static_cast<unsigned>(grid_y)),
                   kIndexThreads, static_cast<size_t>(index_scores_bytes(shape))},
                  stream, args);
  } else {
    launch_kernel(index_scores_kernel,
                  {dim3(static_cast<unsigned>(queries.rows), static_cast<unsigned>(grid_y)),
                   32 * kScoreWarps, bytes},
                  stream, queries, head_weights, shape, static_cast<float>(factor), rows, scores,
                  entries_max);
  }
  launch_kernel(index_select_kernel, {static_cast<unsigned>(queries.rows), kIndexThreads}, stream,
                args);
}

}  // namespace galley::kernels::cuda
