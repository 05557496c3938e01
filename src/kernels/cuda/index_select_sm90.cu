// Exact selection of the best entries and of the candidate pool's blocks.
//
// A sample tells a score that the entries looked for and not many more reach. Every warp of the
// row's cluster lists those of its own part; the first block gathers the lists, which lie in the
// order of entries, finds the last chosen key among them digit by digit and writes them ascending;
// of entries equal to the last one the lower win. Up to 8,192 entries are one block's work. The
// choice is exact whatever the sample says: where too few reach it, or more than fit (many equal
// scores), all blocks count all scores digit by digit instead. Counts are integers, so no order of
// the atomics matters.
//
// Measured on one H200: 18.5 us for 64 rows over 4k of context inside a step, where it began with
// counts in memory at 85.
// Finding the sample's threshold bit by bit took 6 us longer for 64 rows of 64k scores, a sample
// of 8,192 instead of 4,096 the same for 128 rows of 4k: scores share few first digits, and atomics
// on one address wait for each other.
#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/cuda/index_sm90.cuh"
#include "kernels/cuda/ordered_launch.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int32_t kSelectThreads = 512;
constexpr int32_t kSelectWarps = kSelectThreads / 32;
constexpr int32_t kBins = 2048;
constexpr int32_t kBinBits = 11;
// Scores that tell where the last chosen one may lie: of many, more.
constexpr int32_t kSample = 4096;
constexpr int32_t kFewSampled = 2048;
constexpr int32_t kManyEntries = 131072;
constexpr int32_t kListEntries = 256;   // candidates that a warp holds
constexpr int32_t kGatheredMax = 7168;  // those that one CTA finishes for its cluster
constexpr int32_t kAloneMax = 8192;     // entries from which one CTA chooses without its cluster

struct SelectShared {
  uint32_t histogram[kBins];  // of this CTA
  uint32_t total[kBins];      // of the cluster
  uint32_t list_key[kSelectWarps][kListEntries];
  int32_t list_entry[kSelectWarps][kListEntries];
  uint32_t gathered_key[kGatheredMax];
  int32_t gathered_entry[kGatheredMax];
  int32_t list_begin[kSelectThreads];  // of the cluster's lists, one after the other
  int32_t warp_kept[kSelectWarps];     // negative: more than the list holds
  int32_t warp_counts[kSelectWarps];
  uint32_t warp_sums[kSelectWarps];
  uint32_t warp_above[kSelectWarps];
  uint32_t warp_equal[kSelectWarps];
  uint32_t above;  // of this CTA, read by the others
  uint32_t equal;
  int32_t found_bin;
  uint32_t found_above;
  uint32_t found_count;
};

// The bin that holds the `wanted`-th largest of counts [kBins], and how many lie in bins above.
__device__ __forceinline__ void find_bin(SelectShared& s, const uint32_t* counts, uint32_t wanted) {
  constexpr int32_t kOwn = kBins / kSelectThreads;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  uint32_t own[kOwn];  // from the highest bin down
  uint32_t sum = 0;
#pragma unroll
  for (int32_t i = 0; i < kOwn; ++i) {
    own[i] = counts[kBins - 1 - kOwn * thread - i];
    sum += own[i];
  }
  const uint32_t mine = sum;
#pragma unroll
  for (int32_t offset = 1; offset < 32; offset *= 2) {
    const uint32_t before = __shfl_up_sync(0xFFFFFFFFU, sum, offset);
    if ((thread & 31) >= offset) sum += before;
  }
  if ((thread & 31) == 31) s.warp_sums[thread / 32] = sum;
  __syncthreads();
  uint32_t before = sum - mine;
#pragma unroll
  for (int32_t w = 0; w < kSelectWarps; ++w) before += w < thread / 32 ? s.warp_sums[w] : 0;
  if (before < wanted && wanted <= before + mine) {
    for (int32_t i = 0; i < kOwn; ++i) {
      if (wanted <= before + own[i]) {
        s.found_bin = kBins - 1 - kOwn * thread - i;
        s.found_above = before;
        s.found_count = own[i];
        break;
      }
      before += own[i];
    }
  }
  __syncthreads();
}

// A key that about `keep` of all keys reach, a few more rather than less: from a sample, the same
// in every CTA of the row.
__device__ __forceinline__ uint32_t likely_threshold(SelectShared& s, const float* scores,
                                                     int32_t count, int32_t keep) {
  constexpr int32_t kOwn = kSample / kSelectThreads;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t sample = min(count, count <= kManyEntries ? kFewSampled : kSample);
  const float step = static_cast<float>(count) / static_cast<float>(sample);  // 1: every one
  float value[kOwn];
#pragma unroll
  for (int32_t j = 0; j < kOwn; ++j) {
    const int32_t i = j * kSelectThreads + thread;
    const int32_t at = min(count - 1, static_cast<int32_t>(static_cast<float>(i) * step));
    value[j] = i < sample ? __ldcg(scores + at) : 0.0F;
  }
  auto wanted = static_cast<uint32_t>(keep);
  if (sample < count) {
    // Five deviations more than the sample is expected to have.
    const float expected =
        static_cast<float>(keep) * static_cast<float>(sample) / static_cast<float>(count);
    wanted = static_cast<uint32_t>(expected + 5.0F * sqrtf(expected) + 3.0F);
  }
  uint32_t prefix = 0;
#pragma unroll
  for (int32_t digit = 0; digit < 2; ++digit) {
    for (int32_t i = thread; i < kBins; i += kSelectThreads) s.histogram[i] = 0;
    __syncthreads();
#pragma unroll
    for (int32_t j = 0; j < kOwn; ++j) {
      const uint32_t key = sortable(value[j]);
      if (j * kSelectThreads + thread >= sample) continue;
      if (digit == 0) {
        atomicAdd(&s.histogram[key >> 21], 1U);
      } else if (key >> 21 == prefix) {
        atomicAdd(&s.histogram[key >> 10 & (kBins - 1)], 1U);
      }
    }
    __syncthreads();
    find_bin(s, s.histogram, wanted);
    prefix = prefix << kBinBits | static_cast<uint32_t>(s.found_bin);
    wanted -= s.found_above;
  }
  return prefix << 10;
}

// The histogram of all CTAs that choose.
__device__ __forceinline__ const uint32_t* reduce_histograms(
    cooperative_groups::cluster_group cluster, SelectShared& s, bool alone) {
  if (alone) {
    __syncthreads();
    return s.histogram;
  }
  cluster.sync();
  const auto ranks = static_cast<int32_t>(cluster.num_blocks());
  const int32_t share = kBins / ranks;
  for (int32_t i = threadIdx.x; i < share; i += kSelectThreads) {
    const int32_t bin = static_cast<int32_t>(cluster.block_rank()) * share + i;
    uint32_t sum = 0;
    for (int32_t r = 0; r < ranks; ++r) sum += *cluster.map_shared_rank(&s.histogram[bin], r);
    for (int32_t r = 0; r < ranks; ++r) *cluster.map_shared_rank(&s.total[bin], r) = sum;
  }
  cluster.sync();
  return s.total;
}

// The candidates of all `ranks` CTAs in order into the first one's memory. Their number; fewer
// than `keep`, or -1, in every CTA where they are not what is looked for.
__device__ __forceinline__ int32_t gather(cooperative_groups::cluster_group cluster,
                                          SelectShared& s, int32_t ranks, int32_t keep) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t lane = thread & 31;
  const bool alone = ranks == 1;
  const auto meet = [&] {
    if (alone) {
      __syncthreads();
    } else {
      cluster.sync();
    }
  };
  meet();
  int32_t kept = 0;
  if (thread < ranks * kSelectWarps) {
    const int32_t* const there = &s.warp_kept[thread % kSelectWarps];
    kept = alone ? *there : *cluster.map_shared_rank(there, thread / kSelectWarps);
  }
  const bool lost = __syncthreads_or(kept < 0 ? 1 : 0) != 0;
  int32_t up_to = kept;
#pragma unroll
  for (int32_t offset = 1; offset < 32; offset *= 2) {
    const int32_t other = __shfl_up_sync(0xFFFFFFFFU, up_to, offset);
    if (lane >= offset) up_to += other;
  }
  if (lane == 31) s.warp_counts[thread / 32] = up_to;
  __syncthreads();
  int32_t total = 0;
  int32_t before = 0;
#pragma unroll
  for (int32_t w = 0; w < kSelectWarps; ++w) {
    if (w == thread / 32) before = total;
    total += s.warp_counts[w];
  }
  if (lost || total > kGatheredMax) return -1;
  if (total < keep) return total;
  if (alone || cluster.block_rank() == 0) {
    s.list_begin[thread] = before + up_to - kept;
    __syncthreads();
    constexpr int32_t kAhead = 4;
    for (int32_t first = thread; first < total; first += kSelectThreads * kAhead) {
      uint32_t key[kAhead];
      int32_t entry[kAhead];
#pragma unroll
      for (int32_t j = 0; j < kAhead; ++j) {
        // The last list that begins at or before it: empty ones begin where the next does.
        const int32_t i = min(first + j * kSelectThreads, total - 1);
        int32_t list = 0;
#pragma unroll
        for (int32_t half = kSelectThreads / 2; half > 0; half /= 2) {
          if (s.list_begin[list + half] <= i) list += half;
        }
        list = min(list, ranks * kSelectWarps - 1);
        const uint32_t* keys = s.list_key[list % kSelectWarps];
        const int32_t* entries = s.list_entry[list % kSelectWarps];
        if (!alone) {
          keys = cluster.map_shared_rank(keys, list / kSelectWarps);
          entries = cluster.map_shared_rank(entries, list / kSelectWarps);
        }
        key[j] = keys[i - s.list_begin[list]];
        entry[j] = entries[i - s.list_begin[list]];
      }
#pragma unroll
      for (int32_t j = 0; j < kAhead; ++j) {
        const int32_t i = first + j * kSelectThreads;
        if (i >= total) break;
        s.gathered_key[i] = key[j];
        s.gathered_entry[i] = entry[j];
      }
    }
  }
  meet();  // the lists have been read
  return total;
}

// A warp's part of the scores, or of the candidates, in order.
struct Candidates {
  const float* scores;  // or null
  const uint32_t* keys;
  const int32_t* entries;
  int32_t begin;
  int32_t end;

  // use(valid, key, entry) by all lanes together.
  template <class Use>
  __device__ __forceinline__ void each(const Use& use) const {
    const int32_t lane = threadIdx.x & 31;
    if (scores == nullptr) {
      for (int32_t i = begin; i < end; i += 32) {
        const bool valid = i + lane < end;
        use(valid, valid ? keys[i + lane] : 0, valid ? entries[i + lane] : 0);
      }
      return;
    }
    constexpr int32_t kAhead = 8;
    for (int32_t i = begin; i < end; i += 32 * kAhead) {
      float value[kAhead];
#pragma unroll
      for (int32_t j = 0; j < kAhead; ++j) {
        const int32_t entry = i + j * 32 + lane;
        value[j] = entry < end ? __ldcg(scores + entry) : 0.0F;
      }
#pragma unroll
      for (int32_t j = 0; j < kAhead; ++j) {
        const int32_t entry = i + j * 32 + lane;
        use(entry < end, sortable(value[j]), entry);
      }
    }
  }
};

// This warp's entries from `threshold` on into its list; how many, or -1.
__device__ __forceinline__ int32_t list_candidates(SelectShared& s, const Candidates& mine,
                                                   uint32_t threshold) {
  const int32_t lane = threadIdx.x & 31;
  const auto warp = static_cast<int32_t>(threadIdx.x) / 32;
  int32_t kept = 0;
  constexpr int32_t kAhead = 16;
  for (int32_t i = mine.begin; i < mine.end; i += 32 * kAhead) {
    float value[kAhead];
#pragma unroll
    for (int32_t j = 0; j < kAhead; ++j) {
      const int32_t entry = i + j * 32 + lane;
      value[j] = entry < mine.end ? __ldcg(mine.scores + entry) : 0.0F;
    }
#pragma unroll
    for (int32_t j = 0; j < kAhead; ++j) {
      const int32_t entry = i + j * 32 + lane;
      const uint32_t key = sortable(value[j]);
      const bool candidate = entry < mine.end && key >= threshold;
      const uint32_t votes = __ballot_sync(0xFFFFFFFFU, candidate);
      if (votes == 0) continue;
      if (kept + __popc(votes) > kListEntries) return -1;
      const int32_t at = kept + __popc(votes & ((1U << lane) - 1U));
      if (candidate) {
        s.list_key[warp][at] = key;
        s.list_entry[warp][at] = entry;
      }
      kept += __popc(votes);
    }
  }
  return kept;
}

__global__ void __launch_bounds__(kSelectThreads, 2) select_kernel(const IndexParameters p) {
  await_earlier();
  namespace cg = cooperative_groups;
  cg::cluster_group cluster = cg::this_cluster();
  extern __shared__ __align__(16) uint8_t shared_bytes[];
  SelectShared& s = *reinterpret_cast<SelectShared*>(shared_bytes);
  auto ranks = static_cast<int32_t>(cluster.num_blocks());
  const auto rank = static_cast<int32_t>(cluster.block_rank());
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t lane = thread & 31;
  const int32_t warp = thread / 32;
  const int32_t row_index = blockIdx.x / ranks;
  const bool pool = blockIdx.y != 0;
  const IndexRow& row = p.call.rows[row_index];
  const int32_t eligible = eligible_of(row);
  const int32_t count = pool ? blocks_of(eligible) : eligible;
  const int32_t keep = pool ? p.call.shape.pool_blocks : p.call.shape.top_k;
  int32_t* const chosen = pool ? row.built_pool : row.selected;
  const int32_t* const blocks = pool ? nullptr : row.pool;
  const auto id_of = [&](int32_t entry) {
    return blocks == nullptr
               ? entry
               : blocks[entry / kIndexPoolBlock] * kIndexPoolBlock + entry % kIndexPoolBlock;
  };
  const float* scores =
      pool ? p.scratch.block_scores + row_index * (p.scratch.stride / kIndexPoolBlock)
           : p.scratch.scores + row_index * p.scratch.stride;
  if (pool && row.built_pool == nullptr) return;
  if (rank == 0 && thread == 0) {
    *(pool ? row.built_pool_count : row.selected_count) = min(keep, count);
  }
  if (!pool && row.scores != nullptr) {
    for (int32_t i = rank * kSelectThreads + thread; i < count; i += ranks * kSelectThreads) {
      row.scores[i] = scores[i];
    }
  }
  if (count <= keep) {
    for (int32_t i = rank * kSelectThreads + thread; i < count; i += ranks * kSelectThreads) {
      chosen[i] = id_of(i);
    }
    return;
  }
  if (count <= kAloneMax) {
    if (rank != 0) return;
    ranks = 1;
  }
  bool alone = ranks == 1;

  const int32_t per_warp = (count + ranks * kSelectThreads - 1) / (ranks * kSelectThreads) * 32;
  Candidates mine = {scores};
  mine.begin = min(count, (rank * kSelectWarps + warp) * per_warp);
  mine.end = min(count, mine.begin + per_warp);
  uint32_t lowest = likely_threshold(s, scores, count, keep);
  const int32_t kept = list_candidates(s, mine, lowest);
  if (lane == 0) s.warp_kept[warp] = kept;
  const int32_t gathered = gather(cluster, s, ranks, keep);
  int32_t bits = 32;  // in which the keys above `lowest` differ
  if (gathered >= keep) {
    if (rank != 0) return;
    alone = true;
    const int32_t each = (gathered + kSelectThreads - 1) / kSelectThreads * 32;
    mine = {nullptr, s.gathered_key, s.gathered_entry};
    mine.begin = min(gathered, warp * each);
    mine.end = min(gathered, mine.begin + each);
    uint32_t largest = 0;
    mine.each([&](bool valid, uint32_t key, int32_t) {
      if (valid) largest = max(largest, key - lowest);
    });
    largest = __reduce_max_sync(0xFFFFFFFFU, largest);
    if (lane == 0) s.warp_above[warp] = largest;
    __syncthreads();
#pragma unroll
    for (int32_t w = 0; w < kSelectWarps; ++w) largest = max(largest, s.warp_above[w]);
    bits = 32 - __clz(static_cast<int32_t>(largest));
  } else {
    lowest = 0;  // none of that: by all scores
  }

  // The last chosen key, digit by digit: lowest + prefix, its last `bits` bits open.
  auto wanted = static_cast<uint32_t>(keep);
  uint32_t prefix = 0;
  bool whole = false;  // all that begin so are chosen
  while (bits > 0 && !whole) {
    const int32_t rest = max(0, bits - kBinBits);
    for (int32_t i = thread; i < kBins; i += kSelectThreads) s.histogram[i] = 0;
    __syncthreads();
    const uint64_t known = prefix;
    mine.each([&](bool valid, uint32_t key, int32_t) {
      const uint32_t above = key - lowest;
      if (valid && static_cast<uint64_t>(above) >> bits == known) {
        atomicAdd(&s.histogram[above >> rest & ((1U << (bits - rest)) - 1U)], 1U);
      }
    });
    find_bin(s, reduce_histograms(cluster, s, alone), wanted);
    prefix = prefix << (bits - rest) | static_cast<uint32_t>(s.found_bin);
    wanted -= s.found_above;
    bits = rest;
    whole = wanted == s.found_count && (prefix << bits) + lowest > 0;
  }
  // Keys above `limit` are chosen, and the first `ties` of those that equal it.
  const uint32_t limit = lowest + (prefix << bits) - (whole ? 1 : 0);
  const uint32_t ties = whole ? 0 : wanted;

  uint32_t above = 0;
  uint32_t equal = 0;
  mine.each([&](bool valid, uint32_t key, int32_t) {
    above += __popc(__ballot_sync(0xFFFFFFFFU, valid && key > limit));
    equal += __popc(__ballot_sync(0xFFFFFFFFU, valid && key == limit));
  });
  __syncthreads();  // warp_above has been read
  if (lane == 0) {
    s.warp_above[warp] = above;
    s.warp_equal[warp] = equal;
  }
  __syncthreads();
  uint32_t above_before = 0;
  uint32_t equal_before = 0;
  if (!alone) {
    if (thread == 0) {
      s.above = 0;
      s.equal = 0;
      for (int32_t w = 0; w < kSelectWarps; ++w) {
        s.above += s.warp_above[w];
        s.equal += s.warp_equal[w];
      }
    }
    cluster.sync();
    for (int32_t r = 0; r < rank; ++r) {
      above_before += *cluster.map_shared_rank(&s.above, r);
      equal_before += *cluster.map_shared_rank(&s.equal, r);
    }
  }
#pragma unroll
  for (int32_t w = 0; w < kSelectWarps; ++w) {
    above_before += w < warp ? s.warp_above[w] : 0;
    equal_before += w < warp ? s.warp_equal[w] : 0;
  }
  mine.each([&](bool valid, uint32_t key, int32_t entry) {
    const uint32_t above_votes = __ballot_sync(0xFFFFFFFFU, valid && key > limit);
    const uint32_t equal_votes = __ballot_sync(0xFFFFFFFFU, valid && key == limit);
    const uint32_t lower = (1U << lane) - 1U;
    const uint32_t my_above = above_before + __popc(above_votes & lower);
    const uint32_t my_equal = equal_before + __popc(equal_votes & lower);
    if (valid && (key > limit || (key == limit && my_equal < ties))) {
      chosen[my_above + min(my_equal, ties)] = id_of(entry);
    }
    above_before += __popc(above_votes);
    equal_before += __popc(equal_votes);
  });
  if (!alone) cluster.sync();  // the others read this CTA's counts
}

void launch_select(const IndexParameters& p, Stream stream) {
  static_assert(sizeof(SelectShared) < 112 * 1024);
  cudaFuncSetAttribute(select_kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  const int32_t ranks = p.call.row_count <= 8     ? 16
                        : p.call.row_count <= 32  ? 8
                        : p.call.row_count <= 64  ? 4
                        : p.call.row_count <= 128 ? 2
                                                  : 1;
  const dim3 blocks(static_cast<uint32_t>(p.call.row_count * ranks), p.call.builds_pool ? 2 : 1);
  launch_kernel(select_kernel,
                {blocks, kSelectThreads, sizeof(SelectShared), static_cast<uint32_t>(ranks)},
                stream, p);
}

int64_t stride_of(int64_t entries_max) { return (entries_max + 63) / 64 * 64; }

size_t row_bytes(int64_t entries_max, bool builds_pool) {
  const auto stride = static_cast<size_t>(stride_of(entries_max));
  return (builds_pool ? stride + stride / kIndexPoolBlock : stride) * sizeof(float);
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
    launch_index_scores(p, multiprocessors, stream);
    launch_select(p, stream);
  }
}

}  // namespace galley::kernels::cuda
