// Sparse attention of few rows: eight CTAs, a cluster, share each row. Same bits as
// attention_sm90.cu.
//
// Floor: eight SMs bring a row's 215 kB of keys and 128 kB of q and o in well under a microsecond;
// what is left is latency, a chain of reads (row, count, selection, page, key) and two meetings,
// and the products, about 1,150 cycles for 80 keys' scores and 1,300 for 64 channels of all values.
//
// Design: for the scores each CTA takes an eighth of the keys, in groups of 16, and all channels;
// for the values all keys and an eighth of the channels. So it decodes 1/8 + 7/64 of the row
// instead of all of it, by all sixteen warps. Two things cross the cluster: the largest score of
// every block of 64 keys (then each CTA finds for itself how the stabiliser moved from block to
// block, exactly as the kernel of many rows moves it), and probabilities with their sums, 2.3 kB a
// group, which the copy engine brings to the other seven. Sums over keys go block by block in
// order, in each CTA for its own channels; they only stop where a stabiliser moves.
//
// Measured on one H200: 13.9 us for one row, 15.3 for 8, 16.0 for 15, where two CTAs a row take 20;
// 8.0 with window keys alone. By clocks inside a launch of 24,000 cycles: 3,200 until the list of
// keys is there, 3,900 to load and decode for the scores, 2,700 for these beside decoding values,
// 2,200 for the largest, 4,300 to the last probability, 5,500 more for the sums, 1,800 to store.
// The sums wait for probabilities: 80 kB for each CTA at about 15 bytes a cycle is what blocks of a
// cluster send each other, so more CTAs a row would not help. Tried: the steps of finding
// stabilisers as a walk with branches over the CTAs' parts (4,300 cycles instead of 1,300, 18.9 us
// in all); rows beyond 12 in turns (59 us for 32; 29 for 16, of which 15 run at once). Next:
// probabilities by way of L2.
#include <cuda_runtime.h>

#include "kernels/cuda/attention_heads.cuh"
#include "kernels/cuda/attention_keys.cuh"
#include "kernels/cuda/attention_sm90.h"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/sm90.cuh"
#include "kernels/cuda/sm90_memory.cuh"
#include "kernels/cuda/wgmma_keys.cuh"

namespace galley::kernels::cuda {
namespace {

using namespace attention;  // NOLINT: another form of the same kernel

constexpr int32_t kCluster = 8;
constexpr int32_t kThreads = 4 * kGroup;
constexpr int32_t kWarps = kThreads / 32;
constexpr int32_t kGroupKeys = 16;
constexpr int32_t kBlockGroups = kBlock / kGroupKeys;
constexpr int32_t kGroupsMax = kSlots / kGroupKeys;
constexpr int32_t kOwnMax = kGroupsMax / kCluster;  // groups of a CTA
constexpr int32_t kOwnKeys = kOwnMax * kGroupKeys;

// Shared memory. Own keys: eight tiles of 64 channels, 80 keys each, this CTA's value channels
// last.
constexpr uint32_t kOwnTileBytes = kOwnKeys * 128;
constexpr uint32_t kOwnAt = kQAt + kHeads * kWidth * 2;
constexpr uint32_t kValueBytes = kGroupKeys * 128;  // of a group: 64 channels
constexpr uint32_t kValuesAt = kOwnAt + 8 * kOwnTileBytes;
constexpr uint32_t kKeyListAt = kValuesAt + (kGroupsMax - kOwnMax) * kValueBytes;
constexpr int32_t kBlocksMax = kGroupsMax / kBlockGroups;
constexpr uint32_t kLargestAt = kKeyListAt + kSlots * 8;  // [block][head], ordered_bits
constexpr uint32_t kArrivalsAt = kLargestAt + kBlocksMax * kHeads * 4;  // a barrier a CTA
constexpr uint32_t kClusterBytes = kArrivalsAt + kCluster * 8 + 1024;
// Where q and own keys were, after the first meeting: groups of probabilities and behind each its
// sums by head; how the stabiliser moved, [block][thread] of two heads.
constexpr uint32_t kGroupSumsAt = kHeads * kGroupKeys * 2;
constexpr uint32_t kGroupBytes = kGroupSumsAt + kHeads * 4;
constexpr uint32_t kSpreadAt = kQAt;
constexpr uint32_t kMovesAt = kOwnAt + 3 * kOwnTileBytes;
static_assert(kSpreadAt + kGroupsMax * kGroupBytes <= kMovesAt);
static_assert(kBlocksMax * kGroup * 8 <= kOwnTileBytes);
static_assert(kClusterBytes <= 227 * 1024);

// Which groups of 16 keys a CTA has.
struct Share {
  int32_t groups;  // of the row
  int32_t each;    // of a CTA, the last ones' less

  __device__ __forceinline__ explicit Share(const Geometry& g)
      : groups(g.blocks * kBlockGroups), each((groups + kCluster - 1) / kCluster) {}
  __device__ __forceinline__ int32_t first(int32_t rank) const { return min(rank * each, groups); }
  __device__ __forceinline__ int32_t count(int32_t rank) const {
    return first(rank + 1) - first(rank);
  }
};

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
    piece.codes = load_read_only(record + granule * 64 + share * 16);
    if (window) {
      piece.scales = __ldg(record + kWidth + granule * 2 + (share >> 1));
    } else {
      piece.scales =
          __ldg(reinterpret_cast<const uint16_t*>(record + kWidth / 2 + granule * 8 + share * 2));
    }
  }
  // Tiles are counted from the one behind the CTA's own.
  __device__ __forceinline__ void decode(uint32_t shared, int32_t rank, const Piece& piece) const {
    const int32_t lane = threadIdx.x & 31;
    const int32_t share = lane >> 3;
    const int32_t tile = window ? granule : granule * 2 + (share >> 1);
    const uint32_t at =
        shared + kOwnAt + ((tile - rank - 1) & 7) * kOwnTileBytes + (key + (lane & 7)) * 128;
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
  int32_t group;  // of the others'
  int32_t half;
  bool window;

  __device__ __forceinline__ ValuePiece(int32_t unit, int32_t window_groups) {
    window = unit < window_groups * 2;
    group = window ? unit >> 1 : unit - window_groups;
    half = window ? unit & 1 : 0;
  }
  __device__ __forceinline__ void load(uint32_t list, int32_t first, int32_t own, int32_t rank,
                                       Piece& piece) const {
    const int32_t lane = threadIdx.x & 31;
    const int32_t in_row = group < first ? group : group + own;
    const uint32_t at = list + in_row * (kGroupKeys * 8);
    if (window) {
      const int32_t share = lane >> 3;
      const uint8_t* record = load_shared_pointer(at + (half * 8 + (lane & 7)) * 8);
      piece.codes = load_read_only(record + rank * 64 + share * 16);
      piece.scales = __ldg(record + kWidth + rank * 2 + (share >> 1));
    } else {
      const int32_t share = lane >> 4;
      const uint8_t* record = load_shared_pointer(at + (lane & 15) * 8);
      piece.codes = load_read_only(record + rank * 32 + share * 16);
      piece.scales =
          __ldg(reinterpret_cast<const uint16_t*>(record + kWidth / 2 + rank * 4 + share * 2));
    }
  }
  __device__ __forceinline__ void decode(uint32_t shared, const Piece& piece) const {
    const int32_t lane = threadIdx.x & 31;
    const uint32_t at = shared + kValuesAt + group * kValueBytes;
    if (window) {
      store_window(piece.codes, piece.scales, at + (half * 8 + (lane & 7)) * 128, (lane >> 3) * 2,
                   lane & 7);
    } else {
      store_global(piece.codes, piece.scales, at + (lane & 15) * 128, (lane >> 4) * 4, lane & 7);
    }
  }
};

// q to shared memory; its last tile of channels may have to turn on the way.
__device__ __forceinline__ void start_queries(const AttentionCall& call, int32_t row,
                                              uint32_t shared) {
  const auto head = static_cast<int32_t>(threadIdx.x >> 3);
  const auto chunk = static_cast<int32_t>(threadIdx.x & 7);
  const Bf16* q = call.q + row * call.q_stride + head * kWidth + chunk * 8;
  const uint32_t to = shared + kQAt + head * 128 + ((chunk ^ head) & 7) * 16;
  constexpr int32_t kTiles = kWidth / 64;
  static_assert(kThreads == kHeads * 8);
#pragma unroll
  for (int32_t tile = 0; tile < kTiles; ++tile) {
    if (tile + 1 < kTiles || call.turns == 0) copy_16(to + tile * kTileBytes, q + tile * 64);
  }
  if (call.turns == 0) return;
  constexpr int32_t kLast = (kTiles - 1) * 64;
  const Turn turn = turn_of(kLast + chunk * 8, call.rotary, call.cos + row * call.angle_stride,
                            call.sin + row * call.angle_stride);
  uint4 x = *reinterpret_cast<const uint4*>(q + kLast);
  if (turn.turns) x = turn.forward(x);
  store_shared(to + (kTiles - 1) * kTileBytes, x);
}

// Unsigned numbers in the order of the floats they stand for.
__device__ __forceinline__ uint32_t ordered_bits(float x) {
  const uint32_t bits = __float_as_uint(x);
  return bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000U);
}
__device__ __forceinline__ float from_ordered_bits(uint32_t x) {
  return __uint_as_float(x ^ (~static_cast<uint32_t>(static_cast<int32_t>(x) >> 31) | 0x80000000U));
}

// How the stabilisers of this thread's two heads move from block to block. visit(block,
// stabilisers, what earlier sums are multiplied with); blocks that the row lacks do not move them.
template <class Visit>
__device__ __forceinline__ void walk_blocks(int32_t blocks, uint32_t shared, int32_t head,
                                            const Visit& visit) {
  float top[2] = {kMaxStart, kMaxStart};
#pragma unroll
  for (int32_t block = 0; block < kBlocksMax; ++block) {
    float rescale[2];
#pragma unroll
    for (int32_t h = 0; h < 2; ++h) {
      const uint32_t bits =
          load_shared_word(shared + kLargestAt + (block * kHeads + head + 8 * h) * 4);
      const float best = block < blocks ? from_ordered_bits(bits) * kScoreScale : -INFINITY;
      const float before = top[h];
      if (block == 0) {
        top[h] = fmaxf(best, kMaxStart);
      } else {
        top[h] = best > before + 8.0F ? best : before;
      }
      rescale[h] = block == 0 ? 1.0F : power_of_two(before - top[h]);  // 1 if it stays
    }
    visit(block, top, rescale);
  }
}

// Tells every CTA the largest of its scores, block by block.
__device__ __forceinline__ void tell_largest(const Geometry& g, const Share& share, int32_t rank,
                                             uint32_t shared, float (&s)[40]) {
  const int32_t thread = threadIdx.x & (kGroup - 1);
  const int32_t head = (thread >> 5) * 16 + ((thread & 31) >> 2);
  const int32_t column = (thread & 3) * 2;
  const int32_t first = share.first(rank);
  const int32_t own = share.count(rank);
  float largest[2][2];  // [the CTA's first block, its second][head]
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) largest[i / 2][i % 2] = -INFINITY;
#pragma unroll
  for (int32_t j = 0; j < kOwnMax; ++j) {
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
  if (own == 0) return;
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) largest[i / 2][i % 2] = quad_max(largest[i / 2][i % 2]);
  const uint32_t to = shared + kLargestAt + (first / kBlockGroups * kHeads + head) * 4;
  const bool two = (first + own - 1) / kBlockGroups != first / kBlockGroups;
#pragma unroll
  for (int32_t i = 0; i < 2; ++i) {  // a lane of a quad tells two CTAs
    const uint32_t there = remote_address(to, (thread & 3) * 2 + i);
    maximum_remote(there, ordered_bits(largest[0][0]));
    maximum_remote(there + 8 * 4, ordered_bits(largest[0][1]));
    if (two) {
      maximum_remote(there + kHeads * 4, ordered_bits(largest[1][0]));
      maximum_remote(there + kHeads * 4 + 8 * 4, ordered_bits(largest[1][1]));
    }
  }
}

// From the CTA's scores to probabilities in every CTA's memory, group by group.
__device__ __forceinline__ void spread_probabilities(const Share& share, int32_t rank,
                                                     uint32_t shared, float (&s)[40]) {
  const int32_t thread = threadIdx.x & (kGroup - 1);
  const int32_t head = (thread >> 5) * 16 + ((thread & 31) >> 2);
  const int32_t first = share.first(rank);
  const int32_t own = share.count(rank);
  const int32_t first_block = first / kBlockGroups;
  float tops[2][2] = {};  // [the first block, the second][head]
  walk_blocks(share.groups / kBlockGroups, shared, head,
              [&](int32_t block, const float(&top)[2], const float(&)[2]) {
#pragma unroll
                for (int32_t h = 0; h < 2; ++h) {
                  if (block == first_block) tops[0][h] = top[h];
                  if (block <= first_block + 1) tops[1][h] = top[h];
                }
              });
  const uint32_t barrier = shared + kArrivalsAt + rank * 8;
#pragma unroll
  for (int32_t j = 0; j < kOwnMax; ++j) {
    if (j >= own) break;
    const bool second = (first + j) / kBlockGroups != first_block;
    float* x = s + 8 * j;
    const float upper = group_sum(
        exponentiate(x[0], x[1], x[4], x[5], kScoreScale, second ? tops[1][0] : tops[0][0]));
    const float lower = group_sum(
        exponentiate(x[2], x[3], x[6], x[7], kScoreScale, second ? tops[1][1] : tops[0][1]));
    // 8 keys of a head are 16 bytes, 64 heads of them side by side.
    const uint32_t group = shared + kSpreadAt + (first + j) * kGroupBytes;
    const uint32_t to = group + head * 16 + (thread & 3) * 4;
    store_shared(to, pack_bf16(x[0], x[1]));
    store_shared(to + 8 * 16, pack_bf16(x[2], x[3]));
    store_shared(to + kHeads * 16, pack_bf16(x[4], x[5]));
    store_shared(to + kHeads * 16 + 8 * 16, pack_bf16(x[6], x[7]));
    if ((thread & 3) == 0) {
      store_shared(group + kGroupSumsAt + head * 4, upper);
      store_shared(group + kGroupSumsAt + head * 4 + 32, lower);
    }
    fence_async_proxy();
    named_sync(2, kGroup);
    if (thread < kCluster && thread != rank) bulk_copy_remote(group, kGroupBytes, barrier, thread);
  }
  if (thread == 0) barrier_arrive(barrier);
}

// This CTA's 64 channels of the row's sums over keys, block after block.
__device__ __forceinline__ void sum_row(const AttentionCall& call, const Share& share, int32_t row,
                                        int32_t rank, uint32_t shared) {
  const int32_t thread = threadIdx.x & (kGroup - 1);
  const int32_t lane = thread & 31;
  const int32_t head = (thread >> 5) * 16 + (lane >> 2);
  const int32_t first = share.first(rank);
  const int32_t own = share.count(rank);
  const int32_t blocks = share.groups / kBlockGroups;
  // Before the probabilities come.
  const float sink[2] = {__ldg(call.sink + head), __ldg(call.sink + head + 8)};
  const uint32_t moves = shared + kMovesAt + thread * 8;
  float tops[2];
  uint32_t moved = 0;  // blocks
  walk_blocks(blocks, shared, head,
              [&](int32_t block, const float(&top)[2], const float(&rescale)[2]) {
                store_shared(moves + block * (kGroup * 8),
                             make_uint2(__float_as_uint(rescale[0]), __float_as_uint(rescale[1])));
                if (rescale[0] != 1.0F || rescale[1] != 1.0F) moved |= 1U << block;
                tops[0] = top[0];
                tops[1] = top[1];
              });
  moved = __reduce_or_sync(0xFFFFFFFFU, moved);
  const float sinks[2] = {sink_of(tops[0], sink[0]), sink_of(tops[1], sink[1])};

  float o[32];
  float sums[2] = {0.0F, 0.0F};
#pragma unroll
  for (int32_t i = 0; i < 32; ++i) o[i] = 0.0F;
  int32_t from = -1;  // the last CTA whose probabilities are here
  int32_t block = 0;
#pragma unroll 1
  while (block < blocks) {
    const float2 rescale = load_shared_pair(moves + block * (kGroup * 8));
#pragma unroll
    for (int32_t i = 0; i < 8; ++i) {
      o[4 * i] *= rescale.x;
      o[4 * i + 1] *= rescale.x;
      o[4 * i + 2] *= rescale.y;
      o[4 * i + 3] *= rescale.y;
    }
    sums[0] *= rescale.x;
    sums[1] *= rescale.y;
    hold_registers(o);
    // To the next block where a stabiliser moves.
#pragma unroll 1
    do {
      while (from < kCluster - 1 && share.first(from + 1) < (block + 1) * kBlockGroups) {
        ++from;
        if (share.count(from) > 0) barrier_wait(shared + kArrivalsAt + from * 8, 0);
      }
      wgmma_fence();
      const uint32_t spread = shared + kSpreadAt + block * (kBlockGroups * kGroupBytes);
#pragma unroll
      for (int32_t k = 0; k < kBlockGroups; ++k) {
        const int32_t group = block * kBlockGroups + k;
        const int32_t at = group - first;
        const uint32_t values =
            at >= 0 && at < own ? shared + kOwnAt + 7 * kOwnTileBytes + at * kValueBytes
                                : shared + kValuesAt + (at < 0 ? group : group - own) * kValueBytes;
        product_64x64x16_keys(o, groups_descriptor(spread + k * kGroupBytes),
                              tiles_descriptor(values, kTileBytes), group != 0);
      }
      wgmma_commit();
      const uint32_t at = spread + (lane & 3) * kGroupBytes + kGroupSumsAt + head * 4;
      sums[0] += load_shared_float(at);
      sums[1] += load_shared_float(at + 32);
      ++block;
    } while (block < blocks && (moved >> block & 1) == 0);
    wgmma_wait<0>();
    hold_registers(o);
  }
  cluster_arrive();  // all that comes is here
  float units[2] = {0.0F, 0.0F};
  if (blocks > 0) {
    units[0] = unit_of(quad_sum(sums[0]), sinks[0]);
    units[1] = unit_of(quad_sum(sums[1]), sinks[1]);
  }
  Bf16* to = call.o + row * call.o_stride + head * kWidth + rank * 64 + (lane & 3) * 8;
  const float* cos = call.cos + row * call.angle_stride;
  const float* sin = call.sin + row * call.angle_stride;
#pragma unroll
  for (int32_t i = 0; i < 2; ++i) {  // 32 channels each
    uint32_t a[4], b[4];
#pragma unroll
    for (int32_t q = 0; q < 4; ++q) {
      const int32_t at = (i * 4 + q) * 4;
      a[q] = pack_bf16(o[at] * units[0], o[at + 1] * units[0]);
      b[q] = pack_bf16(o[at + 2] * units[1], o[at + 3] * units[1]);
    }
    const Turn turn = turn_of(rank * 64 + i * 32 + (lane & 3) * 8, call.rotary, cos, sin);
    store_channels(a, to + i * 32, turn);
    store_channels(b, to + 8 * kWidth + i * 32, turn);
  }
}

__global__ void __launch_bounds__(kThreads, 1) attention_cluster_kernel(const AttentionCall call) {
  extern __shared__ uint8_t shared_bytes[];
  const uint32_t shared = (shared_address(shared_bytes) + 1023U) & ~1023U;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t warp = thread >> 5;
  const auto rank = static_cast<int32_t>(cluster_rank());
  const int32_t row = blockIdx.x / kCluster;
  if (thread < kCluster) barrier_init(shared + kArrivalsAt + thread * 8, 1);
  for (int32_t i = thread; i < kBlocksMax * kHeads; i += kThreads) {
    store_shared(shared + kLargestAt + i * 4, uint32_t{0});  // below all
  }
  barrier_init_fence();
  cluster_arrive();  // this CTA has begun
  await_earlier();
  const AttentionRow* descriptor = call.rows + row;
  start_queries(call, row, shared);
  const Geometry g = geometry_of(descriptor);
  const Share share(g);
  const int32_t first = share.first(rank);
  const int32_t own = share.count(rank);
  const uint32_t list = shared + kKeyListAt;
  {
    ListBuilder<kThreads> builder;
    builder.load_entries(descriptor);
    builder.write_window(descriptor, g, list);
    builder.load_pages(descriptor);
    builder.write_selected(descriptor, g, list);
  }
  __syncthreads();
  // What others send; in each CTA one thread knows how much.
  if (thread < kCluster && thread != rank) {
    const auto groups = static_cast<uint32_t>(share.count(thread));
    barrier_expect(shared + kArrivalsAt + thread * 8, groups * kGroupBytes);
  }
  const int32_t window_groups = g.window_blocks * kBlockGroups;
  const int32_t own_window = max(0, min(window_groups - first, own));
  const int32_t own_units = own_window * 16 + (own - own_window) * 8;
  const int32_t other_window = window_groups - own_window;
  const int32_t value_units = other_window * 2 + (share.groups - own - other_window);
  const int32_t own_eights[2] = {own_window * 2, (own - own_window) * 2};
  constexpr int32_t kOwnPieces = kOwnMax * 16 / kWarps;
  constexpr int32_t kValueWarps = kWarps - 4;  // all but those of the scores
  constexpr int32_t kValuePieces = 4;
  static_assert(kValuePieces * kValueWarps >= kAttentionWindowMax / 8 + kAttentionSelectedMax / 16);
  Piece keys[kOwnPieces];
  Piece values[kValuePieces];
#pragma unroll
  for (int32_t i = 0; i < kOwnPieces; ++i) {
    const int32_t unit = warp + i * kWarps;
    if (unit < own_units) {
      OwnPiece piece(unit, own_eights[0], own_eights[1]);
      if (i * kWarps >= kOwnMax * 8) piece.window = true;
      piece.load(list + first * (kGroupKeys * 8), keys[i]);
    }
  }
  if (warp >= 4) {
#pragma unroll
    for (int32_t i = 0; i < kValuePieces; ++i) {
      const int32_t unit = warp - 4 + i * kValueWarps;
      if (unit < value_units) {
        ValuePiece(unit, other_window).load(list, first, own, rank, values[i]);
      }
    }
  }
#pragma unroll
  for (int32_t i = 0; i < kOwnPieces; ++i) {
    const int32_t unit = warp + i * kWarps;
    if (unit < own_units) {
      OwnPiece piece(unit, own_eights[0], own_eights[1]);
      if (i * kWarps >= kOwnMax * 8) piece.window = true;
      piece.decode(shared, rank, keys[i]);
    }
  }
  copy_wait();
  fence_async_proxy();
  if (warp < 4) {
    named_sync(1, kThreads);
    float s[40];
    const uint64_t q_operand = swizzled_descriptor(shared + kQAt);
    wgmma_fence();
#pragma unroll
    for (int32_t k = 0; k < kWidth / 16; ++k) {
      const uint32_t tile = shared + kOwnAt + ((k / 4 - rank - 1) & 7) * kOwnTileBytes;
      product_64x80x16(s, q_operand + (((k / 4) * kTileBytes + (k % 4) * 32) >> 4),
                       swizzled_descriptor(tile + (k % 4) * 32), k != 0);
    }
    wgmma_commit();
    cluster_wait();  // all CTAs have begun
    wgmma_wait<0>();
    hold_registers(s);
    tell_largest(g, share, rank, shared, s);
    cluster_arrive();
    cluster_wait();  // all largest scores are known, and no CTA needs its q and keys again
    spread_probabilities(share, rank, shared, s);
    cluster_arrive();
  } else {
    named_arrive(1, kThreads);
#pragma unroll
    for (int32_t i = 0; i < kValuePieces; ++i) {
      const int32_t unit = warp - 4 + i * kValueWarps;
      if (unit < value_units) ValuePiece(unit, other_window).decode(shared, values[i]);
    }
    fence_async_proxy();
    cluster_wait();
    cluster_arrive();
    cluster_wait();
    if (warp < 8) {
      sum_row(call, share, row, rank, shared);
    } else {
      cluster_arrive();
    }
  }
  cluster_wait();  // what this CTA sends has been read
}

}  // namespace

int32_t attention_cluster_rows() {
  static const int32_t rows = [] {
    cudaFuncSetAttribute(attention_cluster_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(kClusterBytes));
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = kCluster;
    cluster.val.clusterDim.y = 1;
    cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(kCluster);
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = kClusterBytes;
    config.attrs = &cluster;
    config.numAttrs = 1;
    int clusters = 0;
    const cudaError_t error =
        cudaOccupancyMaxActiveClusters(&clusters, attention_cluster_kernel, &config);
    return error == cudaSuccess ? clusters : 0;
  }();
  return rows;
}

void attention_cluster(const AttentionCall& call, Stream stream) {
  launch_kernel(attention_cluster_kernel,
                {call.row_count * kCluster, kThreads, kClusterBytes, kCluster}, stream, call);
}

}  // namespace galley::kernels::cuda
