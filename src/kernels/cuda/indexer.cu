// Index scores, candidate pool and selection, the version for every shape
// (spec/model.md 4.5).
//
// Scores: a lane a head (several where there are more than 32), the dot along the
// width in order, f32; then the sum over heads by halves of the warp. Selection: the
// k-th largest score by a radix descent over its sortable bits, then the entries
// above it and the first of those equal to it, in order of their numbers: exact, the
// lower entry wins a tie. Counting in shared memory uses integer atomics, whose
// result does not depend on their order.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/reduce.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int kScoreWarps = 8;
constexpr int kSelectThreads = 512;
constexpr int kSelectWarps = kSelectThreads / 32;

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

// Larger scores have larger bits; NaN counts as the smallest.
__device__ __forceinline__ uint32_t sortable(float score) {
  if (isnan(score)) score = -INFINITY;
  const uint32_t bits = __float_as_uint(score + 0.0F);  // -0 ties with +0
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

// The `keep` best of `count` candidates, ascending, by the whole block. id_of(c) ascends with c,
// or is negative where c is none; bits_of(id) is sortable.
template <class IdOf, class BitsOf>
__device__ int32_t select_best(int64_t count, int32_t keep, const IdOf& id_of,
                               const BitsOf& bits_of, int32_t* out) {
  __shared__ uint32_t histogram[256];
  __shared__ uint32_t chosen;
  __shared__ uint32_t wanted;
  __shared__ int32_t above_counts[kSelectWarps];
  __shared__ int32_t equal_counts[kSelectWarps];
  __shared__ int32_t eligible_total;
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (threadIdx.x == 0) eligible_total = 0;
  __syncthreads();
  int32_t eligible = 0;
  for (int64_t c = threadIdx.x; c < count; c += kSelectThreads) eligible += id_of(c) >= 0 ? 1 : 0;
  eligible = __reduce_add_sync(0xFFFFFFFFU, eligible);
  if (lane == 0) atomicAdd(&eligible_total, eligible);
  __syncthreads();
  const int32_t kept = min(keep, eligible_total);
  uint32_t prefix = 0;  // bits of the kept-th largest found so far
  uint32_t mask = 0;
  uint32_t rank = static_cast<uint32_t>(kept);  // among those with this prefix, from the top
  if (eligible_total > keep) {
    for (int shift = 24; shift >= 0; shift -= 8) {
      for (int i = static_cast<int>(threadIdx.x); i < 256; i += kSelectThreads) histogram[i] = 0;
      __syncthreads();
      for (int64_t c = threadIdx.x; c < count; c += kSelectThreads) {
        const int64_t id = id_of(c);
        if (id < 0) continue;
        const uint32_t bits = bits_of(id);
        if ((bits & mask) == prefix) atomicAdd(&histogram[bits >> shift & 255U], 1U);
      }
      __syncthreads();
      if (threadIdx.x == 0) {
        uint32_t left = rank;
        int digit = 255;
        while (digit > 0 && histogram[digit] < left) left -= histogram[digit--];
        chosen = static_cast<uint32_t>(digit);
        wanted = left;
      }
      __syncthreads();
      prefix |= chosen << shift;
      mask |= 255U << shift;
      rank = wanted;
      __syncthreads();
    }
  }
  const bool all = eligible_total <= keep;
  // `rank` of those equal to the threshold are taken, the first ones.
  int32_t placed = 0;
  int32_t equal_before = 0;
  for (int64_t first = 0; first < count; first += kSelectThreads) {
    const int64_t c = first + threadIdx.x;
    const int64_t id = c < count ? id_of(c) : -1;
    const uint32_t bits = id >= 0 ? bits_of(id) : 0;
    const bool above = id >= 0 && (all || bits > prefix);
    const bool equal = id >= 0 && !all && bits == prefix;
    const uint32_t equal_vote = __ballot_sync(0xFFFFFFFFU, equal);
    if (lane == 0) equal_counts[warp] = __popc(equal_vote);
    __syncthreads();
    int32_t equal_rank = equal_before + __popc(equal_vote & ((1U << lane) - 1U));
    for (int v = 0; v < kSelectWarps; ++v) {
      if (v < warp) equal_rank += equal_counts[v];
      equal_before += equal_counts[v];
    }
    const bool take = above || (equal && equal_rank < static_cast<int32_t>(rank));
    const uint32_t vote = __ballot_sync(0xFFFFFFFFU, take);
    if (lane == 0) above_counts[warp] = __popc(vote);
    __syncthreads();
    int32_t place = placed + __popc(vote & ((1U << lane) - 1U));
    for (int v = 0; v < kSelectWarps; ++v) {
      if (v < warp) place += above_counts[v];
      placed += above_counts[v];
    }
    if (take) out[place] = static_cast<int32_t>(id);
    __syncthreads();
  }
  return kept;
}

__global__ void __launch_bounds__(kSelectThreads)
    index_select_kernel(IndexShape shape, const IndexRow* rows, const float* scores,
                        int64_t entries_max, float* block_scores, int64_t blocks_max) {
  await_earlier();
  const IndexRow& row = rows[blockIdx.x];
  const float* of_entry = scores + blockIdx.x * entries_max;
  const int32_t size = shape.pool_block_size;
  const int64_t candidates = row.pool == nullptr ? row.visible : int64_t{*row.pool_count} * size;
  const int32_t kept = select_best(
      candidates, shape.top_k,
      [&](int64_t c) -> int64_t {
        if (row.pool == nullptr) return c;
        const int64_t entry = int64_t{row.pool[c / size]} * size + c % size;
        return entry < row.visible ? entry : -1;
      },
      [&](int64_t entry) { return sortable(of_entry[entry]); }, row.selected);
  if (threadIdx.x == 0) *row.selected_count = kept;
  if (row.built_pool == nullptr) return;
  float* of_block = block_scores + blockIdx.x * blocks_max;
  const int64_t blocks = (row.visible + size - 1) / size;
  for (int64_t b = threadIdx.x; b < blocks; b += kSelectThreads) {
    float best = -INFINITY;
    for (int64_t j = b * size; j < min(row.visible, (b + 1) * size); ++j) {
      best = best < of_entry[j] ? of_entry[j] : best;
    }
    of_block[b] = b == blocks - 1 ? INFINITY : best;
  }
  __syncthreads();
  const int32_t pool_kept = select_best(
      blocks, shape.pool_blocks, [](int64_t b) { return b; },
      [&](int64_t b) { return sortable(of_block[b]); }, row.built_pool);
  if (threadIdx.x == 0) *row.built_pool_count = pool_kept;
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
  // Enough blocks for few rows, at most 64 keys a warp's turn for many.
  const int64_t parts = (entries_max + kScoreWarps * 16 - 1) / (kScoreWarps * 16);
  const int64_t wanted = 2048 / queries.rows + 1;
  const int64_t grid_y = parts < 1 ? 1 : (parts < wanted ? parts : wanted);
  launch_kernel(index_scores_kernel,
                {dim3(static_cast<unsigned>(queries.rows), static_cast<unsigned>(grid_y)),
                 32 * kScoreWarps, bytes},
                stream, queries, head_weights, shape, static_cast<float>(factor), rows, scores,
                entries_max);
  launch_kernel(index_select_kernel, {static_cast<unsigned>(queries.rows), kSelectThreads}, stream,
                shape, rows, scores, entries_max, block_scores, blocks_max);
}

}  // namespace galley::kernels::cuda
