// Sparse attention of few rows: a cluster of sixteen CTAs or eight shares each row. Same bits as
// attention_sm90.cu.
//
// Floor: the SMs bring a row's 215 kB of keys and 128 kB of q and o in well under a microsecond;
// what is left is latency, a chain of reads (row, count, selection, page, key) and two meetings.
//
// Design: for the scores each CTA takes an equal part of the keys, in groups of 16, and all
// channels; for the values all keys and an eighth of the channels, of all heads or (sixteen CTAs)
// of half of them. So it decodes a fraction of the row instead of all of it, by all sixteen warps.
// Two things cross the cluster: the largest score of every block of 64 keys, which the copy engine
// brings to the others, so that each CTA finds for itself how the stabiliser moved from block to
// block, exactly as the kernel of many rows moves it; and probabilities with their sums, which go
// to memory (the L2) and from there by one multicast to all who want them. Sums over keys go group
// by group in order, in each CTA for its own channels; they only stop where a stabiliser moves.
// They are channels x heads: the sums of a product do not depend on which operand is which. Where
// the launch in front makes q and nothing else that is read here, keys are found, brought and
// decoded while that launch is under way.
//
// Measured on one H200, one launch behind the other, in one run, before in brackets: 8.9 us for one
// row (10.2), 9.5 for 4 (10.7), 13.3 for 8 (14.4; eight CTAs each from 8 on), 14.2 for 15 (15.0).
// Behind a launch that makes q: 8.9 (9.9), 9.2 (10.2) and 13.0 (13.8). The difference: one warp
// asks for the row's descriptor (0.6 us; when all did by loads past the L1, 4 rows took 1.6 more),
// products wait once for all of q instead of for every 64 channels with a fence each (0.45), and
// all warps of the scores tell the largest, not one whose copies start one after the other (0.4).
// By clocks inside a launch of one row that had to wait for q, in cycles from then: q there 1,800,
// scores 2,800, largest scores told 4,100 and known 4,550, stabilisers 5,000, probabilities 5,900,
// in the L2 6,850, there 7,650, sums 8,800, stored 9,700. Before the wait: 1,600 to begin, 900 for
// row and count, 1,250 for the list, 2,400 to load and decode own keys. Tried: probabilities from
// block to block of the cluster: they come at 15 bytes a cycle, 92 kB in 5,100 to 7,500, 2,400 by
// way of the L2. Values summed by mma, which has the bits of wgmma (24 cycles a step alone; each
// warp then reads its operands for itself, 80 cycles). Waits and places worked out between the
// steps of the sums: 100 cycles a step instead of 30. The steps of finding stabilisers as a walk
// with branches over the CTAs' parts (4,300 cycles). Products of 64, 128 or 256 channels behind
// each other while the rest of q comes, which another warpgroup brings (0.3 to 0.9 us more);
// largest scores as 16-byte stores from block to block instead of copies (no difference).
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/attention_heads.cuh"
#include "kernels/cuda/attention_keys.cuh"
#include "kernels/cuda/attention_sm90.h"
#include "kernels/cuda/global_loads.cuh"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/sm90.cuh"
#include "kernels/cuda/sm90_memory.cuh"
#include "kernels/cuda/wgmma_keys.cuh"

namespace galley::kernels::cuda {
namespace {

using namespace attention;  // NOLINT: another form of the same kernel

constexpr int32_t kThreads = 4 * kGroup;
constexpr int32_t kWarps = kThreads / 32;
constexpr int32_t kGroupKeys = 16;
constexpr int32_t kBlockGroups = kBlock / kGroupKeys;
constexpr int32_t kGroupsMax = kSlots / kGroupKeys;
constexpr int32_t kBlocksMax = kGroupsMax / kBlockGroups;
constexpr int32_t kChannels = 64;                   // of the values, a CTA
constexpr int32_t kParts = kWidth / kChannels;      // of the channels
constexpr uint32_t kValueBytes = kGroupKeys * 128;  // of a group: 64 channels
// Warpgroups: the scores, the values' sums, the probabilities' sums, and one that only decodes.
constexpr int32_t kSumThreads = kGroup;
constexpr uint32_t kLargestBytes = 2 * kBlocksMax * kHeads * 4;

// kCluster CTAs a row: eight parts of the values' channels, of all heads or of half of them.
template <int32_t kClusterIn>
struct Form {
  static constexpr int32_t kCluster = kClusterIn;
  static constexpr int32_t kHeadParts = kCluster / kParts;
  static constexpr int32_t kHeadsEach = kHeads / kHeadParts;
  static constexpr int32_t kOwnMax = (kGroupsMax + kCluster - 1) / kCluster;  // groups of a CTA
  static constexpr int32_t kOwnKeys = kOwnMax * kGroupKeys;

  // Shared memory. Own keys: seven tiles of 64 channels; the eighth, which are this CTA's channels
  // of the values, among all keys' in the order of the row.
  static constexpr uint32_t kOwnTileBytes = kOwnKeys * 128;
  static constexpr uint32_t kOwnAt = kQAt + kHeads * kWidth * 2;
  static constexpr uint32_t kValuesAt = kOwnAt + 7 * kOwnTileBytes;
  static constexpr uint32_t kKeyListAt = kValuesAt + kGroupsMax * kValueBytes;
  // Largest scores, [block][which of the CTAs that have keys of it][head].
  static constexpr uint32_t kLargestAt = kKeyListAt + kSlots * 8;
  static constexpr uint32_t kArrivedAt = kLargestAt + kLargestBytes;  // all probabilities
  static constexpr uint32_t kToldAt = kArrivedAt + 8;  // all largest scores are there
  static constexpr uint32_t kBytes = kToldAt + 8 + 1024;
  static_assert(kBytes <= 227 * 1024);
  // Where q and own keys were, after the first meeting: groups of probabilities of this CTA's heads
  // and behind each its sums by head; the same of its own keys for all heads, on their way; how the
  // stabilisers moved, [block][head].
  static constexpr uint32_t kGroupSumsAt = kHeadsEach * kGroupKeys * 2;
  static constexpr uint32_t kGroupBytes = kGroupSumsAt + kHeadsEach * 4;
  static constexpr uint32_t kSpreadAt = kQAt;
  static constexpr uint32_t kSendAt = kSpreadAt + kGroupsMax * kGroupBytes;
  static constexpr uint32_t kTopsAt = kSendAt + kHeadParts * kOwnMax * kGroupBytes;
  static constexpr uint32_t kRescalesAt = kTopsAt + kBlocksMax * kHeads * 4;
  static constexpr uint32_t kMovedAt = kRescalesAt + kBlocksMax * kHeads * 4;
  static constexpr uint32_t kUnitsAt = kMovedAt + 16;
  static constexpr uint32_t kResultAt = kUnitsAt + kHeadsEach * 4;  // [head][64 channels]
  static_assert(kResultAt + kHeadsEach * 128 <= kValuesAt);
};

// Which groups of 16 keys a CTA has.
template <class F>
struct Share {
  int32_t groups;  // of the row
  int32_t each;    // of a CTA, the last ones' less

  __device__ __forceinline__ explicit Share(const Geometry& g)
      : groups(g.blocks * kBlockGroups), each((groups + F::kCluster - 1) / F::kCluster) {}
  __device__ __forceinline__ int32_t first(int32_t rank) const { return min(rank * each, groups); }
  __device__ __forceinline__ int32_t count(int32_t rank) const {
    return first(rank + 1) - first(rank);
  }
  // Blocks of which a CTA has keys, at most two.
  __device__ __forceinline__ int32_t blocks_of(int32_t rank) const {
    const int32_t begin = first(rank);
    const int32_t end = first(rank + 1);
    return begin < end ? (end - 1) / kBlockGroups - begin / kBlockGroups + 1 : 0;
  }
  // CTAs that may have keys of a block: four where each has one group, else two.
  __device__ __forceinline__ int32_t of_block() const { return each == 1 ? kBlockGroups : 2; }
  // Where the CTA's largest scores of a block go.
  __device__ __forceinline__ uint32_t largest_at(int32_t rank, int32_t block) const {
    return (block * of_block() + rank - block * kBlockGroups / each) * (kHeads * 4);
  }
};

// Where a tile of 64 channels of a CTA's own keys lies; its own channels are number `part`.
template <class F>
__device__ __forceinline__ uint32_t own_tile(uint32_t shared, int32_t tile, int32_t part,
                                             int32_t first) {
  return tile == part ? shared + F::kValuesAt + first * kValueBytes
                      : shared + F::kOwnAt + ((tile - part - 1) & 7) * F::kOwnTileBytes;
}

// 16 bytes of codes that a thread decodes.
struct Piece {
  uint4 codes;
  uint32_t scales;  // of a window record one, of a global record two
};

// A warp's work on its share of the keys for the scores: 8 keys, 64 bytes of codes of each.
struct OwnPiece {
  int32_t key;      // of the CTA's, the first of eight
  int32_t granule;  // of a record
  bool window;

  // Keys of the selection come first: then only the first three pieces of a warp can be theirs.
  __device__ __forceinline__ OwnPiece(int32_t unit, int32_t window_eights, int32_t global_eights) {
    window = unit >= global_eights * 4;
    const int32_t rest = unit - global_eights * 4;
    key = (window ? rest >> 3 : window_eights + (unit >> 2)) * 8;
    granule = window ? rest & 7 : unit & 3;
  }
  // list: of the CTA's first key.
  __device__ __forceinline__ void load(uint32_t list, Piece& piece) const {
    const int32_t lane = threadIdx.x & 31;
    const int32_t share = lane >> 3;
    const uint8_t* record = load_shared_pointer(list + (key + (lane & 7)) * 8);
    piece.codes = load_written(reinterpret_cast<const uint4*>(record + granule * 64 + share * 16));
    if (window) {
      piece.scales = load_written(record + kWidth + granule * 2 + (share >> 1));
    } else {
      piece.scales = load_written(
          reinterpret_cast<const uint16_t*>(record + kWidth / 2 + granule * 8 + share * 2));
    }
  }
  template <class F>
  __device__ __forceinline__ void decode(uint32_t shared, int32_t part, int32_t first,
                                         const Piece& piece) const {
    const int32_t lane = threadIdx.x & 31;
    const int32_t share = lane >> 3;
    const int32_t tile = window ? granule : granule * 2 + (share >> 1);
    const uint32_t at = own_tile<F>(shared, tile, part, first) + (key + (lane & 7)) * 128;
    if (window) {
      store_window(piece.codes, piece.scales, at, share * 2, lane & 7);
    } else {
      store_global(piece.codes, piece.scales, at, (share & 1) * 4, lane & 7);
    }
  }
};

// A warp's work on the CTA's 64 channels of the others' keys: 16 keys of a selection, or 8 of a
// window.
struct ValuePiece {
  int32_t group;  // of the row
  int32_t half;
  bool window;

  __device__ __forceinline__ ValuePiece(int32_t unit, int32_t window_groups, int32_t first,
                                        int32_t own) {
    window = unit < window_groups * 2;
    group = window ? unit >> 1 : unit - window_groups;
    half = window ? unit & 1 : 0;
    if (group >= first) group += own;
  }
  __device__ __forceinline__ void load(uint32_t list, int32_t part, Piece& piece) const {
    const int32_t lane = threadIdx.x & 31;
    const uint32_t at = list + group * (kGroupKeys * 8);
    if (window) {
      const int32_t share = lane >> 3;
      const uint8_t* record = load_shared_pointer(at + (half * 8 + (lane & 7)) * 8);
      piece.codes = load_written(reinterpret_cast<const uint4*>(record + part * 64 + share * 16));
      piece.scales = load_written(record + kWidth + part * 2 + (share >> 1));
    } else {
      const int32_t share = lane >> 4;
      const uint8_t* record = load_shared_pointer(at + (lane & 15) * 8);
      piece.codes = load_written(reinterpret_cast<const uint4*>(record + part * 32 + share * 16));
      piece.scales = load_written(
          reinterpret_cast<const uint16_t*>(record + kWidth / 2 + part * 4 + share * 2));
    }
  }
  // values: of the first group.
  __device__ __forceinline__ void decode(uint32_t values, const Piece& piece) const {
    const int32_t lane = threadIdx.x & 31;
    const uint32_t at = values + group * kValueBytes;
    if (window) {
      store_window(piece.codes, piece.scales, at + (half * 8 + (lane & 7)) * 128, (lane >> 3) * 2,
                   lane & 7);
    } else {
      store_global(piece.codes, piece.scales, at + (lane & 15) * 128, (lane >> 4) * 4, lane & 7);
    }
  }
};

// q on its way to shared memory, by a warpgroup. The last 64 channels may have to turn on the way:
// they are in registers until finish().
struct Queries {
  static constexpr int32_t kTiles = kWidth / 64;
  static constexpr int32_t kEach = kGroup / 8;  // heads at a time
  static constexpr uint32_t kLastAt = (kTiles - 1) * kTileBytes;
  bool turns;
  uint32_t to;
  Turn turn = {};
  uint4 last[kHeads / kEach];

  __device__ __forceinline__ void start(const AttentionCall& call, int32_t row, uint32_t shared) {
    const int32_t thread = threadIdx.x & (kGroup - 1);
    const int32_t chunk = thread & 7;
    const Bf16* q = call.q + row * call.q_stride + (thread >> 3) * kWidth + chunk * 8;
    turns = call.turns != 0;
    to = shared + kQAt + (thread >> 3) * 128 + ((chunk ^ (thread >> 3)) & 7) * 16;
    if (turns) {
#pragma unroll
      for (int32_t i = 0; i < kHeads / kEach; ++i) {
        last[i] = *reinterpret_cast<const uint4*>(q + i * kEach * kWidth + (kTiles - 1) * 64);
      }
      turn = turn_of((kTiles - 1) * 64 + chunk * 8, call.rotary, call.cos + row * call.angle_stride,
                     call.sin + row * call.angle_stride);
    }
#pragma unroll 1
    for (int32_t tile = 0; tile < kTiles - call.turns; ++tile) {
#pragma unroll
      for (int32_t i = 0; i < kHeads / kEach; ++i) {
        copy_16(to + tile * kTileBytes + i * (kEach * 128), q + i * kEach * kWidth + tile * 64);
      }
    }
  }
  // All of it is there, for all of the warpgroup.
  __device__ __forceinline__ void finish() const {
    if (turns) {
#pragma unroll
      for (int32_t i = 0; i < kHeads / kEach; ++i) {
        store_shared(to + kLastAt + i * (kEach * 128),
                     turn.turns ? turn.forward(last[i]) : last[i]);
      }
    }
    copy_wait();
    fence_async_proxy();
    named_sync(2, kGroup);
  }
};

// How the stabiliser of a head moves from block to block, and what earlier sums are multiplied
// with: by two warps, a head a thread.
template <class F>
__device__ __forceinline__ void walk_blocks(const Share<F>& share, uint32_t shared) {
  const auto head = static_cast<int32_t>(threadIdx.x & (kHeads - 1));
  const int32_t blocks = share.groups / kBlockGroups;
  const uint32_t largest = shared + F::kLargestAt + head * 4;
  float best[kBlocksMax];
  if (share.each > 1) {
#pragma unroll
    for (int32_t block = 0; block < kBlocksMax; ++block) {
      best[block] = fmaxf(load_shared_float(largest + 2 * block * (kHeads * 4)),
                          load_shared_float(largest + (2 * block + 1) * (kHeads * 4)));
    }
  } else {
#pragma unroll
    for (int32_t block = 0; block < kBlocksMax; ++block) {
      best[block] = -INFINITY;
      if (block >= kBlocksMax / 2) continue;
#pragma unroll
      for (int32_t i = 0; i < kBlockGroups; ++i) {
        best[block] = fmaxf(best[block],
                            load_shared_float(largest + (kBlockGroups * block + i) * (kHeads * 4)));
      }
    }
  }
#pragma unroll
  for (int32_t block = 0; block < kBlocksMax; ++block) best[block] *= kScoreScale;
  float top = fmaxf(best[0], kMaxStart);
  uint32_t moved = 0;
#pragma unroll
  for (int32_t block = 0; block < kBlocksMax; ++block) {
    const float before = top;
    if (block > 0 && block < blocks && best[block] > before + 8.0F) {
      top = best[block];
      moved |= 1U << block;
    }
    store_shared(shared + F::kTopsAt + (block * kHeads + head) * 4, top);
    store_shared(shared + F::kRescalesAt + (block * kHeads + head) * 4, power_of_two(before - top));
  }
  moved = __reduce_or_sync(0xFFFFFFFFU, moved);
  if ((head & 31) == 0) store_shared(shared + F::kMovedAt + head / 32 * 4, moved);
}

// Tells every CTA the largest of its scores, block by block.
template <class F>
__device__ __forceinline__ void tell_largest(const Geometry& g, const Share<F>& share, int32_t rank,
                                             uint32_t shared, float (&s)[8 * F::kOwnMax]) {
  const int32_t thread = threadIdx.x & (kGroup - 1);
  const int32_t head = (thread >> 5) * 16 + ((thread & 31) >> 2);
  const int32_t column = (thread & 3) * 2;
  const int32_t first = share.first(rank);
  const int32_t own = share.count(rank);
  float largest[2][2];  // [the CTA's first block, its second][head]
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) largest[i / 2][i % 2] = -INFINITY;
#pragma unroll
  for (int32_t j = 0; j < F::kOwnMax; ++j) {
    const int32_t block = (first + j) / kBlockGroups;
    const bool second = block != first / kBlockGroups;
    const int32_t keys = j < own ? g.keys_in(block) - (first + j) % kBlockGroups * kGroupKeys : 0;
    if (keys < kGroupKeys) {
#pragma unroll
      for (int32_t i = 0; i < 8; ++i) {
        if (i / 4 * 8 + column + i % 2 >= keys) s[8 * j + i] = -INFINITY;
      }
    }
#pragma unroll
    for (int32_t h = 0; h < 2; ++h) {
      const float* x = s + 8 * j + 2 * h;
      const float best = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[4], x[5]));
      largest[0][h] = fmaxf(largest[0][h], second ? -INFINITY : best);
      largest[1][h] = fmaxf(largest[1][h], second ? best : -INFINITY);
    }
  }
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) largest[i / 2][i % 2] = quad_max(largest[i / 2][i % 2]);
  const int32_t block = first / kBlockGroups;
  const int32_t blocks = share.blocks_of(rank);
  if ((thread & 3) < blocks) {
    const uint32_t to =
        shared + F::kLargestAt + share.largest_at(rank, block + (thread & 3)) + head * 4;
    const bool second = (thread & 3) == 1;
    store_shared(to, second ? largest[1][0] : largest[0][0]);
    store_shared(to + 8 * 4, second ? largest[1][1] : largest[0][1]);
  }
  fence_async_proxy();
  named_sync(2, kGroup);
  // A warp starts one copy after the other, so every warp starts its part of them.
  constexpr int32_t kEach = 2 * F::kCluster / (kGroup / 32);
  const int32_t number = (thread & 31) * (kGroup / 32) + (thread >> 5);
  const int32_t to = number % F::kCluster;
  const int32_t which = number / F::kCluster;
  if ((thread & 31) < kEach && to != rank && which < blocks) {
    bulk_copy_remote(shared + F::kLargestAt + share.largest_at(rank, block + which), kHeads * 4,
                     shared + F::kToldAt, to);
  }
}

// From the CTA's scores to probabilities in every CTA's memory.
template <class F>
__device__ __forceinline__ void spread_probabilities(const Share<F>& share, int32_t rank,
                                                     uint32_t shared, uint8_t* room,
                                                     float (&s)[8 * F::kOwnMax]) {
  const int32_t thread = threadIdx.x & (kGroup - 1);
  const int32_t head = (thread >> 5) * 16 + ((thread & 31) >> 2);
  const int32_t first = share.first(rank);
  const int32_t own = share.count(rank);
  const uint32_t send = shared + F::kSendAt + head / F::kHeadsEach * (F::kOwnMax * F::kGroupBytes);
  const int32_t row = head % F::kHeadsEach;
#pragma unroll
  for (int32_t j = 0; j < F::kOwnMax; ++j) {
    if (j >= own) break;
    const uint32_t tops = shared + F::kTopsAt + ((first + j) / kBlockGroups * kHeads + head) * 4;
    float* x = s + 8 * j;
    const float upper =
        group_sum(exponentiate(x[0], x[1], x[4], x[5], kScoreScale, load_shared_float(tops)));
    const float lower =
        group_sum(exponentiate(x[2], x[3], x[6], x[7], kScoreScale, load_shared_float(tops + 32)));
    // 8 keys of a head are 16 bytes, the heads of them side by side.
    const uint32_t group = send + j * F::kGroupBytes;
    const uint32_t to = group + row * 16 + (thread & 3) * 4;
    store_shared(to, pack_bf16(x[0], x[1]));
    store_shared(to + 8 * 16, pack_bf16(x[2], x[3]));
    store_shared(to + F::kHeadsEach * 16, pack_bf16(x[4], x[5]));
    store_shared(to + F::kHeadsEach * 16 + 8 * 16, pack_bf16(x[6], x[7]));
    if ((thread & 3) == 0) {
      store_shared(group + F::kGroupSumsAt + row * 4, upper);
      store_shared(group + F::kGroupSumsAt + row * 4 + 32, lower);
    }
  }
  fence_async_proxy();
  named_sync(2, kGroup);
  if (thread >= F::kHeadParts || own == 0) return;
  // By way of the L2, one part of the heads a thread: what blocks of a cluster send each other
  // comes at 15 bytes a cycle.
  const uint32_t bytes = static_cast<uint32_t>(own) * F::kGroupBytes;
  const uint32_t from = shared + F::kSendAt + thread * (F::kOwnMax * F::kGroupBytes);
  uint8_t* there = room + (thread * kGroupsMax + first) * F::kGroupBytes;
  bulk_store(there, from, bytes);
  bulk_store_wait();
  constexpr uint32_t kEveryone = (1U << F::kCluster) - 1;
  constexpr uint32_t kMask = F::kHeadParts == 1 ? kEveryone : kEveryone / 3;  // every other
  bulk_load_multicast(shared + F::kSpreadAt + first * F::kGroupBytes, there, bytes,
                      shared + F::kArrivedAt, static_cast<uint16_t>(kMask << thread));
}

// Sums of the heads' probabilities, and what their values are multiplied with in the end: four
// threads a head, of which each adds up one group of every block.
template <class F>
__device__ __forceinline__ void sum_probabilities(const AttentionCall& call, const Share<F>& share,
                                                  int32_t part, uint32_t shared) {
  constexpr int32_t kEach = F::kHeadsEach * kBlockGroups / kSumThreads;  // heads of a thread
  const int32_t thread = threadIdx.x & (kGroup - 1);
  const int32_t head = thread / kBlockGroups;
  const int32_t in_row = part * F::kHeadsEach + head;
  const int32_t blocks = share.groups / kBlockGroups;
  constexpr int32_t kStep = kSumThreads / kBlockGroups;
  float sinks[kEach];
#pragma unroll
  for (int32_t i = 0; i < kEach; ++i) sinks[i] = load_constant(call.sink + in_row + i * kStep);
  named_sync(3, kThreads);
  barrier_wait(shared + F::kArrivedAt, 0);
  float sums[kEach] = {};
#pragma unroll 1
  for (int32_t block = 0; block < blocks; ++block) {
    const uint32_t rescale = shared + F::kRescalesAt + (block * kHeads + in_row) * 4;
    const uint32_t group = shared + F::kSpreadAt +
                           (block * kBlockGroups + (thread & 3)) * F::kGroupBytes +
                           F::kGroupSumsAt + head * 4;
#pragma unroll
    for (int32_t i = 0; i < kEach; ++i) {
      sums[i] *= load_shared_float(rescale + i * kStep * 4);
      sums[i] += load_shared_float(group + i * kStep * 4);
    }
  }
#pragma unroll
  for (int32_t i = 0; i < kEach; ++i) {
    float unit = 0.0F;
    if (blocks > 0) {
      const float top =
          load_shared_float(shared + F::kTopsAt + ((blocks - 1) * kHeads + in_row + i * kStep) * 4);
      unit = unit_of(quad_sum(sums[i]), sink_of(top, sinks[i]));
    }
    if ((thread & 3) == 0) store_shared(shared + F::kUnitsAt + (head + i * kStep) * 4, unit);
  }
  named_arrive(4, kGroup + kSumThreads);
}

// This CTA's channels of its heads' sums over keys, block after block: channels x heads.
template <class F>
__device__ __forceinline__ void sum_values(const AttentionCall& call, const Share<F>& share,
                                           int32_t row, int32_t rank, uint32_t shared) {
  const int32_t thread = threadIdx.x & (kGroup - 1);
  const int32_t lane = thread & 31;
  const int32_t warp = thread >> 5;
  const int32_t part = rank / F::kHeadParts;  // of the channels
  const int32_t first_head = rank % F::kHeadParts * F::kHeadsEach;
  const int32_t blocks = share.groups / kBlockGroups;
  const Turn turn = turn_of(part * kChannels + (thread & 7) * 8, call.rotary,
                            call.cos + row * call.angle_stride, call.sin + row * call.angle_stride);
  constexpr int32_t kEights = F::kHeadsEach / 8;
  float o[4 * kEights];
#pragma unroll
  for (int32_t i = 0; i < 4 * kEights; ++i) o[i] = 0.0F;
  uint64_t values = tiles_descriptor(shared + F::kValuesAt, kTileBytes);
  uint64_t spread = groups_descriptor(shared + F::kSpreadAt, F::kHeadsEach * 16);
  const uint32_t rescales = shared + F::kRescalesAt + (first_head + (lane & 3) * 2) * 4;
  named_sync(3, kThreads);
  uint32_t moved = load_shared_word(shared + F::kMovedAt + first_head / 32 * 4);
  if (F::kHeadParts == 1) moved |= load_shared_word(shared + F::kMovedAt + 4);
  barrier_wait(shared + F::kArrivedAt, 0);
  int32_t block = 0;
#pragma unroll 1
  while (block < blocks) {
    if (block > 0) {
#pragma unroll
      for (int32_t i = 0; i < kEights; ++i) {
        const float2 rescale = load_shared_pair(rescales + (block * kHeads + i * 8) * 4);
        o[4 * i] *= rescale.x;
        o[4 * i + 1] *= rescale.y;
        o[4 * i + 2] *= rescale.x;
        o[4 * i + 3] *= rescale.y;
      }
    }
    hold_registers(o);
    // To the next block where a stabiliser moves.
#pragma unroll 1
    do {
      wgmma_fence();
#pragma unroll
      for (int32_t k = 0; k < kBlockGroups; ++k) {
        product_keys_16(o, values + k * (kValueBytes / 16), spread + k * (F::kGroupBytes / 16),
                        block != 0 || k != 0);
      }
      values += kBlockGroups * (kValueBytes / 16);
      spread += kBlockGroups * (F::kGroupBytes / 16);
      wgmma_commit();
      ++block;
    } while (block < blocks && (moved >> block & 1) == 0);
    wgmma_wait<0>();
    hold_registers(o);
  }
  cluster_arrive_relaxed();  // all that comes is here
  named_sync(4, kGroup + kSumThreads);
  // Channels are side by side in the result, heads in the sums.
  const uint32_t result = shared + F::kResultAt;
#pragma unroll
  for (int32_t i = 0; i < kEights; i += 2) {
    uint32_t x[4];
#pragma unroll
    for (int32_t k = 0; k < 2; ++k) {
      const float2 unit =
          load_shared_pair(shared + F::kUnitsAt + ((i + k) * 8 + (lane & 3) * 2) * 4);
      const float* sums = o + 4 * (i + k);
      x[2 * k] = pack_bf16(sums[0] * unit.x, sums[1] * unit.y);
      x[2 * k + 1] = pack_bf16(sums[2] * unit.x, sums[3] * unit.y);
    }
    const int32_t head = (i + (lane >> 4)) * 8 + (lane & 7);
    const int32_t piece = warp * 2 + (lane >> 3 & 1);
    store_matrices_turned(result + head * 128 + (piece ^ (head & 7)) * 16, x[0], x[1], x[2], x[3]);
  }
  named_sync(5, kGroup);
  Bf16* to =
      call.o + row * call.o_stride + first_head * kWidth + part * kChannels + (thread & 7) * 8;
#pragma unroll
  for (int32_t i = 0; i < F::kHeadsEach / 16; ++i) {
    const int32_t head = i * 16 + (thread >> 3);
    uint4 x = load_shared_16(result + head * 128 + ((thread ^ head) & 7) * 16);
    if (turn.turns) x = turn.back(x);
    *reinterpret_cast<uint4*>(to + head * kWidth) = x;
  }
}

template <class F>
__global__ void __launch_bounds__(kThreads, 1) attention_cluster_kernel(const AttentionCall call) {
  extern __shared__ uint8_t shared_bytes[];
  const uint32_t shared = (shared_address(shared_bytes) + 1023U) & ~1023U;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t warp = thread >> 5;
  const auto rank = static_cast<int32_t>(cluster_rank());
  const int32_t part = rank / F::kHeadParts;  // of the channels
  const int32_t row = blockIdx.x / F::kCluster;
  if (thread == 0) {
    barrier_init(shared + F::kArrivedAt, 1);
    barrier_init(shared + F::kToldAt, F::kCluster);
  }
  for (uint32_t i = thread * 4; i < kLargestBytes; i += kThreads * 4) {
    store_shared(shared + F::kLargestAt + i, -INFINITY);
  }
  fence_async_proxy();
  barrier_init_fence();
  cluster_arrive();  // this CTA has begun
  // Where the kernel in front makes q alone, all of the keys is work for the time that it takes.
  const bool early = call.keys_early != 0;
  __shared__ __align__(16) AttentionRow descriptor;
  __shared__ int32_t selected;
  if (warp == 0) fetch_row(call.rows + row, &descriptor);
  if (!early) await_earlier();
  if (warp == 0) {
    __syncwarp();
    if (thread == 0) selected = written_selection_of(descriptor);
  }
  __syncthreads();
  Geometry g;
  g.set(static_cast<int32_t>(descriptor.position - descriptor.window_begin) + 1, selected);
  const Share<F> share(g);
  const int32_t first = share.first(rank);
  const int32_t own = share.count(rank);
  const uint32_t list = shared + F::kKeyListAt;
  {
    ListBuilder<kThreads> builder;
    builder.load_entries(&descriptor, g.selected);
    builder.write_window(&descriptor, g, list);
    builder.load_pages(&descriptor, g.selected);
    builder.write_selected(&descriptor, g, list);
  }
  __syncthreads();
  // What comes.
  if (thread == 0) {
    barrier_expect(shared + F::kArrivedAt, static_cast<uint32_t>(share.groups) * F::kGroupBytes);
  }
  if (thread < F::kCluster && thread != rank) {
    barrier_expect(shared + F::kToldAt,
                   static_cast<uint32_t>(share.blocks_of(thread)) * (kHeads * 4));
  }
  const int32_t window_groups = g.window_blocks * kBlockGroups;
  const int32_t own_window = max(0, min(window_groups - first, own));
  const int32_t own_units = own_window * 16 + (own - own_window) * 8;
  const int32_t other_window = window_groups - own_window;
  const int32_t value_units = other_window * 2 + (share.groups - own - other_window);
  const int32_t own_eights[2] = {own_window * 2, (own - own_window) * 2};
  constexpr int32_t kOwnPieces = F::kOwnMax * 16 / kWarps;
  constexpr int32_t kValueWarps = kWarps - 4;  // all but those of the scores
  constexpr int32_t kValuePieces = 4;
  static_assert(kValuePieces * kValueWarps >= kAttentionWindowMax / 8 + kAttentionSelectedMax / 16);
  Queries queries;
  Piece keys[kOwnPieces];
  Piece values[kValuePieces];
#pragma unroll
  for (int32_t i = 0; i < kOwnPieces; ++i) {
    const int32_t unit = warp + i * kWarps;
    if (unit < own_units) {
      OwnPiece piece(unit, own_eights[0], own_eights[1]);
      if (i * kWarps >= F::kOwnMax * 8) piece.window = true;
      piece.load(list + first * (kGroupKeys * 8), keys[i]);
    }
  }
  if (warp >= 4) {
#pragma unroll
    for (int32_t i = 0; i < kValuePieces; ++i) {
      const int32_t unit = warp - 4 + i * kValueWarps;
      if (unit < value_units) {
        ValuePiece(unit, other_window, first, own).load(list, part, values[i]);
      }
    }
  } else if (!early && own > 0) {
    queries.start(call, row, shared);
  }
#pragma unroll
  for (int32_t i = 0; i < kOwnPieces; ++i) {
    const int32_t unit = warp + i * kWarps;
    if (unit < own_units) {
      OwnPiece piece(unit, own_eights[0], own_eights[1]);
      if (i * kWarps >= F::kOwnMax * 8) piece.window = true;
      piece.template decode<F>(shared, part, first, keys[i]);
    }
  }
  fence_async_proxy();
  if (warp < 4) {
    if (early) {
      await_earlier();
      if (own > 0) queries.start(call, row, shared);
    }
    cluster_wait();  // all CTAs have begun
    named_sync(1, kThreads);
    float s[8 * F::kOwnMax];
    // A CTA without keys leaves the place of q to what comes: no one waits for its scores.
    if (own > 0) {
      hold_registers(s);
      queries.finish();
      wgmma_fence();
#pragma unroll
      for (int32_t tile = 0; tile < Queries::kTiles; ++tile) {
        const uint64_t q_operand = swizzled_descriptor(shared + kQAt + tile * kTileBytes);
        const uint64_t k_operand = swizzled_descriptor(own_tile<F>(shared, tile, part, first));
#pragma unroll
        for (int32_t k = 0; k < 4; ++k) {
          product_scores_16(s, q_operand + k * 2, k_operand + k * 2, tile != 0 || k != 0);
        }
      }
      wgmma_commit();
      wgmma_wait<0>();
      hold_registers(s);
      tell_largest<F>(g, share, rank, shared, s);
    }
    if (thread == 0) barrier_arrive(shared + F::kToldAt);
    named_sync(3, kThreads);
    spread_probabilities<F>(share, rank, shared, call.room + row * kAttentionRoomBytes, s);
    __syncwarp();
    cluster_arrive_relaxed();
  } else {
    named_arrive(1, kThreads);
#pragma unroll
    for (int32_t i = 0; i < kValuePieces; ++i) {
      const int32_t unit = warp - 4 + i * kValueWarps;
      if (unit < value_units) {
        ValuePiece(unit, other_window, first, own).decode(shared + F::kValuesAt, values[i]);
      }
    }
    fence_async_proxy();
    if (early) await_earlier();
    cluster_wait();
    if (warp < 8) {
      sum_values<F>(call, share, row, rank, shared);
    } else if (warp < 12) {
      if (warp < 8 + kHeads / 32) {
        // All largest scores are known, and no CTA needs its q and keys again.
        barrier_wait(shared + F::kToldAt, 0);
        walk_blocks<F>(share, shared);
      }
      sum_probabilities<F>(call, share, rank % F::kHeadParts, shared);
      __syncwarp();
      cluster_arrive_relaxed();
    } else {
      named_arrive(3, kThreads);
      cluster_arrive_relaxed();
    }
  }
  cluster_wait();  // what this CTA sends has been read
}

// As many rows as run at once.
template <class F>
int32_t rows_at_once() {
  cudaFuncSetAttribute(attention_cluster_kernel<F>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(F::kBytes));
  if (F::kCluster > 8) {
    cudaFuncSetAttribute(attention_cluster_kernel<F>,
                         cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  }
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = F::kCluster;
  cluster.val.clusterDim.y = 1;
  cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(F::kCluster);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = F::kBytes;
  config.attrs = &cluster;
  config.numAttrs = 1;
  int clusters = 0;
  const cudaError_t error =
      cudaOccupancyMaxActiveClusters(&clusters, attention_cluster_kernel<F>, &config);
  if (error != cudaSuccess) cudaGetLastError();
  return error == cudaSuccess ? clusters : 0;
}

template <class F>
void launch(const AttentionCall& call, Stream stream) {
  launch_kernel(attention_cluster_kernel<F>,
                {call.row_count * F::kCluster, kThreads, F::kBytes, F::kCluster}, stream, call);
}

}  // namespace

int32_t attention_cluster_rows() {
  static const int32_t rows = std::min(rows_at_once<Form<8>>(), kAttentionRoomRows);
  return rows;
}

void attention_cluster(const AttentionCall& call, Stream stream) {
  static const int32_t rows = rows_at_once<Form<16>>();
  if (call.row_count <= rows) return launch<Form<16>>(call, stream);
  launch<Form<8>>(call, stream);
}

}  // namespace galley::kernels::cuda
