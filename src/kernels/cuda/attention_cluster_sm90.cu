// Sparse attention of few rows: eight CTAs, a cluster, share each row. Same bits as
// attention_sm90.cu.
//
// Floor: a row's 215 kB of keys and 128 kB of q and o cross memory in well under a microsecond if
// eight SMs ask for them; what is left is latency, a chain of reads (row, selection, page, key),
// two meetings, and 64 heads x 640 keys x 512 channels twice over, 2 x 2,600 cycles for one SM's
// tensor cores.
//
// Design: for the scores each CTA takes an eighth of the keys, in groups of 16, and all channels;
// for the values all keys and an eighth of the channels. So it decodes 1/8 + 7/64 of the row
// instead of all of it, and all sixteen warps decode. Two things cross the cluster: the largest
// scores of each part of a block (then every CTA finds for itself how the stabiliser moved from
// block to block, exactly as the kernel of many rows moves it), and probabilities with their sums,
// 2 kB a group, which the copy engine brings to the other seven. Sums over keys go block by block
// in order, in each CTA for its own channels.
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
constexpr uint32_t kLargestAt = kKeyListAt + kListBytes;                  // [CTA][part][head] f32
constexpr uint32_t kArrivalsAt = kLargestAt + kCluster * 2 * kHeads * 4;  // a barrier a CTA
constexpr uint32_t kClusterBytes = kArrivalsAt + kCluster * 8 + 1024;
// Where q and own keys were: after the first meeting.
constexpr uint32_t kGroupBytes = kHeads * kGroupKeys * 2;      // probabilities
constexpr uint32_t kSpreadAt = kQAt;                           // [group]
constexpr uint32_t kGroupSumsAt = kOwnAt + 2 * kOwnTileBytes;  // [group][head] f32
constexpr uint32_t kGroupSumBytes = kHeads * 4;
constexpr uint32_t kMovesAt = kOwnAt + 3 * kOwnTileBytes;  // [block][thread] 2 f32
static_assert(kSpreadAt + kGroupsMax * kGroupBytes <= kGroupSumsAt);
static_assert(kGroupsMax * kGroupSumBytes <= kOwnTileBytes);
static_assert(kGroupsMax / kBlockGroups * kGroup * 8 <= kOwnTileBytes);
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

  __device__ __forceinline__ OwnPiece(int32_t unit, int32_t window_eights) {
    window = unit < window_eights * 8;
    const int32_t rest = unit - window_eights * 8;
    key = (window ? unit >> 3 : window_eights + (rest >> 2)) * 8;
    granule = window ? unit & 7 : rest & 3;
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

// How the stabiliser of a head moves, from the largest scores of every CTA's part of every block.
// visit(block, stabiliser, rescale).
template <class Visit>
__device__ __forceinline__ void walk_blocks(const Share& share, uint32_t shared, int32_t head,
                                            const Visit& visit) {
  float largest[kCluster * 2];
#pragma unroll
  for (int32_t i = 0; i < kCluster * 2; ++i) {
    largest[i] = load_shared_float(shared + kLargestAt + (i * kHeads + head) * 4);
  }
  Stabiliser stabiliser;
  float best = -INFINITY;
  int32_t block = 0;
#pragma unroll
  for (int32_t i = 0; i < kCluster * 2; ++i) {
    const int32_t first = share.first(i / 2);
    const int32_t last = share.first(i / 2 + 1) - 1;
    const int32_t of = first / kBlockGroups + i % 2;
    if (first > last || of > last / kBlockGroups) continue;  // no such part
    best = fmaxf(best, largest[i]);
    if (i % 2 == 0 && of == last / kBlockGroups && last % kBlockGroups != kBlockGroups - 1) {
      continue;  // the next CTA has the rest
    }
    if (i % 2 == 1 && last % kBlockGroups != kBlockGroups - 1) continue;
    const float rescale = stabiliser.move(best * kScoreScale, block == 0);
    visit(block, stabiliser.top, rescale);
    best = -INFINITY;
    ++block;
  }
}

// The CTA's groups of the scores, from its keys to probabilities in every CTA's memory.
__device__ __forceinline__ void spread_probabilities(const Share& share, int32_t rank,
                                                     uint32_t shared, float (&s)[40]) {
  const int32_t thread = threadIdx.x & (kGroup - 1);
  const int32_t head = (thread >> 5) * 16 + ((thread & 31) >> 2);
  const int32_t first = share.first(rank);
  const int32_t own = share.count(rank);
  const int32_t first_block = first / kBlockGroups;
  float tops[2][2] = {};  // [of the first block, of the second][head]
#pragma unroll
  for (int32_t h = 0; h < 2; ++h) {
    walk_blocks(share, shared, head + 8 * h, [&](int32_t block, float top, float) {
      if (block == first_block) tops[0][h] = top;
      if (block == first_block + 1) tops[1][h] = top;
    });
  }
#pragma unroll
  for (int32_t j = 0; j < kOwnMax; ++j) {
    if (j >= own) break;
    const bool second = (first + j) / kBlockGroups != first_block;
    float* group = s + 8 * j;
    const float upper = group_sum(exponentiate(group[0], group[1], group[4], group[5], kScoreScale,
                                               second ? tops[1][0] : tops[0][0]));
    const float lower = group_sum(exponentiate(group[2], group[3], group[6], group[7], kScoreScale,
                                               second ? tops[1][1] : tops[0][1]));
    // 8 keys of a head are 16 bytes, 64 heads of them side by side.
    const uint32_t to =
        shared + kSpreadAt + (first + j) * kGroupBytes + head * 16 + (thread & 3) * 4;
    store_shared(to, pack_bf16(group[0], group[1]));
    store_shared(to + 8 * 16, pack_bf16(group[2], group[3]));
    store_shared(to + kHeads * 16, pack_bf16(group[4], group[5]));
    store_shared(to + kHeads * 16 + 8 * 16, pack_bf16(group[6], group[7]));
    if ((thread & 3) == 0) {
      const uint32_t sums = shared + kGroupSumsAt + (first + j) * kGroupSumBytes + head * 4;
      store_shared(sums, upper);
      store_shared(sums + 32, lower);
    }
  }
  fence_async_proxy();
  named_sync(2, kGroup);
  const uint32_t barrier = shared + kArrivalsAt + rank * 8;
  if (thread == rank) {
    barrier_arrive(barrier);
  } else if (thread < kCluster && own > 0) {
    const uint32_t spread = shared + kSpreadAt + first * kGroupBytes;
    const uint32_t sums = shared + kGroupSumsAt + first * kGroupSumBytes;
    bulk_copy_remote(spread, own * kGroupBytes, barrier, thread);
    bulk_copy_remote(sums, own * kGroupSumBytes, barrier, thread);
  }
}

// Scores of the CTA's own keys; tells every CTA the largest of each block's part.
__device__ __forceinline__ void tell_largest(const Geometry& g, const Share& share, int32_t rank,
                                             uint32_t shared, float (&s)[40]) {
  const int32_t thread = threadIdx.x & (kGroup - 1);
  const int32_t head = (thread >> 5) * 16 + ((thread & 31) >> 2);
  const int32_t column = (thread & 3) * 2;
  const int32_t first = share.first(rank);
  const int32_t own = share.count(rank);
  float largest[2][2];  // [part][head]
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) largest[i / 2][i % 2] = -INFINITY;
#pragma unroll
  for (int32_t j = 0; j < kOwnMax; ++j) {
    if (j >= own) break;
    const int32_t block = (first + j) / kBlockGroups;
    const int32_t keys = g.keys_in(block) - (first + j) % kBlockGroups * kGroupKeys;
    const bool second = block != first / kBlockGroups;
    float best[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int32_t i = 0; i < 8; ++i) {
      float& score = s[8 * j + i];
      if (i / 4 * 8 + column + i % 2 >= keys) score = -INFINITY;
      best[i / 2 % 2] = fmaxf(best[i / 2 % 2], score);
    }
#pragma unroll
    for (int32_t h = 0; h < 2; ++h) {
      largest[0][h] = fmaxf(largest[0][h], second ? -INFINITY : best[h]);
      largest[1][h] = fmaxf(largest[1][h], second ? best[h] : -INFINITY);
    }
  }
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) largest[i / 2][i % 2] = quad_max(largest[i / 2][i % 2]);
  const uint32_t to = shared + kLargestAt + (rank * 2 * kHeads + head) * 4;
#pragma unroll
  for (int32_t i = 0; i < 2; ++i) {  // a lane of a quad tells two CTAs
    const uint32_t there = remote_address(to, (thread & 3) * 2 + i);
    store_remote(there, largest[0][0]);
    store_remote(there + 8 * 4, largest[0][1]);
    store_remote(there + kHeads * 4, largest[1][0]);
    store_remote(there + kHeads * 4 + 8 * 4, largest[1][1]);
  }
}

// Sums over all groups, in order, of this CTA's channels; and of the probabilities themselves. A
// stabiliser that moves (kMoves) makes it wait for every block.
template <bool kMoves>
__device__ __forceinline__ void sum_groups(const Share& share, int32_t rank, uint32_t shared,
                                           float (&o)[32], float (&sums)[2]) {
  const int32_t thread = threadIdx.x & (kGroup - 1);
  const int32_t lane = thread & 31;
  const int32_t head = (thread >> 5) * 16 + (lane >> 2);
  const int32_t first = share.first(rank);
  const int32_t own = share.count(rank);
  int32_t from = -1;  // the last CTA whose probabilities are here
#pragma unroll 1
  for (int32_t block = 0; block < share.groups / kBlockGroups; ++block) {
    while (from < kCluster - 1 && share.first(from + 1) < (block + 1) * kBlockGroups) {
      ++from;
      if (share.count(from) > 0) barrier_wait(shared + kArrivalsAt + from * 8, 0);
    }
    float2 rescale = {1.0F, 1.0F};
    if (kMoves) {
      rescale = load_shared_pair(shared + kMovesAt + (block * kGroup + thread) * 8);
#pragma unroll
      for (int32_t i = 0; i < 8; ++i) {
        o[4 * i] *= rescale.x;
        o[4 * i + 1] *= rescale.x;
        o[4 * i + 2] *= rescale.y;
        o[4 * i + 3] *= rescale.y;
      }
      hold_registers(o);
    }
    wgmma_fence();
#pragma unroll
    for (int32_t k = 0; k < kBlockGroups; ++k) {
      const int32_t group = block * kBlockGroups + k;
      const int32_t at = group - first;
      const uint32_t values =
          shared + (at >= 0 && at < own ? kOwnAt + 7 * kOwnTileBytes + at * kValueBytes
                                        : kValuesAt + (at < 0 ? group : group - own) * kValueBytes);
      product_64x64x16_keys(o, groups_descriptor(shared + kSpreadAt + group * kGroupBytes),
                            tiles_descriptor(values, kTileBytes), group != 0);
    }
    wgmma_commit();
    const uint32_t at =
        shared + kGroupSumsAt + (block * kBlockGroups + (lane & 3)) * kGroupSumBytes + head * 4;
    const float upper = load_shared_float(at);
    const float lower = load_shared_float(at + 32);
    sums[0] = block == 0 ? upper : sums[0] * rescale.x + upper;
    sums[1] = block == 0 ? lower : sums[1] * rescale.y + lower;
    if (kMoves) {
      wgmma_wait<0>();
      hold_registers(o);
    }
  }
  wgmma_wait<0>();
  hold_registers(o);
}

// This CTA's 64 channels of the row's sums, group after group.
__device__ __forceinline__ void sum_row(const AttentionCall& call, const Share& share, int32_t row,
                                        int32_t rank, uint32_t shared) {
  const int32_t thread = threadIdx.x & (kGroup - 1);
  const int32_t lane = thread & 31;
  const int32_t head = (thread >> 5) * 16 + (lane >> 2);
  // Before the probabilities come.
  const uint32_t moves = shared + kMovesAt + thread * 8;
  float tops[2] = {kMaxStart, kMaxStart};
  bool moved = false;
#pragma unroll
  for (int32_t h = 0; h < 2; ++h) {
    walk_blocks(share, shared, head + 8 * h, [&](int32_t block, float top, float rescale) {
      store_shared(moves + block * (kGroup * 8) + h * 4, rescale);
      tops[h] = top;
      moved |= rescale != 1.0F;
    });
  }
  const float sink[2] = {__ldg(call.sink + head), __ldg(call.sink + head + 8)};

  float o[32];
  float sums[2] = {0.0F, 0.0F};
#pragma unroll
  for (int32_t i = 0; i < 32; ++i) o[i] = 0.0F;
  hold_registers(o);
  if (__any_sync(0xFFFFFFFFU, moved)) {
    sum_groups<true>(share, rank, shared, o, sums);
  } else {
    sum_groups<false>(share, rank, shared, o, sums);
  }
  cluster_arrive();  // all that comes is here
  float units[2] = {0.0F, 0.0F};
  if (share.groups > 0) {
    units[0] = unit_of(tops[0], quad_sum(sums[0]), sink[0]);
    units[1] = unit_of(tops[1], quad_sum(sums[1]), sink[1]);
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
    barrier_expect(shared + kArrivalsAt + thread * 8, groups * (kGroupBytes + kGroupSumBytes));
  }
  const int32_t window_groups = g.window_blocks * kBlockGroups;
  const int32_t own_window = max(0, min(window_groups - first, own));
  const int32_t own_units = own_window * 16 + (own - own_window) * 8;
  const int32_t other_window = window_groups - own_window;
  const int32_t value_units = other_window * 2 + (share.groups - own - other_window);
  constexpr int32_t kOwnPieces = kOwnMax * 16 / kWarps;
  constexpr int32_t kValuePieces = 3;
  static_assert(kValuePieces * kWarps >= kAttentionWindowMax / 8 + kAttentionSelectedMax / 16);
  Piece keys[kOwnPieces];
  Piece values[kValuePieces];
#pragma unroll
  for (int32_t i = 0; i < kOwnPieces; ++i) {
    const int32_t unit = warp + i * kWarps;
    if (unit < own_units) {
      OwnPiece(unit, own_window * 2).load(list + first * (kGroupKeys * 8), keys[i]);
    }
  }
#pragma unroll
  for (int32_t i = 0; i < kValuePieces; ++i) {
    const int32_t unit = warp + i * kWarps;
    if (unit < value_units) {
      ValuePiece(unit, other_window).load(list, first, own, rank, values[i]);
    }
  }
#pragma unroll
  for (int32_t i = 0; i < kOwnPieces; ++i) {
    const int32_t unit = warp + i * kWarps;
    if (unit < own_units) OwnPiece(unit, own_window * 2).decode(shared, rank, keys[i]);
  }
  copy_wait();
  fence_async_proxy();
  const auto decode_values = [&] {
#pragma unroll
    for (int32_t i = 0; i < kValuePieces; ++i) {
      const int32_t unit = warp + i * kWarps;
      if (unit < value_units) ValuePiece(unit, other_window).decode(shared, values[i]);
    }
    fence_async_proxy();
    cluster_wait();  // all CTAs have begun
  };
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
    decode_values();
    wgmma_wait<0>();
    hold_registers(s);
    tell_largest(g, share, rank, shared, s);
    cluster_arrive();
    cluster_wait();  // all largest scores are known, and no CTA needs its q and keys again
    spread_probabilities(share, rank, shared, s);
    cluster_arrive();
  } else {
    named_arrive(1, kThreads);
    decode_values();
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

void attention_cluster(const AttentionCall& call, Stream stream) {
  launch_kernel(attention_cluster_kernel,
                {call.row_count * kCluster, kThreads, kClusterBytes, kCluster}, stream, call);
}

}  // namespace galley::kernels::cuda
