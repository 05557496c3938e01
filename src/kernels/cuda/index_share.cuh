// Which rows and keys a block of the index scores takes (index_scores_sm90.cu), found on the
// device: a launch knows only bounds, and sequences differ in length.
#pragma once

#include <cstdint>

#include "kernels/cuda/index_sm90.cuh"

namespace galley::kernels::cuda {

constexpr int32_t kTileKeys = 64;
constexpr int32_t kWarps = 8;
constexpr int32_t kScoreThreads = kWarps * 32;
constexpr int32_t kChunkKeys = kWarps * kTileKeys;

// Neighbouring rows that score the same keys, up to kRows of them, are a group: its keys are
// unpacked once. What a block does is a part of all groups' keys, put one after the other, in
// chunks: every warp's tile once.
constexpr uint32_t kGroupBegin = 0x80000000;  // beside the count of a group's first row

struct Share {
  int32_t row, key;            // begins in the group that begins at this row
  int32_t last_row, last_key;  // and ends there
};

// Sum (or largest) of `own` of all earlier threads; `all` becomes that of all.
template <bool kLargest>
__device__ __forceinline__ int32_t before_mine(int32_t own, int32_t none, int32_t* warp_totals,
                                               int32_t* all) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t lane = thread & 31;
  const auto join = [](int32_t a, int32_t b) { return kLargest ? max(a, b) : a + b; };
  int32_t up_to = own;
#pragma unroll
  for (int32_t offset = 1; offset < 32; offset *= 2) {
    const int32_t other = __shfl_up_sync(0xFFFFFFFFU, up_to, offset);
    if (lane >= offset) up_to = join(up_to, other);
  }
  if (lane == 31) warp_totals[thread / 32] = up_to;
  __syncthreads();
  int32_t earlier = none;
  int32_t total = none;
#pragma unroll
  for (int32_t w = 0; w < kWarps; ++w) {
    if (w == thread / 32) earlier = total;
    total = join(total, warp_totals[w]);
  }
  __syncthreads();
  *all = total;
  const int32_t left = __shfl_up_sync(0xFFFFFFFFU, up_to, 1);
  return lane == 0 ? earlier : join(earlier, left);
}

__device__ __forceinline__ bool same_keys(const IndexRow& a, const IndexRow& b) {
  return a.pool == nullptr && b.pool == nullptr && a.keys.pool == b.keys.pool &&
         a.keys.page_table == b.keys.page_table;
}

// What `rows` rows cost a chunk: its unpacking and their products.
__device__ __forceinline__ int32_t cost_of(int32_t rows) { return 3 + 2 * rows; }

// Rows and longest row of the group that begins at `row`.
template <int kRows>
__device__ __forceinline__ int2 group_at(const uint32_t* counts, int32_t row, int32_t row_count) {
  int32_t rows = 1;
  auto longest = static_cast<int32_t>(counts[row] & ~kGroupBegin);
  while (rows < kRows && row + rows < row_count && (counts[row + rows] & kGroupBegin) == 0) {
    longest = max(longest, static_cast<int32_t>(counts[row + rows]));
    ++rows;
  }
  return make_int2(rows, longest);
}

// This block's share of the work, by all threads; counts[row] becomes what the row scores. Where
// groups are few, a block has a part of one, so that it begins once; else a part of all groups'
// keys, one after the other.
template <int kRows>
__device__ __forceinline__ void find_share(const IndexParameters& p, uint32_t* counts,
                                           uint32_t* groups, int32_t* warp_totals, Share* share) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t lane = thread & 31;
  const int32_t row_count = p.call.row_count;
  const auto block = static_cast<int32_t>(blockIdx.x);
  const auto blocks = static_cast<int32_t>(gridDim.x);
  int32_t total;
  int32_t last_run = -1;
  for (int32_t first = 0; first < row_count; first += kScoreThreads) {
    const int32_t row = first + thread;
    int32_t begins = -1;
    int32_t scored = 0;
    if (row < row_count) {
      const IndexRow mine = p.call.rows[row];
      const IndexRow before = p.call.rows[max(row - 1, 0)];
      scored = scored_of(mine, p.call.shape);
      if (row == 0 || !same_keys(before, mine)) begins = row;
    }
    int32_t run = before_mine<true>(begins, -1, warp_totals, &total);
    run = max(max(run, begins), last_run);
    last_run = max(last_run, total);
    if (row < row_count) {
      counts[row] = scored | ((row - run) % kRows == 0 ? kGroupBegin : 0);
    }
  }
  if (thread == 0) *share = {row_count, 0, row_count, 0};  // nothing
  __syncthreads();
  int32_t cost = 0;
  int32_t group_count = 0;
  for (int32_t row = thread; row < row_count; row += kScoreThreads) {
    groups[row] = 0;
    if ((counts[row] & kGroupBegin) == 0) continue;
    const int2 group = group_at<kRows>(counts, row, row_count);
    const int32_t chunks = (group.y + kChunkKeys - 1) / kChunkKeys;
    if (chunks == 0) continue;
    groups[row] = static_cast<uint32_t>(chunks << 4 | group.x);
    cost += chunks * cost_of(group.x);
    ++group_count;
  }
  before_mine<false>(group_count, 0, warp_totals, &group_count);
  before_mine<false>(cost, 0, warp_totals, &total);

  // The least cost of a part with which there are enough blocks: every warp tries one.
  int32_t part_cost = 0;
  if (group_count <= blocks) {
    const int32_t least = (total + blocks - 1) / blocks;
    const int32_t tried = least + (least + cost_of(kRows)) * (thread / 32) / (kWarps - 1);
    int32_t parts = 0;
    for (int32_t row = lane; row < row_count; row += 32) {
      const auto group = static_cast<int32_t>(groups[row]);
      if (group == 0) continue;
      const int32_t chunks = max(1, tried / cost_of(group & 15));
      parts += ((group >> 4) + chunks - 1) / chunks;
    }
    parts = __reduce_add_sync(0xFFFFFFFFU, parts);
    if (lane == 0) warp_totals[thread / 32] = parts <= blocks ? tried : 0;
    __syncthreads();
#pragma unroll
    for (int32_t w = kWarps - 1; w >= 0; --w) {
      if (warp_totals[w] != 0) part_cost = warp_totals[w];
    }
    __syncthreads();
  }
  const auto low = static_cast<int32_t>(int64_t{total} * block / blocks);
  const auto high = static_cast<int32_t>(int64_t{total} * (block + 1) / blocks);
  int32_t earlier = 0;  // parts, or cost, of the groups before
  for (int32_t first = 0; first < row_count; first += kScoreThreads) {
    const int32_t row = first + thread;
    const auto group = static_cast<int32_t>(row < row_count ? groups[row] : 0);
    const int32_t chunks = group >> 4;
    const int32_t each = cost_of(group & 15);
    int32_t own = 0;
    if (group != 0) {
      const int32_t part = max(1, part_cost / each);
      own = part_cost != 0 ? (chunks + part - 1) / part : chunks * each;
    }
    const int32_t begin = earlier + before_mine<false>(own, 0, warp_totals, &total);
    earlier += total;
    if (own == 0) continue;
    if (part_cost != 0) {
      const int32_t part = block - begin;
      if (part < 0 || part >= own) continue;
      *share = {row, static_cast<int32_t>(int64_t{chunks} * part / own) * kChunkKeys, row,
                static_cast<int32_t>(int64_t{chunks} * (part + 1) / own) * kChunkKeys};
      continue;
    }
    if (begin <= low && low < begin + own) {
      share->row = row;
      share->key = (low - begin) / each * kChunkKeys;
    }
    if (begin <= high && high < begin + own) {
      share->last_row = row;
      share->last_key = (high - begin) / each * kChunkKeys;
    }
  }
  __syncthreads();
}

}  // namespace galley::kernels::cuda
