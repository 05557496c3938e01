// Index scores of narrow heads, and the choice of the best: what a block does of them. indexer.cu
// tells the whole.
#pragma once

#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/row.cuh"
#include "kernels/ops.h"

namespace galley::kernels::cuda {

constexpr int kIndexThreads = 256;
constexpr int kIndexWarps = kIndexThreads / 32;

struct IndexArguments {
  Rows<const Bf16> queries;
  Rows<const Bf16> head_weights;
  IndexShape shape;
  float factor;
  const IndexRow* rows;
  float* scores;  // [rows, entries_max]
  int64_t entries_max;
  float* block_scores;  // [rows, blocks_max]
  int64_t blocks_max;
};

// --- scores ---------------------------------------------------------------------

constexpr int kQueryPad = 8;  // floats, so that heads meet different banks

inline __host__ __device__ int32_t index_scores_bytes(const IndexShape& shape) {
  return shape.heads * (shape.head_dim + kQueryPad + 1) * 4;
}

// 32 channels of a key under a query's head, added to `dot` in order.
__device__ __forceinline__ float add_group(const uint8_t* codes, float scale, const float4* query,
                                           float dot) {
  uint32_t words[4];
  if (reinterpret_cast<uintptr_t>(codes) % 2 == 0) {
    const auto* halves = reinterpret_cast<const uint16_t*>(codes);
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      words[w] = halves[2 * w] | static_cast<uint32_t>(halves[2 * w + 1]) << 16;
    }
  } else {
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      words[w] = codes[4 * w] | static_cast<uint32_t>(codes[4 * w + 1]) << 8 |
                 static_cast<uint32_t>(codes[4 * w + 2]) << 16 |
                 static_cast<uint32_t>(codes[4 * w + 3]) << 24;
    }
  }
#pragma unroll
  for (int w = 0; w < 4; ++w) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float4 x = query[2 * w + half];
      const uint32_t four = words[w] >> (16 * half);
      dot = fmaf(x.x, e2m1_value(four & 15U) * scale, dot);
      dot = fmaf(x.y, e2m1_value(four >> 4 & 15U) * scale, dot);
      dot = fmaf(x.z, e2m1_value(four >> 8 & 15U) * scale, dot);
      dot = fmaf(x.w, e2m1_value(four >> 12 & 15U) * scale, dot);
    }
  }
  return dot;
}

// Scores of row `row_index`, of the keys that part `part` of `parts` has, by a block: a thread a
// head of a key, the dot along the width in order, the sum over heads by halves. Heads are a power
// of two, at most 32, widths multiples of 32.
__device__ __forceinline__ void score_keys(const IndexArguments& args, int64_t row_index,
                                           int64_t part, int64_t parts, float* shared) {
  await_earlier();
  const IndexRow& row = args.rows[row_index];
  const int32_t width = args.shape.head_dim;
  const int32_t heads = args.shape.heads;
  const int32_t pitch = width + kQueryPad;
  float* head_weights = shared + heads * pitch;
  const Bf16* query = row_at(args.queries, row_index);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  for (int32_t at = thread; at < heads * width; at += kIndexThreads) {
    shared[at / width * pitch + at % width] = widen(query[at]);
  }
  if (thread < heads) {
    head_weights[thread] =
        round_bf16(widen(row_at(args.head_weights, row_index)[thread]) * args.factor);
  }
  __syncthreads();
  const int32_t head = thread % heads;
  const int32_t keys = kIndexThreads / heads;  // at a time
  const auto* own = reinterpret_cast<const float4*>(shared + head * pitch);
  const float weight = head_weights[head];
  const PagedRecords k = row.keys;
  float* to = args.scores + row_index * args.entries_max;
  const auto visible = static_cast<int32_t>(row.visible);
  for (int32_t first = static_cast<int32_t>(part) * keys; first < visible;
       first += static_cast<int32_t>(parts) * keys) {
    const int32_t j = first + thread / heads;
    float sum = 0.0F;
    if (j < visible) {
      const uint8_t* record = k.pool + k.page_table[j / k.records_per_page] * k.page_stride +
                              j % k.records_per_page * k.record_bytes;
      float dot = 0.0F;
      for (int32_t group = 0; group < width / 32; ++group) {
        dot = add_group(record + group * 16, e8m0_value(record[width / 2 + group]), own + group * 8,
                        dot);
      }
      sum = fmaf(fmaxf(dot, 0.0F), weight, 0.0F);
    }
    for (int32_t distance = heads / 2; distance > 0; distance /= 2) {
      sum += __shfl_xor_sync(kAllLanes, sum, distance);
    }
    if (j < visible && head == 0) {
      to[j] = sum;
      if (row.scores != nullptr) row.scores[j] = sum;
    }
  }
}

// --- choice ---------------------------------------------------------------------

constexpr int kRankedEach = 4;  // candidates a thread
constexpr int kRankedMax = kRankedEach * kIndexThreads;

struct SelectShared {
  union {
    uint4 keys[kRankedMax / 4];  // of candidates, where all fit
    uint32_t histogram[256];
  };
  int32_t counts[kRankedEach * kIndexWarps];
  uint32_t chosen;
  uint32_t wanted;
};
static_assert(kRankedEach * kIndexWarps == kWarp);

// Larger scores have larger bits, none has 0; NaN counts as the smallest.
__device__ __forceinline__ uint32_t sortable(float score) {
  if (isnan(score)) score = -INFINITY;
  const uint32_t bits = __float_as_uint(score + 0.0F);  // -0 ties with +0
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

// Few candidates: each counts those that come before it.
template <class IdOf, class BitsOf>
__device__ __forceinline__ int32_t select_ranked(int32_t count, int32_t keep, const IdOf& id_of,
                                                 const BitsOf& bits_of, int32_t* out,
                                                 SelectShared& shared) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t lane = thread % kWarp;
  const int32_t warp = thread / kWarp;
  const int32_t padded = (count + kWarp - 1) / kWarp * kWarp;
  auto* keys = reinterpret_cast<uint32_t*>(shared.keys);
  int64_t id[kRankedEach];
  uint32_t own[kRankedEach];
#pragma unroll
  for (int i = 0; i < kRankedEach; ++i) {
    const int32_t c = thread + i * kIndexThreads;
    id[i] = c < count ? id_of(c) : -1;
    own[i] = id[i] >= 0 ? bits_of(id[i]) : 0;
    if (c < padded) keys[c] = own[i];
  }
  __syncthreads();
  uint32_t votes[kRankedEach];
#pragma unroll
  for (int i = 0; i < kRankedEach; ++i) {
    votes[i] = 0;
    const int32_t begin = (warp + i * kIndexWarps) * kWarp;  // of this warp's candidates
    if (begin < count) {
      // Those in front come first among equals, those behind do not.
      int32_t rank = 0;
      const auto add_four = [&](int32_t at, uint32_t least) {
        const uint4 four = shared.keys[at / 4];
        rank += (four.x >= least ? 1 : 0) + (four.y >= least ? 1 : 0) + (four.z >= least ? 1 : 0) +
                (four.w >= least ? 1 : 0);
      };
      for (int32_t at = 0; at < begin; at += 4) add_four(at, own[i]);
      for (int32_t at = begin + kWarp; at < padded; at += 4) add_four(at, own[i] + 1);
#pragma unroll 8
      for (int32_t other = 0; other < kWarp; ++other) {
        rank += keys[begin + other] >= own[i] + (other < lane ? 0 : 1) ? 1 : 0;
      }
      votes[i] = __ballot_sync(kAllLanes, own[i] != 0 && rank < keep);
    }
    if (lane == 0) shared.counts[warp + i * kIndexWarps] = __popc(votes[i]);
  }
  __syncthreads();
  const int32_t counted = shared.counts[lane];
#pragma unroll
  for (int i = 0; i < kRankedEach; ++i) {
    const int32_t before =
        __reduce_add_sync(kAllLanes, lane < warp + i * kIndexWarps ? counted : 0);
    if ((votes[i] >> lane & 1U) != 0) {
      out[before + __popc(votes[i] & ((1U << lane) - 1U))] = static_cast<int32_t>(id[i]);
    }
  }
  const int32_t kept = __reduce_add_sync(kAllLanes, counted);
  __syncthreads();  // another choice may use the memory
  return kept;
}

// Many: the keep-th largest by a descent over its bits, then all above it and the first of those
// equal to it. Counting in shared memory has a result that does not depend on its order.
template <class IdOf, class BitsOf>
__device__ __forceinline__ int32_t select_descending(int64_t count, int32_t keep, const IdOf& id_of,
                                                     const BitsOf& bits_of, int32_t* out,
                                                     SelectShared& shared) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t lane = thread % kWarp;
  const int32_t warp = thread / kWarp;
  uint32_t prefix = 0;  // bits of the keep-th largest found so far
  uint32_t mask = 0;
  auto rank = static_cast<uint32_t>(keep);  // among those with this prefix, from the top
  bool all = false;
  for (int shift = 24; shift >= 0 && !all; shift -= 8) {
    shared.histogram[thread] = 0;
    __syncthreads();
    for (int64_t c = thread; c < count; c += kIndexThreads) {
      const int64_t id = id_of(c);
      if (id < 0) continue;
      const uint32_t bits = bits_of(id);
      if ((bits & mask) == prefix) atomicAdd(&shared.histogram[bits >> shift & 255U], 1U);
    }
    __syncthreads();
    if (warp == 0) {  // eight digits a lane, the last lane has the largest
      uint32_t digits[8];
      uint32_t own = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        digits[i] = shared.histogram[lane * 8 + i];
        own += digits[i];
      }
      uint32_t above = own;  // of this lane's digits and all above
#pragma unroll
      for (int distance = 1; distance < kWarp; distance *= 2) {
        const uint32_t other = __shfl_down_sync(kAllLanes, above, distance);
        if (lane + distance < kWarp) above += other;
      }
      if (lane == 0 && above < rank) shared.wanted = 0;  // fewer than asked for
      uint32_t left = rank - (above - own);
      if (above >= rank && above - own < rank) {
        int digit = 7;
        while (left > digits[digit]) left -= digits[digit--];
        shared.chosen = static_cast<uint32_t>(lane * 8 + digit);
        shared.wanted = left;
      }
    }
    __syncthreads();
    all = shared.wanted == 0;
    prefix |= shared.chosen << shift;
    mask |= 255U << shift;
    rank = shared.wanted;
    __syncthreads();
  }
  int32_t placed = 0;
  int32_t equal_before = 0;
  for (int64_t first = 0; first < count; first += kIndexThreads) {
    const int64_t c = first + thread;
    const int64_t id = c < count ? id_of(c) : -1;
    const uint32_t bits = id >= 0 ? bits_of(id) : 0;
    const bool above = id >= 0 && (all || bits > prefix);
    const bool equal = id >= 0 && !all && bits == prefix;
    const uint32_t equal_vote = __ballot_sync(kAllLanes, equal);
    if (lane == 0) shared.counts[warp] = __popc(equal_vote);
    __syncthreads();
    int32_t equal_rank = equal_before + __popc(equal_vote & ((1U << lane) - 1U));
    for (int v = 0; v < kIndexWarps; ++v) {
      if (v < warp) equal_rank += shared.counts[v];
      equal_before += shared.counts[v];
    }
    const bool take = above || (equal && equal_rank < static_cast<int32_t>(rank));
    const uint32_t vote = __ballot_sync(kAllLanes, take);
    if (lane == 0) shared.counts[kIndexWarps + warp] = __popc(vote);
    __syncthreads();
    int32_t place = placed + __popc(vote & ((1U << lane) - 1U));
    for (int v = 0; v < kIndexWarps; ++v) {
      if (v < warp) place += shared.counts[kIndexWarps + v];
      placed += shared.counts[kIndexWarps + v];
    }
    if (take) out[place] = static_cast<int32_t>(id);
    __syncthreads();
  }
  return placed;
}

// The `keep` best of `count` candidates, ascending, by a block. id_of(c) ascends with c, or is
// negative where c is none; bits_of(id) is sortable.
template <class IdOf, class BitsOf>
__device__ __forceinline__ int32_t select_best(int64_t count, int32_t keep, const IdOf& id_of,
                                               const BitsOf& bits_of, int32_t* out,
                                               SelectShared& shared) {
  if (count <= kRankedMax) {
    return select_ranked(static_cast<int32_t>(count), keep, id_of, bits_of, out, shared);
  }
  return select_descending(count, keep, id_of, bits_of, out, shared);
}

// Row `row_index` by a block.
__device__ __forceinline__ void select_entries(const IndexArguments& args, int64_t row_index,
                                               SelectShared& shared) {
  await_earlier();
  const IndexRow& row = args.rows[row_index];
  const float* of_entry = args.scores + row_index * args.entries_max;
  const int32_t size = args.shape.pool_block_size;
  const int64_t visible = row.visible;
  const int32_t* pool = row.pool;
  const int64_t candidates = pool == nullptr ? visible : int64_t{*row.pool_count} * size;
  const int32_t kept = select_best(
      candidates, args.shape.top_k,
      [&](int64_t c) -> int64_t {
        if (pool == nullptr) return c;
        const auto at = static_cast<uint32_t>(c);
        const int64_t entry = int64_t{pool[at / size]} * size + at % size;
        return entry < visible ? entry : -1;
      },
      [&](int64_t entry) { return sortable(of_entry[entry]); }, row.selected, shared);
  if (threadIdx.x == 0) *row.selected_count = kept;
  if (row.built_pool == nullptr) return;
  float* of_block = args.block_scores + row_index * args.blocks_max;
  const int64_t blocks = (visible + size - 1) / size;
  for (int64_t b = threadIdx.x; b < blocks; b += kIndexThreads) {
    float best = -INFINITY;
    for (int64_t j = b * size; j < min(visible, (b + 1) * size); ++j) {
      best = best < of_entry[j] ? of_entry[j] : best;
    }
    of_block[b] = b == blocks - 1 ? INFINITY : best;
  }
  __syncthreads();
  const int32_t pool_kept = select_best(
      blocks, args.shape.pool_blocks, [](int64_t b) { return b; },
      [&](int64_t b) { return sortable(of_block[b]); }, row.built_pool, shared);
  if (threadIdx.x == 0) *row.built_pool_count = pool_kept;
}

}  // namespace galley::kernels::cuda
