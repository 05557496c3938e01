// Index scores of the released shapes (spec/model.md 4.5): 32 or 64 heads x 128 over packed fp4
// keys, many keys, few rows.
//
// Floor: 68 bytes a key; 64k keys 3.3 us, 1M keys 18 us, or 8.6 GFLOP a row and million keys.
//
// Design: both operands are fp4 times a power of two for each 32 channels: small integers, as long
// as the scales of a key (or of a head's query) lie within 2^3 of its largest. They are multiplied
// as bytes, exactly, over all 128 channels at once (index_keys.cuh), by mma.sync: a warp takes 64
// keys, a thread has 8 heads of each of its keys and adds them by itself. The order of channels
// along the sum is free, so a thread holds one group of a key and needs one scale. A sum begins at
// the bits of 1.5; its own bits then are a float, and one saturating addition takes the 1.5 off
// and cuts at zero. Groups that lie lower keep a factor of their own: four products instead of
// one. A row's scores depend neither on where its keys are divided nor on the rows and keys
// beside it.
//
// Each warp brings its own tiles through a ring by bulk copies, and reads the next one's place in
// the page table 32 tiles ahead. A lone row's query stays in registers and meets 16 keys at a time,
// so that products follow each other with the same keys (with the same heads 3 us more);
// several rows each meet the 64 keys that were unpacked once. Halves of words are taken off by the
// pipe of integer products, which has room. The largest of every 64 scores of a long row is left
// for the selection. Blocks find their share on the device (index_share.cuh): a launch
// knows only how long a sequence may get. Rows that share their keys share the unpacking.
//
// Measured on one H200, the selection included: 119 us for 64 sequences of 64k keys (the scores
// 103), 178 with two rows each, 56 us for one row of 1M keys.
//
// What it costs where scales differ by more than 2^3: about three times as much if nearly every
// tile has such a key (500 us for 64 sequences of 64k keys when it was 157).
//
// Tried: the same by wgmma in E4M3, each group in an accumulator of its own, scaled in f32 (152 us
// for 64 sequences of 64k keys instead of 119, the scores alone: 96 instructions a thread for
// scaling and adding); queries held in shared memory and 20 or 24 warps a multiprocessor instead of
// 16 (122, 121); unpacking the next keys between the products of these (114, but more code); the
// same integers by wgmma with queries in shared memory (one sequence: 4,096 rows in 4.44 ms instead
// of 4.67, 64 rows 106 us for 112; 64 sequences 164 for 155, 8 of 1M keys 313 for 297); tiles of 32
// keys with all their ways around them (121 us for the scores of 64 sequences: 500 instructions a
// warp and 32 keys, now 385); keys by registers and queries by shared memory to wgmma, four warps'
// 16 keys at once (119: sums must be set before each product); the largest score of every 32 (9 us
// longer than of 64).
//
// What limits now: 64 keys take 1,340 cycles of a quarter of a multiprocessor, where memory would
// give 920. Issue slots are 56 % full, and warps are ready: an mma.sync of bytes keeps the issue
// of all others back (alone 6 cycles; 4 with 8 byte permutes 31, where the two alone take 24 and
// 16; wgmma from registers 16 and 16 together 26). So the 64 products of a tile add to its 275
// instructions of the integer pipe, at 2 cycles each, rather than hide behind them.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/index_keys.cuh"
#include "kernels/cuda/index_share.cuh"
#include "kernels/cuda/index_sm90.cuh"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/sm90.cuh"
#include "kernels/cuda/sm90_memory.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr uint32_t kTileBytes = kTileKeys * kIndexRecordBytes;
constexpr uint32_t kGranuleBytes = kIndexPoolBlock * kIndexRecordBytes;
constexpr int32_t kTileGranules = kTileKeys / kIndexPoolBlock;
constexpr int32_t kStages = 2;     // of each warp
constexpr int32_t kStepKeys = 32;  // that are unpacked at once
constexpr int32_t kHeadTile = 32;
constexpr uint32_t kQueryTileBytes = kHeadTile * kIndexWidth;

__device__ __forceinline__ float low_bf16(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_bf16(uint32_t pair) {
  return __uint_as_float(pair & 0xFFFF0000U);
}

// Shared memory of the scores: bytes from a base that is a multiple of 128.
template <int kHeads, int kRows>
struct Layout {
  static constexpr int32_t kHeadTiles = kHeads / kHeadTile;
  static constexpr uint32_t kQueryAt = 0;  // [row][head / 8][half][lane] 16 bytes
  static constexpr uint32_t kKeysAt = kRows * kHeadTiles * kQueryTileBytes;
  static constexpr uint32_t kTermsAt = kKeysAt + kWarps * kStages * kTileBytes;
  static constexpr uint32_t kResidualAt = kTermsAt + kRows * kHeads * 8;    // [row][group][head]
  static constexpr uint32_t kTablesAt = kResidualAt + kRows * kHeads * 16;  // of codes
  static constexpr uint32_t kBarriersAt = kTablesAt + 64;
  static constexpr uint32_t kCountsAt = kBarriersAt + kWarps * kStages * 8;
  static constexpr uint32_t kBytes = kCountsAt + kIndexRowsMax * 4 + 128;
};

// One group of 32 channels of one head's query to integers of 8 bits, 2^3 times its fp4 codes' at
// the largest exponent of the head. A group more than 2^3 below keeps a factor of its own, so that
// nothing is rounded; 8 heads that have such a group are marked in `uneven`.
template <class L, int kHeads>
__device__ __forceinline__ void prepare_query(const IndexParameters& p, uint32_t shared,
                                              int32_t row, int32_t slot, int32_t head,
                                              int32_t group, int32_t* uneven) {
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
  base = max(base, 8);  // what lies below 2^-120 is rounded
  const int32_t lift = largest == 0 ? 0 : max(0, base - 3 - exponent);
  // 2^(133 - base + lift), in two factors: the lift alone may have 2^240.
  const float scale = __uint_as_float(static_cast<uint32_t>(min(254, 260 - base + lift)) << 23);
  const float rest =
      __uint_as_float(static_cast<uint32_t>(max(127, 127 + (260 - base + lift) - 254)) << 23);
  uint32_t codes[8];
  int32_t sum = 0;
#pragma unroll
  for (int32_t t = 0; t < 4; ++t) {
    const uint32_t pairs[4] = {raw[t].x, raw[t].y, raw[t].z, raw[t].w};
    uint32_t integer[8];
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {  // 2^23 x 1.5 leaves the integer in the last bits
      integer[2 * i] = __float_as_uint(fmaf(low_bf16(pairs[i]) * rest, scale, 12582912.0F));
      integer[2 * i + 1] = __float_as_uint(fmaf(high_bf16(pairs[i]) * rest, scale, 12582912.0F));
    }
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      codes[2 * t + i] =
          __byte_perm(__byte_perm(integer[4 * i], integer[4 * i + 1], 0x0040),
                      __byte_perm(integer[4 * i + 2], integer[4 * i + 3], 0x0040), 0x5410);
      sum = __dp4a(static_cast<int32_t>(codes[2 * t + i]), 0x01010101, sum);
    }
  }
  sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 1);
  sum += __shfl_xor_sync(0xFFFFFFFFU, sum, 2);
  const int32_t tile = head / 8;
  const uint32_t to = shared + L::kQueryAt + slot * L::kHeadTiles * kQueryTileBytes + tile * 1024 +
                      ((head & 7) * 4 + group) * 16;
  store_shared(to, make_uint4(codes[0], codes[1], codes[2], codes[3]));
  store_shared(to + 512, make_uint4(codes[4], codes[5], codes[6], codes[7]));
  store_shared(shared + L::kResidualAt + ((slot * 4 + group) * kHeads + head) * 4,
               lift > 126 ? 0.0F : __uint_as_float(static_cast<uint32_t>(127 - lift) << 23));
  if (lift != 0) atomicOr(uneven, 1 << tile);
  if (group == 0) {
    const float weight =
        low_bf16(p.call.head_weights[row * p.call.weight_stride + head].bits) * p.factor;
    const uint32_t bits = __float_as_uint(weight);
    float rounded = __uint_as_float((bits + 0x7FFFU + ((bits >> 16) & 1U)) & 0xFFFF0000U);
    if (base == 255) rounded = __uint_as_float(0x7FFFFFFFU);  // a query that is no number
    // Sums are integers x 2^-23; keys' are x 2^-4 and their scale, queries' x 2^(base - 133).
    const uint32_t terms =
        shared + L::kTermsAt + slot * kHeads * 8 + (head / 2) * 16 + (head & 1) * 4;
    store_shared(terms, ldexpf(rounded, base - 114));
    store_shared(terms + 8, -1.5F - static_cast<float>(128 * sum) * 0x1p-23F);
  }
}

// Brings a warp's tiles of a group's keys, every kWarps-th one, into its ring.
struct Feeder {
  uint32_t ring;
  uint32_t barriers;
  const IndexRow* row;  // one of the group's
  int32_t begin;
  int32_t end;
  int32_t hold;      // 32 whole tiles or 4 of pool blocks: sources that the lanes hold
  int32_t held = 0;  // of these not yet used
  const uint8_t* source = nullptr;

  // The next tile, if there is one, into `stage`, whose reader is done with it: `loaded` is made of
  // all that was read.
  __device__ __forceinline__ void next(uint32_t stage, uint32_t loaded) {
    if (begin >= end) return;
    const int32_t lane = threadIdx.x & 31;
    if (held == 0) find_sources(lane);
    const int32_t from = hold - held;
    --held;
    const uint32_t to = ring + stage * kTileBytes;
    const uint32_t full = behind_loads(barriers + stage * 8, loaded);
    if (hold == 32) {
      const auto bits = reinterpret_cast<uint64_t>(source);
      const uint32_t low = __shfl_sync(0xFFFFFFFFU, static_cast<uint32_t>(bits), from);
      const uint32_t high = __shfl_sync(0xFFFFFFFFU, static_cast<uint32_t>(bits >> 32), from);
      if (elected()) {
        barrier_expect(full, kTileBytes);
        bulk_load(to, reinterpret_cast<const uint8_t*>(uint64_t{high} << 32 | low), kTileBytes,
                  full);
      }
    } else {
      const int32_t granules = blocks_of(min(kTileKeys, end - begin));
      if (lane == 0) barrier_expect(full, granules * kGranuleBytes);
      __syncwarp();
      if (lane / kTileGranules == from && lane % kTileGranules < granules) {
        bulk_load(to + (lane % kTileGranules) * kGranuleBytes, source, kGranuleBytes, full);
      }
    }
    __syncwarp();
    begin += kChunkKeys;
  }

  // Where the next tiles lie, each lane one (or one of a tile's blocks).
  __device__ __forceinline__ void find_sources(int32_t lane) {
    held = hold;
    const int32_t mine = hold == 32 ? begin + lane * kChunkKeys
                                    : begin + lane / kTileGranules * kChunkKeys +
                                          lane % kTileGranules * kIndexPoolBlock;
    if (mine >= end) return;
    const auto per_page = static_cast<uint32_t>(row->keys.records_per_page);
    uint32_t entry = mine;
    if (row->pool != nullptr) entry = row->pool[mine / kIndexPoolBlock] * kIndexPoolBlock;
    source = row->keys.pool + row->keys.page_table[entry / per_page] * row->keys.page_stride +
             entry % per_page * kIndexRecordBytes;
  }
};

// The largest of a warp's scores, none of which is NaN, as sortable() has it.
__device__ __forceinline__ uint32_t largest_of(float score) {
  const auto bits = static_cast<int32_t>(__float_as_uint(score + 0.0F));  // -0 is 0
  const int32_t ordered = bits ^ (bits >> 31 & 0x7FFFFFFF);
  return static_cast<uint32_t>(__reduce_max_sync(0xFFFFFFFFU, ordered)) ^ 0x80000000U;
}

__device__ __forceinline__ int32_t uniform(int32_t x) { return __shfl_sync(0xFFFFFFFFU, x, 0); }

template <int kHeads, int kRows, bool kPool>
__global__ void __launch_bounds__(kScoreThreads, 2)
    score_kernel(const IndexParameters p, uint32_t two) {
  await_earlier();
  using L = Layout<kHeads, kRows>;
  extern __shared__ uint8_t shared_bytes[];
  __shared__ Share share;
  __shared__ int32_t warp_totals[kWarps];
  __shared__ uint32_t largest[kRows][kWarps];  // of a warp's first 32 keys
  __shared__ int32_t scored[kRows + 1];  // entries of a row x 2^8 + its eights of uneven heads
  const uint32_t shared = (shared_address(shared_bytes) + 127U) & ~127U;
  uint8_t* const base = shared_bytes + (shared - shared_address(shared_bytes));
  auto* const counts = reinterpret_cast<uint32_t*>(base + L::kCountsAt);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  if (thread < kWarps * kStages) barrier_init(shared + L::kBarriersAt + thread * 8, 1);
  if (thread < 4) store_shared(shared + L::kTablesAt + thread * 16, code_table(thread));
  if (thread < kWarps * kStages) barrier_init_fence();
  // Groups lie where keys come to later.
  find_share<kRows>(p, counts, reinterpret_cast<uint32_t*>(base + L::kKeysAt), warp_totals, &share);
  fence_async_proxy();
  __syncthreads();

  const int32_t lane = thread & 31;
  const int32_t quad = lane & 3;
  const bool odd = (quad & 1) != 0;
  const bool high = (quad & 2) != 0;
  const int32_t warp = uniform(thread / 32);
  const uint32_t ring = shared + L::kKeysAt + warp * kStages * kTileBytes;
  const uint32_t barriers = shared + L::kBarriersAt + warp * kStages * 8;
  uint32_t stage = 0;
  uint32_t parity = 0;
  int32_t first_row = uniform(share.row);
  int32_t first_key = uniform(share.key);
  const int32_t last_row = uniform(share.last_row);
  const int32_t last_key = uniform(share.last_key);
  for (; first_row < last_row || (first_row == last_row && first_key < last_key); first_key = 0) {
    const int2 group = group_at<kRows>(counts, first_row, p.call.row_count);
    const int32_t rows = uniform(group.x);
    const int32_t end = uniform(first_row == last_row ? min(last_key, group.y) : group.y);
    const int32_t own_begin = first_key + warp * kTileKeys;
    const int32_t next_row = first_row == last_row ? p.call.row_count : first_row + rows;
    if (first_key >= end) {
      first_row = next_row;
      continue;
    }
    for (int32_t i = thread; i < rows * kHeads * 4; i += kScoreThreads) {
      const int32_t row = first_row + i / (kHeads * 4);
      prefetch_l1(p.call.queries + row * p.call.query_stride + i % (kHeads * 4) * 32);
      if (i % (kHeads * 4) == 0) prefetch_l1(p.call.head_weights + row * p.call.weight_stride);
    }
    const IndexRow& described = p.call.rows[first_row];
    const bool whole =
        described.pool == nullptr && described.keys.records_per_page % kTileKeys == 0;
    Feeder feeder = {ring, barriers, &described, own_begin, end, whole ? 32 : 32 / kTileGranules};
    for (int32_t i = 0; i < kStages; ++i) {
      feeder.next(stage + i < kStages ? stage + i : stage + i - kStages, 0);
    }
    if (thread < rows) {
      scored[thread] = static_cast<int32_t>((counts[first_row + thread] & ~kGroupBegin) << 8);
    }
    __syncthreads();
    // Queries, by four threads a head.
    for (int32_t i = thread; i < rows * kHeads * 4; i += kScoreThreads) {
      const int32_t slot = i / (kHeads * 4);
      prepare_query<L, kHeads>(p, shared, first_row + slot, slot, i / 4 % kHeads, i % 4,
                               &scored[slot]);
    }
    __syncthreads();
    const auto largest_at = [&](int32_t slot, int32_t entry) {
      return p.scratch.largest + (first_row + slot) * (p.scratch.stride / kIndexGroup) +
             entry / kIndexGroup;
    };
    const auto store = [&](int32_t slot, int32_t row_count, int32_t entry, float score) {
      const int32_t row = first_row + slot;
      if (entry < row_count) p.scratch.scores[row * p.scratch.stride + entry] = score;
      if (kPool) {
        // 8 keys a block: those that threads of the same place in their quads finish.
        float best = entry < row_count ? score : -INFINITY;
        best = best != best ? -INFINITY : best;
        best = fmaxf(best, __shfl_xor_sync(0xFFFFFFFFU, best, 4));
        best = fmaxf(best, __shfl_xor_sync(0xFFFFFFFFU, best, 8));
        best = fmaxf(best, __shfl_xor_sync(0xFFFFFFFFU, best, 16));
        const int32_t block = entry / kIndexPoolBlock;
        if (lane < 4 && block < blocks_of(row_count)) {
          if (block == blocks_of(row_count) - 1) best = INFINITY;  // the newest is forced in
          p.scratch.block_scores[row * (p.scratch.stride / kIndexPoolBlock) + block] = best;
        }
      }
    };
    const auto finish = [&](const uint32_t(&scales)[2], const float(&sums)[2][2], int32_t slot,
                            int32_t begin, int32_t row_count) {
      // Of the four keys of a quad each thread finishes one.
      float own[2];
#pragma unroll
      for (int32_t t = 0; t < 2; ++t) {
        own[t] = odd ? sums[t][1] : sums[t][0];
        own[t] += __shfl_xor_sync(0xFFFFFFFFU, odd ? sums[t][0] : sums[t][1], 1);
      }
      float score = high ? own[1] : own[0];
      score += __shfl_xor_sync(0xFFFFFFFFU, high ? own[0] : own[1], 2);
      const uint32_t scale = high ? scales[1] : scales[0];
      score *= __uint_as_float(odd ? (scale & 0xFF0000U) << 7 : scale << 23);
      const int32_t entry = begin + (lane >> 2) + quad * 8;
      store(slot, row_count, entry, score);
      if (row_count > kDirectEntries) {
        const uint32_t best = largest_of(fmaxf(-INFINITY, entry < row_count ? score : -INFINITY));
        if (lane == 0) {
          // The first 32 wait for the others, if there are others.
          uint32_t& earlier = largest[slot][warp];
          const bool second = (begin & kStepKeys) != 0;
          const uint32_t both = second ? max(best, earlier) : best;
          earlier = best;
          if (second || begin + kStepKeys >= row_count) *largest_at(slot, begin) = both;
        }
      }
    };
    // Heads from `first` on, of which some are uneven or the keys are.
    const auto add_uneven = [&](const Keys& keys, int32_t uneven, int32_t slot, int32_t h,
                                float(&sums)[2][2]) {
      const uint32_t query_at = shared + L::kQueryAt + (slot * L::kHeadTiles + h) * kQueryTileBytes;
      const uint32_t terms_at =
          shared + L::kTermsAt + (slot * kHeads + h * kHeadTile) * 8 + quad * 16;
      const uint32_t residual = shared + L::kResidualAt + (slot * 4 * kHeads + h * kHeadTile) * 4;
#pragma unroll 1
      for (int32_t j = 0; j < 4; ++j) {
        const float4 terms = load_shared_floats(terms_at + j * 64);
        float dots[2][4];
        uint32_t b[8];
        load_query(query_at + j * 1024, b);
        if ((uneven >> (h * 4 + j) & 1) != 0) {
          uneven_products(keys, b, residual + j * 32, kHeads, terms, dots);
        } else {
          products(keys, b, terms, dots);
        }
        add_heads(dots, terms, sums);
      }
    };
    // 32 keys for all rows; what was loaded of them.
    const auto step = [&](int32_t begin, uint32_t record) {
      Keys keys;
      PackedKeys packed;
      packed.load(record, quad, keys);
#pragma unroll
      for (int32_t j = 0; j < 4; ++j) packed.unpack(j / 2, j % 2, two, keys);
      int32_t next = uniform(scored[0]);
      for (int32_t slot = 0; slot < rows; ++slot) {
        const int32_t row_count = next >> 8;
        const int32_t uneven = keys.uneven ? 0xFF : next & 0xFF;
        next = uniform(scored[slot + 1]);
        if (row_count <= begin) continue;
        float sums[2][2] = {};  // [16 keys][upper 8, lower 8]
#pragma unroll 1
        for (int32_t h = 0; h < L::kHeadTiles; ++h) {
          add_uneven(keys, uneven, slot, h, sums);
        }
        finish(keys.largest, sums, slot, begin, row_count);
      }
      return keys.loaded();
    };
    const auto finish_tile = [&](const TileScales& scales, const float(&sums)[kTileKeys / 16][2],
                                 int32_t slot, int32_t begin, int32_t row_count, uint32_t* loaded) {
      // Of the eight keys of a quad each thread finishes two.
      float best = -INFINITY;
      float own[kTileKeys / 16];
#pragma unroll
      for (int32_t t = 0; t < kTileKeys / 16; ++t) {
        own[t] = odd ? sums[t][1] : sums[t][0];
        own[t] += __shfl_xor_sync(0xFFFFFFFFU, odd ? sums[t][0] : sums[t][1], 1);
      }
#pragma unroll
      for (int32_t t = 0; t < kTileKeys / 32; ++t) {
        float score = high ? own[2 * t + 1] : own[2 * t];
        score += __shfl_xor_sync(0xFFFFFFFFU, high ? own[2 * t] : own[2 * t + 1], 2);
        const uint32_t scale = high ? scales.largest[2 * t + 1] : scales.largest[2 * t];
        score *= __uint_as_float(odd ? (scale & 0xFF0000U) << 7 : scale << 23);
        const int32_t entry = begin + t * 32 + (lane >> 2) + quad * 8;
        store(slot, row_count, entry, score);
        best = fmaxf(best, entry < row_count ? score : -INFINITY);
        *loaded |= __float_as_uint(score);
      }
      if (row_count > kDirectEntries) {
        const uint32_t all = largest_of(best);
        if (lane == 0) *largest_at(slot, begin) = all;
      }
    };
    // 64 keys for a lone row of 32 heads, whose query stays in registers.
    const auto lone_tile = [&](int32_t begin, uint32_t record, int32_t row_count,
                               const uint32_t(&query)[4][8], uint32_t* loaded) {
      TileScales scales;
      if (scales.load(record, quad)) return false;
      float sums[kTileKeys / 16][2] = {};
      float4 terms[4];
#pragma unroll
      for (int32_t t = 0; t < kTileKeys / 16; ++t) {
        uint32_t codes[4][4];
        unpack_even(record + t * 16 * kIndexRecordBytes, quad, scales.below[t],
                    shared + L::kTablesAt, two, codes);
#pragma unroll
        for (int32_t j = 0; j < 4; ++j) {
          if (t % 2 == 0) terms[j] = load_shared_floats(shared + L::kTermsAt + quad * 16 + j * 64);
        }
        lone_products(codes, query, terms, sums[t]);
      }
      finish_tile(scales, sums, 0, begin, row_count, loaded);
      return true;
    };
    // 64 keys for all rows, where no group of a key or a query is uneven.
    const auto even_tile = [&](int32_t begin, uint32_t record, uint32_t* loaded) {
      TileScales scales;
      if (scales.load(record, quad)) return false;
      constexpr int32_t kSteps = kTileKeys / 16;
      uint32_t codes[kSteps][4][4];
#pragma unroll
      for (int32_t t = 0; t < kSteps; ++t) {
        unpack_even(record + t * 16 * kIndexRecordBytes, quad, scales.below[t],
                    shared + L::kTablesAt, two, codes[t]);
      }
#pragma unroll 1
      for (int32_t slot = 0; slot < rows; ++slot) {
        const int32_t row_count = uniform(scored[slot]) >> 8;
        if (row_count <= begin) continue;
        const uint32_t query_at = shared + L::kQueryAt + slot * L::kHeadTiles * kQueryTileBytes;
        const uint32_t terms_at = shared + L::kTermsAt + slot * kHeads * 8 + quad * 16;
        float sums[kSteps][2] = {};
#pragma unroll
        for (int32_t j = 0; j < kHeads / 8; ++j) {
          uint32_t query[8];
          load_query(query_at + j * 1024, query);
          const float4 terms = load_shared_floats(terms_at + j * 64);
          even_products(codes, query, terms, sums);
        }
        finish_tile(scales, sums, slot, begin, row_count, loaded);
      }
      return true;
    };
    int32_t uneven_heads = 0;
    for (int32_t slot = 0; slot < rows; ++slot) uneven_heads |= scored[slot] & 0xFF;
    const bool even = uniform(uneven_heads) == 0;
    const auto all_tiles = [&](const auto& tile, const auto& otherwise) {
      for (int32_t begin = own_begin; begin < end; begin += kChunkKeys) {
        barrier_wait(barriers + stage * 8, parity);
        const uint32_t record = ring + stage * kTileBytes + (lane >> 2) * kIndexRecordBytes;
        uint32_t loaded = 0;
        if (!tile(begin, record, &loaded)) {
#pragma unroll 1
          for (int32_t at = 0; at < kTileKeys && begin + at < end; at += kStepKeys) {
            loaded |= step(begin + at, record + at * kIndexRecordBytes);
          }
          otherwise();
        }
        __syncwarp();
        feeder.next(stage, loaded);
        parity ^= stage + 1 == kStages ? 1 : 0;
        stage = stage + 1 == kStages ? 0 : stage + 1;
      }
    };
    if (kHeads == 32 && rows == 1 && even) {
      uint32_t query[4][8];  // no registers of it stay behind the other way
      const auto load = [&] {
#pragma unroll
        for (int32_t j = 0; j < 4; ++j) load_query(shared + L::kQueryAt + j * 1024, query[j]);
      };
      load();
      const int32_t row_count = uniform(scored[0]) >> 8;
      all_tiles(
          [&](int32_t begin, uint32_t record, uint32_t* loaded) {
            return lone_tile(begin, record, row_count, query, loaded);
          },
          load);
    } else {
      all_tiles([&](int32_t begin, uint32_t record,
                    uint32_t* loaded) { return even && even_tile(begin, record, loaded); },
                [] {});
    }
    __syncthreads();
    first_row = next_row;
  }
}

template <int kHeads, int kRows, bool kPool>
void launch_scores(const IndexParameters& p, int32_t multiprocessors, Stream stream) {
  using L = Layout<kHeads, kRows>;
  // As many blocks as there is room for; each finds its share.
  launch_kernel(score_kernel<kHeads, kRows, kPool>,
                {static_cast<uint32_t>(2 * multiprocessors), kScoreThreads, L::kBytes}, stream, p,
                2U);
}

template <int kHeads>
void launch_scores_of(const IndexParameters& p, int32_t multiprocessors, Stream stream) {
  constexpr int32_t kRows = 256 / kHeads;
  p.call.builds_pool ? launch_scores<kHeads, kRows, true>(p, multiprocessors, stream)
                     : launch_scores<kHeads, kRows, false>(p, multiprocessors, stream);
}

}  // namespace

void launch_index_scores(const IndexParameters& p, int32_t multiprocessors, Stream stream) {
  p.call.shape.heads == 32 ? launch_scores_of<32>(p, multiprocessors, stream)
                           : launch_scores_of<64>(p, multiprocessors, stream);
}

}  // namespace galley::kernels::cuda
