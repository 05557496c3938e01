// Exact selection of the best entries and of the candidate pool's blocks.
//
// A cluster of CTAs takes a row; each warp has a contiguous part of the scores. The k-th largest
// is found digit by digit over the sortable bits: the scores' kernel has counted the first 11, two
// passes count 11 and 10 more, the second one over the few candidates that the first has kept in
// shared memory. Counts are integers, so no order of the atomics matters. Then every warp knows
// how many it may choose before its own and writes them ascending; of entries equal to the last
// one the lower win.
//
// Measured on one H200: 11.5 us for one row of 64k scores, 25.6 of 1M, 30 for 64 rows of 64k. Not
// taken apart; five meetings of a cluster and a launch are in it.
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
constexpr int32_t kListEntries = 128;  // candidates a warp keeps instead of reading them again

struct SelectShared {
  uint32_t histogram[kIndexBins];  // of this CTA
  uint32_t total[kIndexBins];      // of the cluster
  uint32_t list_key[kSelectWarps][kListEntries];
  int32_t list_entry[kSelectWarps][kListEntries];
  uint32_t warp_sums[kSelectWarps];
  uint32_t warp_above[kSelectWarps];
  uint32_t warp_equal[kSelectWarps];
  uint32_t above;  // of this CTA, read by the others
  uint32_t equal;
  int32_t found_bin;
  uint32_t found_above;
};

// The bin that holds the `wanted`-th largest of counts [kIndexBins], and how many lie in bins
// above.
__device__ __forceinline__ void find_bin(SelectShared& s, const uint32_t* counts, uint32_t wanted) {
  constexpr int32_t kOwn = kIndexBins / kSelectThreads;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  uint32_t own[kOwn];  // from the highest bin down
  uint32_t sum = 0;
#pragma unroll
  for (int32_t i = 0; i < kOwn; ++i) {
    own[i] = counts[kIndexBins - 1 - kOwn * thread - i];
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
  for (int32_t w = 0; w < thread / 32; ++w) before += s.warp_sums[w];
  if (before < wanted && wanted <= before + mine) {
    for (int32_t i = 0; i < kOwn; ++i) {
      if (wanted <= before + own[i]) {
        s.found_bin = kIndexBins - 1 - kOwn * thread - i;
        s.found_above = before;
        break;
      }
      before += own[i];
    }
  }
  __syncthreads();
}

// Sums every CTA's histogram into everyone's total.
__device__ __forceinline__ void reduce_histograms(cooperative_groups::cluster_group cluster,
                                                  SelectShared& s) {
  cluster.sync();
  const auto ranks = static_cast<int32_t>(cluster.num_blocks());
  const int32_t share = kIndexBins / ranks;
  for (int32_t i = threadIdx.x; i < share; i += kSelectThreads) {
    const int32_t bin = static_cast<int32_t>(cluster.block_rank()) * share + i;
    uint32_t sum = 0;
    for (int32_t r = 0; r < ranks; ++r) sum += *cluster.map_shared_rank(&s.histogram[bin], r);
    for (int32_t r = 0; r < ranks; ++r) *cluster.map_shared_rank(&s.total[bin], r) = sum;
  }
  cluster.sync();
}

// A warp's part of the scores, or the candidates among them that it has kept, in order.
struct Candidates {
  const float* scores;
  int32_t begin;
  int32_t end;
  const uint32_t* keys;
  const int32_t* entries;
  int32_t kept;  // negative: too many, read the scores again

  // use(valid, key, entry) by all lanes together.
  template <class Use>
  __device__ __forceinline__ void each(const Use& use) const {
    const int32_t lane = threadIdx.x & 31;
    if (kept >= 0) {
      for (int32_t i = 0; i < kept; i += 32) {
        const bool valid = i + lane < kept;
        use(valid, valid ? keys[i + lane] : 0, valid ? entries[i + lane] : 0);
      }
      return;
    }
    for (int32_t i = begin; i < end; i += 32) {
      const bool valid = i + lane < end;
      use(valid, valid ? sortable(__ldcg(scores + i + lane)) : 0, i + lane);
    }
  }
};

__global__ void __launch_bounds__(kSelectThreads, 2) select_kernel(const IndexParameters p) {
  await_earlier();
  namespace cg = cooperative_groups;
  cg::cluster_group cluster = cg::this_cluster();
  extern __shared__ __align__(16) uint8_t shared_bytes[];
  SelectShared& s = *reinterpret_cast<SelectShared*>(shared_bytes);
  const auto ranks = static_cast<int32_t>(cluster.num_blocks());
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
  uint32_t* const counted =
      (pool ? p.scratch.block_histogram : p.scratch.histogram) + row_index * int64_t{kIndexBins};
  if (pool && row.built_pool == nullptr) {
    if (rank == 0) {
      for (int32_t i = thread; i < kIndexBins; i += kSelectThreads) counted[i] = 0;
    }
    return;
  }
  if (rank == 0 && thread == 0) {
    *(pool ? row.built_pool_count : row.selected_count) = min(keep, count);
  }
  if (!pool && row.scores != nullptr) {
    for (int32_t i = rank * kSelectThreads + thread; i < count; i += ranks * kSelectThreads) {
      row.scores[i] = scores[i];
    }
  }
  const bool scored = scored_of(row, p.call.shape) > 0;
  if (count <= keep) {
    for (int32_t i = rank * kSelectThreads + thread; i < count; i += ranks * kSelectThreads) {
      chosen[i] = id_of(i);
    }
    if (scored && rank == 0) {
      for (int32_t i = thread; i < kIndexBins; i += kSelectThreads) counted[i] = 0;
    }
    return;
  }

  // The bin of the first 11 bits that holds the last chosen one.
  for (int32_t i = thread; i < kIndexBins; i += kSelectThreads) {
    s.total[i] = __ldcg(counted + i);
    s.histogram[i] = 0;
  }
  __syncthreads();
  auto wanted = static_cast<uint32_t>(keep);
  find_bin(s, s.total, wanted);
  const auto bin1 = static_cast<uint32_t>(s.found_bin);
  wanted -= s.found_above;

  const int32_t per_warp = (count + ranks * kSelectThreads - 1) / (ranks * kSelectThreads) * 32;
  Candidates mine;
  mine.scores = scores;
  mine.begin = min(count, (rank * kSelectWarps + warp) * per_warp);
  mine.end = min(count, mine.begin + per_warp);
  mine.keys = s.list_key[warp];
  mine.entries = s.list_entry[warp];
  mine.kept = 0;
  constexpr int32_t kAhead = 8;
  for (int32_t i = mine.begin; i < mine.end; i += 32 * kAhead) {
    float value[kAhead];
#pragma unroll
    for (int32_t j = 0; j < kAhead; ++j) {
      const int32_t entry = i + j * 32 + lane;
      value[j] = entry < mine.end ? __ldcg(scores + entry) : 0.0F;
    }
#pragma unroll
    for (int32_t j = 0; j < kAhead; ++j) {
      const int32_t entry = i + j * 32 + lane;
      const uint32_t key = sortable(value[j]);
      const bool candidate = entry < mine.end && (key >> 21) >= bin1;
      if (candidate && (key >> 21) == bin1) atomicAdd(&s.histogram[(key >> 10) & 2047], 1U);
      const uint32_t votes = __ballot_sync(0xFFFFFFFFU, candidate);
      if (votes != 0 && mine.kept >= 0) {
        const int32_t more = __popc(votes);
        if (mine.kept + more > kListEntries) {
          mine.kept = -1;
        } else {
          const int32_t at = mine.kept + __popc(votes & ((1U << lane) - 1U));
          if (candidate) {
            s.list_key[warp][at] = key;
            s.list_entry[warp][at] = entry;
          }
          mine.kept += more;
        }
      }
    }
  }
  __syncwarp();
  reduce_histograms(cluster, s);
  if (rank == 0) {
    for (int32_t i = thread; i < kIndexBins; i += kSelectThreads) counted[i] = 0;
  }
  find_bin(s, s.total, wanted);
  const uint32_t prefix = bin1 << 11 | static_cast<uint32_t>(s.found_bin);
  wanted -= s.found_above;
  for (int32_t i = thread; i < kIndexBins; i += kSelectThreads) s.histogram[i] = 0;
  __syncthreads();
  mine.each([&](bool valid, uint32_t key, int32_t) {
    if (valid && key >> 10 == prefix) atomicAdd(&s.histogram[key & 1023], 1U);
  });
  reduce_histograms(cluster, s);
  find_bin(s, s.total, wanted);
  const uint32_t limit = prefix << 10 | static_cast<uint32_t>(s.found_bin);
  const uint32_t ties = wanted - s.found_above;  // of the entries that equal `limit`

  uint32_t above = 0;
  uint32_t equal = 0;
  mine.each([&](bool valid, uint32_t key, int32_t) {
    above += __popc(__ballot_sync(0xFFFFFFFFU, valid && key > limit));
    equal += __popc(__ballot_sync(0xFFFFFFFFU, valid && key == limit));
  });
  if (lane == 0) {
    s.warp_above[warp] = above;
    s.warp_equal[warp] = equal;
  }
  __syncthreads();
  if (thread == 0) {
    s.above = 0;
    s.equal = 0;
    for (int32_t w = 0; w < kSelectWarps; ++w) {
      s.above += s.warp_above[w];
      s.equal += s.warp_equal[w];
    }
  }
  cluster.sync();
  uint32_t above_before = 0;
  uint32_t equal_before = 0;
  for (int32_t r = 0; r < rank; ++r) {
    above_before += *cluster.map_shared_rank(&s.above, r);
    equal_before += *cluster.map_shared_rank(&s.equal, r);
  }
  for (int32_t w = 0; w < warp; ++w) {
    above_before += s.warp_above[w];
    equal_before += s.warp_equal[w];
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
  cluster.sync();  // the others read this CTA's counts
}

void launch_select(const IndexParameters& p, Stream stream) {
  static_assert(sizeof(SelectShared) < 100 * 1024);
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

// Histograms come first, at places that no call moves: they must find their zeros again.
constexpr int64_t kRowsAtOnceMax = 1024;
constexpr size_t kHistogramBytes = 2 * kRowsAtOnceMax * kIndexBins * sizeof(uint32_t);

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
  return kHistogramBytes +
         static_cast<size_t>(std::min(rows, kRowsAtOnceMax)) * row_bytes(entries_max, builds_pool);
}

void index_select_sm90(const IndexCall& call, int32_t multiprocessors, Stream stream) {
  if (call.row_count == 0) return;
  CHECK(call.scratch_bytes >= index_scratch_bytes(1, call.entries_max, call.builds_pool));
  const int64_t rows_at_once =
      std::min(kRowsAtOnceMax, static_cast<int64_t>((call.scratch_bytes - kHistogramBytes) /
                                                    row_bytes(call.entries_max, call.builds_pool)));
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
    p.scratch.histogram = static_cast<uint32_t*>(call.scratch);
    p.scratch.block_histogram = p.scratch.histogram + kRowsAtOnceMax * kIndexBins;
    p.scratch.scores =
        reinterpret_cast<float*>(static_cast<uint8_t*>(call.scratch) + kHistogramBytes);
    p.scratch.block_scores = p.scratch.scores + rows_at_once * p.scratch.stride;
    launch_index_scores(p, multiprocessors, stream);
    launch_select(p, stream);
  }
}

}  // namespace galley::kernels::cuda
