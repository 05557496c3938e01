// Index scores of the released shapes (spec/model.md 4.5): 32 or 64 heads x 128 over packed fp4
// keys, many keys, few rows.
//
// Floor: 68 bytes a key; 64k keys 3.3 us, 1M keys 18 us, or 8.6 GFLOP a row and million keys.
//
// Design: keys are the long side of the product (64 keys a wgmma), heads the short one. Records
// come to shared memory as they lie, by bulk copies of whole tiles (blocks of 8 for a pool). Both
// operands are fp4 times a power of two for each 32 channels. An fp4 code with its bits in E4M3's
// place is the value times 2^-6, subnormals included: three or four instructions unpack four keys'
// values, straight into the registers that wgmma reads. The query's powers of two are folded into
// its E4M3 codes (a group more than 2^14 below its head keeps a factor). The keys' are not: each
// group of 32 has its own accumulator, whose sum has at most 13 bits and so is exact in spite of
// the tensor cores' 14, and is scaled in f32. A row's scores do not depend on where spans and
// tiles begin, or on the rows beside it. Rows that share their keys share the unpacking.
//
// Each CTA counts its scores by their first 11 bits, for the selection.
//
// Measured on one H200: 7 us of scores for one row at 64k keys, 42 at 1M; 155 for 64 sequences of
// 64k keys, where the bytes take 67. What limits it: scaling and adding the products, 195
// instructions a warp for 16 keys and 32 heads (docs/benchmarks.md).
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/index_sm90.cuh"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/sm90.cuh"
#include "kernels/cuda/sm90_memory.cuh"
#include "kernels/cuda/wgmma_keys.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int32_t kTileKeys = 64;
constexpr uint32_t kRecordBytes = index_record_bytes(kIndexWidth);
constexpr uint32_t kTileBytes = kTileKeys * kRecordBytes;
constexpr uint32_t kGranuleBytes = kIndexPoolBlock * kRecordBytes;
constexpr int32_t kStages = 6;  // of each warpgroup
constexpr int32_t kHeadTile = 32;
constexpr uint32_t kQueryTileBytes = kHeadTile * kIndexWidth;
constexpr int32_t kWarpgroups = 2;
constexpr int32_t kScoreThreads = kWarpgroups * 128;

__device__ __forceinline__ uint32_t e4m3_pair(float low, float high) {
  uint16_t packed;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ __forceinline__ float low_bf16(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_bf16(uint32_t pair) {
  return __uint_as_float(pair & 0xFFFF0000U);
}

// Shared memory of the scores: bytes from a base that is a multiple of 1,024.
template <int kHeads, int kRows, bool kPool>
struct Layout {
  static constexpr int32_t kHeadTiles = kHeads / kHeadTile;
  static constexpr uint32_t kQueryAt = 0;
  static constexpr uint32_t kKeysAt = kRows * kHeadTiles * kQueryTileBytes;
  static constexpr uint32_t kWeightAt = kKeysAt + kWarpgroups * kStages * kTileBytes;
  static constexpr uint32_t kResidualAt = kWeightAt + kRows * kHeads * 4;  // [row][group][head]
  static constexpr uint32_t kHistogramAt = kResidualAt + kRows * kHeads * 16;
  static constexpr uint32_t kBlockHistogramAt = kHistogramAt + kRows * kIndexBins * 4;
  static constexpr uint32_t kBarriersAt = kBlockHistogramAt + (kPool ? kRows * kIndexBins * 4 : 0);
  static constexpr uint32_t kBytes = kBarriersAt + kWarpgroups * kStages * 16 + 1024;
};

// One group of 32 channels of one head's query to E4M3, scaled to the largest exponent of the
// head; channels even ones first, as keys are unpacked. A group too far below keeps a factor of
// its own, so that nothing is rounded.
template <class L, int kHeads>
__device__ __forceinline__ void prepare_query(const IndexParameters& p, uint32_t shared,
                                              int32_t row, int32_t slot, int32_t head,
                                              int32_t group, bool* uneven) {
  const Bf16* from = p.call.queries + row * p.call.query_stride + head * kIndexWidth + group * 32;
  uint4 raw[4];
  uint32_t largest = 0;
#pragma unroll
  for (int32_t t = 0; t < 4; ++t) {
    raw[t] = *reinterpret_cast<const uint4*>(from + t * 8);
    for (const uint32_t pair : {raw[t].x, raw[t].y, raw[t].z, raw[t].w}) {
      largest = max(largest, max(pair & 0x7FFFU, (pair >> 16) & 0x7FFFU));
    }
  }
  const int32_t exponent = static_cast<int32_t>(largest >> 7);
  int32_t base = max(exponent, __shfl_xor_sync(0xFFFFFFFFU, exponent, 1));
  base = max(base, __shfl_xor_sync(0xFFFFFFFFU, base, 2));
  const int32_t lift = largest == 0 ? 0 : max(0, base - 14 - exponent);
  const int32_t shift = 8 - (base - 127) + lift;
  uint32_t even[4];
  uint32_t odd[4];
#pragma unroll
  for (int32_t t = 0; t < 4; ++t) {
    const uint32_t pairs[4] = {raw[t].x, raw[t].y, raw[t].z, raw[t].w};
    float e[4], o[4];
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      e[i] = ldexpf(low_bf16(pairs[i]), shift);
      o[i] = ldexpf(high_bf16(pairs[i]), shift);
    }
    even[t] = e4m3_pair(e[0], e[1]) | (e4m3_pair(e[2], e[3]) << 16);
    odd[t] = e4m3_pair(o[0], o[1]) | (e4m3_pair(o[2], o[3]) << 16);
  }
  const uint32_t to = shared + L::kQueryAt +
                      (slot * L::kHeadTiles + head / kHeadTile) * kQueryTileBytes +
                      (head % kHeadTile) * 128;
  store_shared(to + ((2 * group) ^ (head & 7)) * 16,
               make_uint4(even[0], even[1], even[2], even[3]));
  store_shared(to + ((2 * group + 1) ^ (head & 7)) * 16,
               make_uint4(odd[0], odd[1], odd[2], odd[3]));
  store_shared(shared + L::kResidualAt + ((slot * 4 + group) * kHeads + head) * 4,
               ldexpf(1.0F, -lift));
  if (lift != 0) *uneven = true;
  if (group == 0) {
    const float weight =
        low_bf16(p.call.head_weights[row * p.call.weight_stride + head].bits) * p.factor;
    const uint32_t bits = __float_as_uint(weight);
    const float rounded = __uint_as_float((bits + 0x7FFFU + ((bits >> 16) & 1U)) & 0xFFFF0000U);
    // Keys are E2M1 x 2^-6, queries x 2^(8 - base).
    store_shared(shared + L::kWeightAt + (slot * kHeads + head) * 4, ldexpf(rounded, base - 129));
  }
}

// Neighbouring rows that score the same keys are a run: its keys are unpacked once.
template <int kRows>
struct Runs {
  int32_t row_count[kRows];  // entries that a row scores
  int32_t uneven[kRows];     // some group of the row's query keeps a factor
  int32_t first[kRows + 1];  // rows of run i: first[i] <= row < first[i + 1]
  int32_t end[kRows];        // entries of run i that this CTA scores end here
  int32_t runs;              // those with any
};

template <int kRows>
__device__ __forceinline__ void find_runs(const IndexParameters& p, int32_t first_row,
                                          int32_t span_begin, Runs<kRows>& runs) {
  int32_t count = 0;
  int32_t row = 0;
  const int32_t rows = min(kRows, p.call.row_count - first_row);
  while (row < rows) {
    int32_t longest = runs.row_count[row];
    int32_t end = row + 1;
    const IndexRow& first = p.call.rows[first_row + row];
    for (; end < rows && first.pool == nullptr; ++end) {
      const IndexRow& next = p.call.rows[first_row + end];
      if (next.pool != nullptr || next.keys.pool != first.keys.pool ||
          next.keys.page_table != first.keys.page_table) {
        break;
      }
      longest = max(longest, runs.row_count[end]);
    }
    if (longest > span_begin) {
      runs.first[count] = row | end << 16;
      runs.end[count] = min(longest, span_begin + p.span);
      ++count;
    }
    row = end;
  }
  runs.runs = count;
}

// Brings a warpgroup's tiles, every kWarpgroups-th of each run, into its ring; one warp's work.
struct Feeder {
  uint32_t ring;
  uint32_t barriers;  // kStages that tell of full stages, then kStages of empty ones
  int32_t own_begin;
  int32_t run = -1;
  int32_t begin = 0;
  int32_t end = 0;   // of the run
  int32_t hold = 1;  // 32 whole tiles or 4 of pool blocks: sources that the lanes hold
  int32_t held = 0;  // of these not yet used
  const uint8_t* source = nullptr;
  const IndexRow* row = nullptr;
  uint32_t stage = 0;
  uint32_t parity = 1;  // the first round finds the stages empty

  template <int kRows>
  __device__ __forceinline__ void next(const IndexParameters& p, const Runs<kRows>& runs,
                                       int32_t first_row) {
    constexpr int32_t kStep = kWarpgroups * kTileKeys;
    while (begin >= end) {
      if (run + 1 >= runs.runs) return;
      ++run;
      begin = own_begin;
      end = runs.end[run];
      held = 0;
      row = p.call.rows + first_row + (runs.first[run] & 0xFFFF);
      const bool whole = row->pool == nullptr && row->keys.records_per_page % kTileKeys == 0;
      hold = whole ? 32 : 4;
    }
    const int32_t lane = threadIdx.x & 31;
    if (held == 0) {
      held = hold;
      const int32_t mine =
          hold == 32 ? begin + lane * kStep : begin + lane / 8 * kStep + lane % 8 * kIndexPoolBlock;
      if (mine < end) {
        const auto per_page = static_cast<uint32_t>(row->keys.records_per_page);
        uint32_t entry = mine;
        if (row->pool != nullptr) entry = row->pool[mine / kIndexPoolBlock] * kIndexPoolBlock;
        source = row->keys.pool + row->keys.page_table[entry / per_page] * row->keys.page_stride +
                 entry % per_page * kRecordBytes;
      }
    }
    const int32_t from = hold - held;
    --held;
    const uint32_t to = ring + stage * kTileBytes;
    const uint32_t full = barriers + stage * 8;
    barrier_wait(full + kStages * 8, parity);
    if (hold == 32) {
      if (lane == from) {
        barrier_expect(full, kTileBytes);
        bulk_load(to, source, kTileBytes, full);
      }
    } else {
      const int32_t granules = blocks_of(min(kTileKeys, end - begin));
      if (lane == 0) barrier_expect(full, granules * kGranuleBytes);
      __syncwarp();
      if (lane / 8 == from && lane % 8 < granules) {
        bulk_load(to + (lane % 8) * kGranuleBytes, source, kGranuleBytes, full);
      }
    }
    __syncwarp();
    begin += kStep;
    parity ^= stage + 1 == kStages ? 1 : 0;
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
};

__device__ __forceinline__ int32_t uniform(int32_t x) { return __shfl_sync(0xFFFFFFFFU, x, 0); }

template <int kHeads, int kRows, bool kPool>
__global__ void __launch_bounds__(kScoreThreads, 2) score_kernel(const IndexParameters p) {
  await_earlier();
  using L = Layout<kHeads, kRows, kPool>;
  extern __shared__ uint8_t shared_bytes[];
  __shared__ Runs<kRows> runs;
  const uint32_t shared = (shared_address(shared_bytes) + 1023U) & ~1023U;
  uint8_t* const base = shared_bytes + (shared - shared_address(shared_bytes));
  auto* const histogram = reinterpret_cast<uint32_t*>(base + L::kHistogramAt);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t first_row = blockIdx.y * kRows;
  const int32_t span_begin = blockIdx.x * p.span;
  if (thread < kRows) {
    const int32_t row = first_row + thread;
    runs.row_count[thread] = row < p.call.row_count ? scored_of(p.call.rows[row], p.call.shape) : 0;
    runs.uneven[thread] = 0;
  }
  if (thread == 32) {
    for (int32_t i = 0; i < kWarpgroups * 2 * kStages; ++i) {
      barrier_init(shared + L::kBarriersAt + i * 8, i / kStages % 2 == 0 ? 1 : 4);
    }
    barrier_init_fence();
  }
  __syncthreads();
  if (thread == 0) find_runs(p, first_row, span_begin, runs);
  __syncthreads();
  if (runs.runs == 0) return;

  const int32_t group = uniform(thread / 128);
  const int32_t warp = uniform(thread / 32 & 3);
  const int32_t own_begin = span_begin + group * kTileKeys;
  const uint32_t ring = shared + L::kKeysAt + group * kStages * kTileBytes;
  const uint32_t barriers = shared + L::kBarriersAt + group * 2 * kStages * 8;
  Feeder feeder = {ring, barriers, own_begin};
  if (warp == 0) {
    for (int32_t i = 0; i + 1 < kStages; ++i) feeder.next(p, runs, first_row);
  }
  for (int32_t i = thread; i < kRows * kIndexBins * (kPool ? 2 : 1); i += kScoreThreads) {
    histogram[i] = 0;
  }
  // Queries, by four threads a head.
  for (int32_t i = thread; i < kRows * kHeads * 4; i += kScoreThreads) {
    const int32_t slot = i / (kHeads * 4);
    bool uneven = false;
    const int32_t row = min(first_row + slot, p.call.row_count - 1);
    prepare_query<L, kHeads>(p, shared, row, slot, i / 4 % kHeads, i % 4, &uneven);
    if (uneven) runs.uneven[slot] = 1;
  }
  fence_async_proxy();
  __syncthreads();

  const int32_t lane = thread & 31;
  const int32_t quad = lane & 3;
  const int32_t key_row = warp * 16 + (lane >> 2);
  uint32_t stage = 0;
  uint32_t parity = 0;
  const int32_t run_count = uniform(runs.runs);
  for (int32_t run = 0; run < run_count; ++run) {
    const int32_t first_slot = uniform(runs.first[run] & 0xFFFF);
    const int32_t end_slot = uniform(runs.first[run] >> 16);
    const int32_t end = uniform(runs.end[run]);
    for (int32_t begin = own_begin; begin < end; begin += kWarpgroups * kTileKeys) {
      if (warp == 0) feeder.next(p, runs, first_row);  // where the last tile but one was
      barrier_wait(barriers + stage * 8, parity);
      const uint32_t record = ring + stage * kTileBytes + key_row * kRecordBytes;
      uint32_t a[4][4];
      float scale_upper[4];
      float scale_lower[4];
      {
        uint32_t upper[4], lower[4];
#pragma unroll
        for (int32_t g = 0; g < 4; ++g) {
          upper[g] = load_shared_word(record + g * 16 + quad * 4);
          lower[g] = load_shared_word(record + 8 * kRecordBytes + g * 16 + quad * 4);
        }
        const uint32_t scales_upper = load_shared_word(record + 64);
        const uint32_t scales_lower = load_shared_word(record + 8 * kRecordBytes + 64);
        __syncwarp();
        if (lane == 0) barrier_arrive(barriers + (kStages + stage) * 8);
        parity ^= stage + 1 == kStages ? 1 : 0;
        stage = stage + 1 == kStages ? 0 : stage + 1;
#pragma unroll
        for (int32_t g = 0; g < 4; ++g) {
          // E2M1 bits in E4M3's place are the value x 2^-6, subnormals included.
          a[g][0] = ((upper[g] << 2) & 0x1C1C1C1CU) | ((upper[g] << 4) & 0x80808080U);
          a[g][1] = ((lower[g] << 2) & 0x1C1C1C1CU) | ((lower[g] << 4) & 0x80808080U);
          a[g][2] = ((upper[g] >> 2) & 0x1C1C1C1CU) | (upper[g] & 0x80808080U);
          a[g][3] = ((lower[g] >> 2) & 0x1C1C1C1CU) | (lower[g] & 0x80808080U);
          scale_upper[g] = __uint_as_float(((scales_upper >> (8 * g)) & 0xFFU) << 23);
          scale_lower[g] = __uint_as_float(((scales_lower >> (8 * g)) & 0xFFU) << 23);
        }
      }
      for (int32_t slot = first_slot; slot < end_slot; ++slot) {
        const int32_t limit = uniform(runs.row_count[slot] << 1 | runs.uneven[slot]);
        const int32_t row_count = limit >> 1;
        const bool uneven = (limit & 1) != 0;
        if (row_count <= begin) continue;
        float sum_upper = 0.0F;
        float sum_lower = 0.0F;
#pragma unroll
        for (int32_t h = 0; h < L::kHeadTiles; ++h) {
          float d[4][16];
          const uint64_t query = swizzled_descriptor(shared + L::kQueryAt +
                                                     (slot * L::kHeadTiles + h) * kQueryTileBytes);
          wgmma_fence();
#pragma unroll
          for (int32_t g = 0; g < 4; ++g) product_64x32x32_e4m3(d[g], a[g], query + g * 2);
          wgmma_commit();
          float2 weight[4];
#pragma unroll
          for (int32_t i = 0; i < 4; ++i) {
            weight[i] = load_shared_pair(shared + L::kWeightAt +
                                         (slot * kHeads + h * kHeadTile + i * 8 + quad * 2) * 4);
          }
          wgmma_wait<0>();
#pragma unroll
          for (int32_t g = 0; g < 4; ++g) hold_registers(d[g]);
          if (uneven) {
#pragma unroll
            for (int32_t g = 0; g < 4; ++g) {
#pragma unroll
              for (int32_t i = 0; i < 16; ++i) {
                const int32_t head = h * kHeadTile + (i / 4) * 8 + quad * 2 + (i & 1);
                d[g][i] *= load_shared_float(shared + L::kResidualAt +
                                             ((slot * 4 + g) * kHeads + head) * 4);
              }
            }
          }
#pragma unroll
          for (int32_t i = 0; i < 4; ++i) {
#pragma unroll
            for (int32_t e = 0; e < 2; ++e) {
              float upper = d[0][4 * i + e] * scale_upper[0];
              float lower = d[0][4 * i + 2 + e] * scale_lower[0];
#pragma unroll
              for (int32_t g = 1; g < 4; ++g) {
                upper = fmaf(d[g][4 * i + e], scale_upper[g], upper);
                lower = fmaf(d[g][4 * i + 2 + e], scale_lower[g], lower);
              }
              const float w = e == 0 ? weight[i].x : weight[i].y;
              sum_upper = fmaf(fmaxf(upper, 0.0F), w, sum_upper);
              sum_lower = fmaf(fmaxf(lower, 0.0F), w, sum_lower);
            }
          }
        }
        // Even threads of a quad finish the upper key, odd ones the lower.
        const bool odd = (quad & 1) != 0;
        float score = odd ? sum_lower : sum_upper;
        score += __shfl_xor_sync(0xFFFFFFFFU, odd ? sum_upper : sum_lower, 1);
        score += __shfl_xor_sync(0xFFFFFFFFU, score, 2);
        const int32_t row = first_row + slot;
        const int32_t entry = begin + key_row + (quad & 1) * 8;
        if (quad < 2 && entry < row_count) {
          p.scratch.scores[row * p.scratch.stride + entry] = score;
          atomicAdd(histogram + slot * kIndexBins + (sortable(score) >> 21), 1U);
        }
        if (kPool) {
          // 8 keys a block: the rows of one half of a warp's 16.
          float best = entry < row_count ? score : -INFINITY;
          best = best != best ? -INFINITY : best;
          best = fmaxf(best, __shfl_xor_sync(0xFFFFFFFFU, best, 4));
          best = fmaxf(best, __shfl_xor_sync(0xFFFFFFFFU, best, 8));
          best = fmaxf(best, __shfl_xor_sync(0xFFFFFFFFU, best, 16));
          const int32_t block = (begin + key_row) / kIndexPoolBlock + (quad & 1);
          if (lane < 2 && block < blocks_of(row_count)) {
            if (block == blocks_of(row_count) - 1) best = INFINITY;  // the newest is forced in
            p.scratch.block_scores[row * (p.scratch.stride / kIndexPoolBlock) + block] = best;
            atomicAdd(histogram + (kRows + slot) * kIndexBins + (sortable(best) >> 21), 1U);
          }
        }
      }
    }
  }
  __syncthreads();
  for (int32_t i = thread; i < kRows * kIndexBins; i += kScoreThreads) {
    const int32_t row = first_row + i / kIndexBins;
    const uint32_t n = histogram[i];
    if (n != 0) atomicAdd(p.scratch.histogram + row * int64_t{kIndexBins} + i % kIndexBins, n);
    if (kPool) {
      const uint32_t m = histogram[kRows * kIndexBins + i];
      if (m != 0)
        atomicAdd(p.scratch.block_histogram + row * int64_t{kIndexBins} + i % kIndexBins, m);
    }
  }
}

template <int kHeads, int kRows, bool kPool>
void launch_scores(const IndexParameters& p, int32_t multiprocessors, Stream stream) {
  using L = Layout<kHeads, kRows, kPool>;
  const auto kernel = score_kernel<kHeads, kRows, kPool>;
  IndexParameters placed = p;
  const int32_t row_tiles = (p.call.row_count + kRows - 1) / kRows;
  const int64_t spans = std::max(1, 2 * multiprocessors / row_tiles);
  const int64_t span = std::max<int64_t>(256, (p.call.entries_max + spans - 1) / spans);
  placed.span = static_cast<int32_t>((span + kTileKeys - 1) / kTileKeys * kTileKeys);
  const auto columns = static_cast<uint32_t>((p.call.entries_max + placed.span - 1) / placed.span);
  launch_kernel(kernel, {dim3(columns, static_cast<uint32_t>(row_tiles)), kScoreThreads, L::kBytes},
                stream, placed);
}

template <int kHeads>
void launch_scores_of(const IndexParameters& p, int32_t multiprocessors, Stream stream) {
  const bool few = p.call.row_count < 3;
  if (p.call.builds_pool) {
    few ? launch_scores<kHeads, 1, true>(p, multiprocessors, stream)
        : launch_scores<kHeads, 2, true>(p, multiprocessors, stream);
  } else {
    few ? launch_scores<kHeads, 1, false>(p, multiprocessors, stream)
        : launch_scores<kHeads, 4, false>(p, multiprocessors, stream);
  }
}

}  // namespace

void launch_index_scores(const IndexParameters& p, int32_t multiprocessors, Stream stream) {
  p.call.shape.heads == 32 ? launch_scores_of<32>(p, multiprocessors, stream)
                           : launch_scores_of<64>(p, multiprocessors, stream);
}

}  // namespace galley::kernels::cuda
