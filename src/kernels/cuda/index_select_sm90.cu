// Exact selection of the best entries and of the candidate pool's blocks, a block a row.
//
// A row's scores are seen as parts, 1,024 or more, and the largest score of each is found; what as
// many of these as are looked for reach, at least so many scores reach, and where large scores lie
// apart not many more (some 710 where 512 are looked for). So the threshold needs no guess. Of more
// than 32,768 entries the scores' kernel leaves the largest of every 64, and only the scores of
// groups whose largest one reaches the threshold are read. Among these candidates the last chosen
// one is found by halving; of those equal to it the lower entries win, and a place in the result
// is a count of bits in front of it, so candidates may be found in any order. Where they are more
// than 4,096 (many equal scores) the last chosen key is found digit by digit among all. Counts are
// integers, so no order of the atomics matters.
//
// Tried: halving by one warp for all instead of by the block (2 to 3 times as long); candidates
// listed in order, each warp twice through its part (25,000 cycles instead of 10,000 for a row of
// 64k). Code that runs once comes slowly: long unrolled ways cost more than the loads that they
// overlap.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/cuda/index_sm90.cuh"
#include "kernels/cuda/ordered_launch.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int32_t kSelectThreads = 1024;
constexpr int32_t kSelectWarps = kSelectThreads / 32;
constexpr int32_t kBins = 2048;
constexpr int32_t kCandidatesMax = 4096;  // that a row's choice is made among
constexpr int32_t kGroupsMax = 2048;      // of kIndexGroup entries, that are looked through
constexpr int32_t kEachMax = kCandidatesMax / kSelectThreads;

struct SelectShared {
  uint32_t key[kCandidatesMax];
  int32_t entry[kCandidatesMax];
  int32_t groups[kGroupsMax];  // that have candidates, ascending
  uint2 member[kGroupsMax];    // which of each are looked at
  int32_t before[kGroupsMax];  // how many of the groups before
  uint32_t histogram[kBins];
  bool beyond[kCandidatesMax];  // equals the last one, but comes too late
  int32_t candidates;
  uint32_t warp_above[kSelectWarps];
  uint32_t warp_equal[kSelectWarps];
  int32_t found_bin;
  uint32_t found_above;
};

// What is chosen: the `keep` best of `count` scores, keep < count, in order.
struct Choice {
  const float* scores;
  const uint32_t* largest;  // of every kIndexGroup scores, or null
  const int32_t* blocks;    // of the pool that they are of, or null
  int32_t* chosen;
  int32_t count;
  int32_t keep;

  __device__ __forceinline__ void put(int32_t place, int32_t entry) const {
    chosen[place] = blocks == nullptr ? entry
                                      : blocks[entry / kIndexPoolBlock] * kIndexPoolBlock +
                                            entry % kIndexPoolBlock;
  }
};

__device__ __forceinline__ int32_t lane_id() { return static_cast<int32_t>(threadIdx.x & 31); }
__device__ __forceinline__ int32_t warp_id() { return static_cast<int32_t>(threadIdx.x / 32); }
__device__ __forceinline__ uint32_t key_of(float score) { return sortable(score); }
__device__ __forceinline__ uint32_t key_of(uint32_t key) { return key; }

// A value that at least `keep` of all threads' values reach, `kOwn` of each thread, and as few more
// as `slack`, if such a value is found: between `low`, which enough reach, and `high`. How many
// reach it, or -1, comes with it.
template <int kOwn>
__device__ __forceinline__ int2 bisect(const uint32_t (&value)[kOwn], uint32_t low, uint32_t high,
                                       int32_t keep, int32_t slack) {
  int32_t reach = -1;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2 + 1;
    int32_t own = 0;
#pragma unroll
    for (int32_t i = 0; i < kOwn; ++i) own += value[i] >= middle ? 1 : 0;
    int32_t count = __syncthreads_count(own & 1);
#pragma unroll
    for (int32_t bit = 1; 1 << bit <= kOwn; ++bit) {
      count += __syncthreads_count(own >> bit & 1) << bit;
    }
    if (count >= keep) {
      low = middle;
      reach = count;
      if (count <= keep + slack) break;
    } else {
      high = middle - 1;
    }
  }
  return make_int2(static_cast<int32_t>(low), reach);
}

// Smallest and largest of all threads' values.
__device__ __forceinline__ uint2 block_range(SelectShared& s, uint32_t low, uint32_t high) {
  low = __reduce_min_sync(0xFFFFFFFFU, low);
  high = __reduce_max_sync(0xFFFFFFFFU, high);
  if (lane_id() == 0) {
    s.warp_above[warp_id()] = low;
    s.warp_equal[warp_id()] = high;
  }
  __syncthreads();
  low = __reduce_min_sync(0xFFFFFFFFU, s.warp_above[lane_id()]);
  high = __reduce_max_sync(0xFFFFFFFFU, s.warp_equal[lane_id()]);
  __syncthreads();
  return make_uint2(low, high);
}

// The values [0, count) above `limit`, and the first `ties` of those that equal it, in order:
// put(place, index, value) of each. Their number. Every warp has a part of all, and reads it again
// when it knows its places.
template <int kAhead, class Load, class Put>
__device__ __forceinline__ int32_t pick(SelectShared& s, int32_t count, uint32_t limit,
                                        uint32_t ties, const Load& load, const Put& put) {
  const int32_t lane = lane_id();
  const int32_t warp = warp_id();
  const uint32_t lower = (1U << lane) - 1U;
  const int32_t lines = (count + kSelectThreads - 1) / kSelectThreads;  // of each warp
  const int32_t first = warp * lines * 32 + lane;
  const auto each = [&](const auto& use) {
#pragma unroll 1
    for (int32_t line = 0; line < lines; line += kAhead) {
      decltype(load(0)) value[kAhead];
#pragma unroll
      for (int32_t j = 0; j < kAhead; ++j) value[j] = load(min(first + (line + j) * 32, count - 1));
#pragma unroll
      for (int32_t j = 0; j < kAhead; ++j) {
        const int32_t i = first + (line + j) * 32;
        const bool valid = line + j < lines && i < count;
        const uint32_t key = key_of(value[j]);
        use(i, key, __ballot_sync(0xFFFFFFFFU, valid && key > limit),
            __ballot_sync(0xFFFFFFFFU, valid && key == limit));
      }
    }
  };
  uint32_t above = 0;
  uint32_t equal = 0;
  each([&](int32_t, uint32_t, uint32_t higher, uint32_t same) {
    above += __popc(higher);
    equal += __popc(same);
  });
  if (lane == 0) {
    s.warp_above[warp] = above;
    s.warp_equal[warp] = equal;
  }
  __syncthreads();
  const uint32_t aboves = s.warp_above[lane];
  const uint32_t equals = s.warp_equal[lane];
  uint32_t above_before = __reduce_add_sync(0xFFFFFFFFU, lane < warp ? aboves : 0);
  uint32_t equal_before = __reduce_add_sync(0xFFFFFFFFU, lane < warp ? equals : 0);
  const uint32_t all =
      __reduce_add_sync(0xFFFFFFFFU, aboves) + min(ties, __reduce_add_sync(0xFFFFFFFFU, equals));
  if (above + equal != 0) {
    each([&](int32_t i, uint32_t key, uint32_t higher, uint32_t same) {
      const uint32_t my_above = above_before + __popc(higher & lower);
      const uint32_t my_equal = equal_before + __popc(same & lower);
      if ((higher >> lane & 1) != 0 || ((same >> lane & 1) != 0 && my_equal < ties)) {
        put(static_cast<int32_t>(my_above + min(my_equal, ties)), i, key);
      }
      above_before += __popc(higher);
      equal_before += __popc(same);
    });
  }
  __syncthreads();  // what was put is there, and the counts have been read
  return static_cast<int32_t>(all);
}

// The bin that holds the `wanted`-th largest of the histogram, and how many lie in bins above.
__device__ __forceinline__ void find_bin(SelectShared& s, uint32_t wanted) {
  constexpr int32_t kOwn = kBins / kSelectThreads;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  uint32_t own[kOwn];  // from the highest bin down
  uint32_t sum = 0;
#pragma unroll
  for (int32_t i = 0; i < kOwn; ++i) {
    own[i] = s.histogram[kBins - 1 - kOwn * thread - i];
    sum += own[i];
  }
  const uint32_t mine = sum;
#pragma unroll
  for (int32_t offset = 1; offset < 32; offset *= 2) {
    const uint32_t before = __shfl_up_sync(0xFFFFFFFFU, sum, offset);
    if (lane_id() >= offset) sum += before;
  }
  if (lane_id() == 31) s.warp_above[warp_id()] = sum;
  __syncthreads();
  uint32_t before = lane_id() < warp_id() ? s.warp_above[lane_id()] : 0;
  before = __reduce_add_sync(0xFFFFFFFFU, before) + sum - mine;
  if (before < wanted && wanted <= before + mine) {
    for (int32_t i = 0; i < kOwn; ++i) {
      if (wanted <= before + own[i]) {
        s.found_bin = kBins - 1 - kOwn * thread - i;
        s.found_above = before;
        break;
      }
      before += own[i];
    }
  }
  __syncthreads();
}

// The last chosen key digit by digit, over all scores, where candidates are too many; and how many
// of those that equal it are chosen.
__device__ __forceinline__ uint2 descend(SelectShared& s, const Choice& c) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  auto wanted = static_cast<uint32_t>(c.keep);
  uint32_t prefix = 0;
  int32_t bits = 32;  // of the key that are open
  while (bits > 0) {
    const int32_t rest = max(0, bits - 11);
    for (int32_t i = thread; i < kBins; i += kSelectThreads) s.histogram[i] = 0;
    __syncthreads();
    for (int32_t i = thread; i < c.count; i += kSelectThreads) {
      const uint32_t key = sortable(c.scores[i]);
      if (static_cast<uint64_t>(key) >> bits == prefix) {
        atomicAdd(&s.histogram[key >> rest & ((1U << (bits - rest)) - 1U)], 1U);
      }
    }
    __syncthreads();
    find_bin(s, wanted);
    prefix = prefix << (bits - rest) | static_cast<uint32_t>(s.found_bin);
    wanted -= s.found_above;
    bits = rest;
    __syncthreads();
  }
  return make_uint2(prefix, wanted);
}

// What at least `keep` scores reach, and not many more: as many largest ones of parts of all
// scores do. kOwn parts a thread.
template <int kOwn>
__device__ __forceinline__ uint32_t likely_threshold(SelectShared& s, const Choice& c) {
  constexpr int32_t kAhead = 8;
  static_assert(kAhead % kOwn == 0);
  const bool grouped = c.largest != nullptr;
  const int32_t count = grouped ? (c.count + kIndexGroup - 1) / kIndexGroup : c.count;
  if (min(count, kOwn * kSelectThreads) < c.keep) return 0;
  const auto* const from = grouped ? c.largest : reinterpret_cast<const uint32_t*>(c.scores);
  uint32_t parts[kOwn] = {};
#pragma unroll 1
  for (int32_t begin = 0; begin < count; begin += kAhead * kSelectThreads) {
    const int32_t first = begin + static_cast<int32_t>(threadIdx.x);
    uint32_t value[kAhead];
#pragma unroll
    for (int32_t j = 0; j < kAhead; ++j)
      value[j] = from[min(first + j * kSelectThreads, count - 1)];
#pragma unroll
    for (int32_t j = 0; j < kAhead; ++j) {
      const uint32_t key = grouped ? value[j] : sortable(__uint_as_float(value[j]));
      parts[j % kOwn] = max(parts[j % kOwn], first + j * kSelectThreads < count ? key : 0);
    }
  }
  uint32_t low = parts[0];
  uint32_t high = parts[0];
#pragma unroll
  for (int32_t i = 1; i < kOwn; ++i) {
    low = min(low, parts[i]);
    high = max(high, parts[i]);
  }
  const uint2 range = block_range(s, low, high);
  return static_cast<uint32_t>(bisect<kOwn>(parts, range.x, range.y, c.keep, c.keep / 16).x);
}

// Of the candidates that `is` says, each one's place among them by entry: place(candidate, place).
template <class Is, class Place>
__device__ __forceinline__ void rank(SelectShared& s, int32_t groups, int32_t candidates,
                                     const Is& is, const Place& place) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  constexpr int32_t kOwn = kGroupsMax / kSelectThreads;
#pragma unroll
  for (int32_t j = 0; j < kOwn; ++j) s.member[thread * kOwn + j] = make_uint2(0, 0);
  __syncthreads();
  for (int32_t i = thread; i < candidates; i += kSelectThreads) {
    if (!is(i)) continue;
    uint2& group = s.member[s.entry[i] / kIndexGroup];
    atomicOr((s.entry[i] & 32) != 0 ? &group.y : &group.x, 1U << (s.entry[i] & 31));
  }
  __syncthreads();
  int32_t own[kOwn];
  int32_t sum = 0;
#pragma unroll
  for (int32_t j = 0; j < kOwn; ++j) {
    const uint2 group = s.member[thread * kOwn + j];
    own[j] = sum;
    sum += __popc(group.x) + __popc(group.y);
  }
  int32_t up_to = sum;
#pragma unroll
  for (int32_t offset = 1; offset < 32; offset *= 2) {
    const int32_t other = __shfl_up_sync(0xFFFFFFFFU, up_to, offset);
    if (lane_id() >= offset) up_to += other;
  }
  if (lane_id() == 31) s.warp_above[warp_id()] = up_to;
  __syncthreads();
  const auto earlier = static_cast<int32_t>(
      __reduce_add_sync(0xFFFFFFFFU, lane_id() < warp_id() ? s.warp_above[lane_id()] : 0));
#pragma unroll
  for (int32_t j = 0; j < kOwn; ++j) {
    s.before[thread * kOwn + j] = earlier + up_to - sum + own[j];
  }
  __syncthreads();
  for (int32_t i = thread; i < candidates; i += kSelectThreads) {
    if (!is(i)) continue;
    const int32_t at = s.entry[i] / kIndexGroup;
    const uint2 group = s.member[at];
    const uint32_t lower = (1U << (s.entry[i] & 31)) - 1U;
    place(i, s.before[at] + ((s.entry[i] & 32) != 0 ? __popc(group.x) + __popc(group.y & lower)
                                                    : __popc(group.x & lower)));
  }
  __syncthreads();
}

// Candidates, the scores that reach `threshold`, of `groups` groups; in no order. s.entry is the
// number of the group x kIndexGroup and the place in it. Their number, which may be too large.
__device__ __forceinline__ int32_t find_candidates(SelectShared& s, const Choice& c, int32_t groups,
                                                   bool listed, uint32_t threshold) {
  const int32_t lane = lane_id();
  const float least =
      __uint_as_float((threshold & 0x80000000U) != 0 ? threshold & 0x7FFFFFFFU : ~threshold);
  if (threadIdx.x == 0) s.candidates = 0;
  __syncthreads();
  // Four scores a thread and line, two groups a warp and line.
  constexpr int32_t kAhead = 3;  // code that runs once is slow to come
  constexpr int32_t kLine = 128 / kIndexGroup;
  const int32_t lines = (groups + kLine - 1) / kLine;
  const int32_t place = lane % (32 / kLine) * 4;
#pragma unroll 1
  for (int32_t first = warp_id(); first < lines; first += kAhead * kSelectWarps) {
    float4 value[kAhead];
    uint32_t hits[kAhead];
#pragma unroll
    for (int32_t j = 0; j < kAhead; ++j) {
      const int32_t group = (first + j * kSelectWarps) * kLine + lane / (32 / kLine);
      int32_t entry = c.count;
      if (group < groups) entry = (listed ? s.groups[group] : group) * kIndexGroup + place;
      hits[j] = (1U << min(4, max(0, c.count - entry))) - 1;  // those that are there
      value[j] = *reinterpret_cast<const float4*>(c.scores + (entry < c.count ? entry : 0));
    }
    int32_t own = 0;
#pragma unroll
    for (int32_t j = 0; j < kAhead; ++j) {
      if (threshold != 0) {
        hits[j] &= (value[j].x >= least ? 1U : 0U) | (value[j].y >= least ? 2U : 0U) |
                   (value[j].z >= least ? 4U : 0U) | (value[j].w >= least ? 8U : 0U);
      }
      own += __popc(hits[j]);
    }
    int32_t up_to = own;
#pragma unroll
    for (int32_t offset = 1; offset < 32; offset *= 2) {
      const int32_t other = __shfl_up_sync(0xFFFFFFFFU, up_to, offset);
      if (lane >= offset) up_to += other;
    }
    int32_t at = 0;
    if (lane == 31) at = atomicAdd(&s.candidates, up_to);
    at = __shfl_sync(0xFFFFFFFFU, at, 31) + up_to - own;
    if (at + own > kCandidatesMax) continue;  // too many: none of them counts
#pragma unroll
    for (int32_t j = 0; j < kAhead; ++j) {
      if (hits[j] == 0) continue;
      const int32_t group = (first + j * kSelectWarps) * kLine + lane / (32 / kLine);
      const float each[4] = {value[j].x, value[j].y, value[j].z, value[j].w};
#pragma unroll
      for (int32_t k = 0; k < 4; ++k) {
        if ((hits[j] >> k & 1) == 0) continue;
        s.key[at] = sortable(each[k]);
        s.entry[at] = group * kIndexGroup + place + k;
        ++at;
      }
    }
  }
  __syncthreads();
  return s.candidates;
}

// By all scores: where candidates are too many.
__device__ __forceinline__ void choose_among_all(SelectShared& s, const Choice& c) {
  const uint2 last = descend(s, c);
  pick<8>(
      s, c.count, last.x, last.y, [&](int32_t i) { return c.scores[i]; },
      [&](int32_t place, int32_t i, uint32_t) { c.put(place, i); });
}

__device__ __forceinline__ void choose(SelectShared& s, const Choice& c, uint32_t threshold) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const bool listed = c.largest != nullptr;
  int32_t groups = (c.count + kIndexGroup - 1) / kIndexGroup;
  if (listed && threshold != 0) {
    groups = pick<4>(
        s, groups, threshold - 1, 0, [&](int32_t i) { return c.largest[i]; },
        [&](int32_t place, int32_t i, uint32_t) {
          if (place < kGroupsMax) s.groups[place] = i;
        });
  }
  int32_t candidates = kCandidatesMax + 1;
  if (groups <= kGroupsMax && (!listed || threshold != 0)) {
    candidates = find_candidates(s, c, groups, listed, threshold);
  }
  if (candidates > kCandidatesMax || candidates < c.keep) {
    choose_among_all(s, c);
    return;
  }
  // The last chosen key: between it and the next larger one lies no other.
  uint32_t keys[kEachMax];
  uint32_t high = 0;
#pragma unroll
  for (int32_t i = 0; i < kEachMax; ++i) {
    const int32_t at = thread + i * kSelectThreads;
    keys[i] = at < candidates ? s.key[at] : 0;
    high = max(high, keys[i]);
  }
  high = block_range(s, 0, high).y;
  int2 found;
  if (candidates <= kSelectThreads) {
    const uint32_t one[1] = {keys[0]};
    found = bisect<1>(one, threshold, high, c.keep, 0);
  } else {
    found = bisect<kEachMax>(keys, threshold, high, c.keep, 0);
  }
  const auto last = static_cast<uint32_t>(found.x);
  const bool ties = found.y != c.keep;
  if (ties) {
    // Of those that equal the last one the first: the others no longer count.
    int32_t above = 0;
#pragma unroll
    for (int32_t i = 0; i < kEachMax; ++i) above += __syncthreads_count(keys[i] > last ? 1 : 0);
    rank(
        s, groups, candidates, [&](int32_t i) { return s.key[i] == last; },
        [&](int32_t i, int32_t place) { s.beyond[i] = place >= c.keep - above; });
  }
  rank(
      s, groups, candidates,
      [&](int32_t i) { return s.key[i] > last || (s.key[i] == last && !(ties && s.beyond[i])); },
      [&](int32_t i, int32_t place) {
        const int32_t group = s.entry[i] / kIndexGroup;
        c.put(place, (listed ? s.groups[group] : group) * kIndexGroup + s.entry[i] % kIndexGroup);
      });
}

__global__ void __launch_bounds__(kSelectThreads) select_kernel(const IndexParameters p) {
  await_earlier();
  extern __shared__ __align__(16) uint8_t shared_bytes[];
  SelectShared& s = *reinterpret_cast<SelectShared*>(shared_bytes);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const auto row_index = static_cast<int32_t>(blockIdx.x);
  const bool pool = blockIdx.y != 0;
  const IndexRow& row = p.call.rows[row_index];
  if (pool && row.built_pool == nullptr) return;
  const int32_t eligible = eligible_of(row);
  const int64_t stride = p.scratch.stride;
  Choice c;
  if (pool) {
    c = {p.scratch.block_scores + row_index * (stride / kIndexPoolBlock),
         nullptr,
         nullptr,
         row.built_pool,
         blocks_of(eligible),
         p.call.shape.pool_blocks};
  } else {
    c = {p.scratch.scores + row_index * stride,
         eligible > kDirectEntries ? p.scratch.largest + row_index * (stride / kIndexGroup)
                                   : nullptr,
         row.pool,
         row.selected,
         eligible,
         p.call.shape.top_k};
  }
  if (thread == 0) *(pool ? row.built_pool_count : row.selected_count) = min(c.keep, c.count);
  if (!pool && row.scores != nullptr) {
    for (int32_t i = thread; i < c.count; i += kSelectThreads) row.scores[i] = c.scores[i];
  }
  if (c.count <= c.keep) {
    for (int32_t i = thread; i < c.count; i += kSelectThreads) c.put(i, i);
    return;
  }
  const uint32_t threshold =
      c.keep <= kSelectThreads / 2 ? likely_threshold<1>(s, c) : likely_threshold<4>(s, c);
  choose(s, c, threshold);
}

void launch_select(const IndexParameters& p, Stream stream) {
  const dim3 blocks(static_cast<uint32_t>(p.call.row_count), p.call.builds_pool ? 2 : 1);
  launch_kernel(select_kernel, {blocks, kSelectThreads, sizeof(SelectShared)}, stream, p);
}

int64_t stride_of(int64_t entries_max) { return (entries_max + 63) / 64 * 64; }

size_t row_bytes(int64_t entries_max, bool builds_pool) {
  const auto stride = static_cast<size_t>(stride_of(entries_max));
  return stride * sizeof(float) + stride / kIndexGroup * sizeof(uint32_t) +
         (builds_pool ? stride / kIndexPoolBlock * sizeof(float) : 0);
}

}  // namespace

bool index_select_sm90_supports(const IndexShape& shape, int32_t records_per_page) {
  return (shape.heads == 32 || shape.heads == 64) && shape.head_dim == kIndexWidth &&
         (shape.pool_blocks == 0 || shape.pool_block_size == kIndexPoolBlock) &&
         records_per_page % kIndexPoolBlock == 0;
}

size_t index_scratch_bytes(int64_t rows, int64_t entries_max, bool builds_pool) {
  return static_cast<size_t>(std::min<int64_t>(rows, kIndexRowsMax)) *
         row_bytes(entries_max, builds_pool);
}

void index_select_sm90(const IndexCall& call, int32_t multiprocessors, Stream stream) {
  if (call.row_count == 0) return;
  CHECK(call.scratch_bytes >= index_scratch_bytes(1, call.entries_max, call.builds_pool));
  const int64_t rows_at_once = std::min<int64_t>(
      kIndexRowsMax,
      static_cast<int64_t>(call.scratch_bytes / row_bytes(call.entries_max, call.builds_pool)));
  const auto factor = static_cast<float>(std::pow(static_cast<double>(call.shape.head_dim), -0.5) *
                                         std::pow(static_cast<double>(call.shape.heads), -0.5));
  for (int64_t first = 0; first < call.row_count; first += rows_at_once) {
    IndexParameters p = {};
    p.call = call;
    p.call.queries += first * call.query_stride;
    p.call.head_weights += first * call.weight_stride;
    p.call.rows += first;
    p.call.row_count = static_cast<int32_t>(std::min(rows_at_once, call.row_count - first));
    p.factor = factor;
    p.scratch.stride = stride_of(call.entries_max);
    p.scratch.scores = static_cast<float*>(call.scratch);
    p.scratch.block_scores = p.scratch.scores + rows_at_once * p.scratch.stride;
    p.scratch.largest = reinterpret_cast<uint32_t*>(
        p.scratch.block_scores +
        (call.builds_pool ? rows_at_once * (p.scratch.stride / kIndexPoolBlock) : 0));
    launch_index_scores(p, multiprocessors, stream);
    launch_select(p, stream);
  }
}

}  // namespace galley::kernels::cuda
