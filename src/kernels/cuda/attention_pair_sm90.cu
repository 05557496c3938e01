// Sparse attention of some rows: two CTAs, a cluster, share each row, one half of the channels
// each. Same bits as attention_sm90.cu.
//
// Floor: the tensor cores of two SMs take 1,024 cycles for a block of 64 keys, so a row of 640 keys
// 6 us; its bytes less than 1.
//
// Design: a CTA decodes, multiplies with q and adds up its own 256 channels of all keys: half of
// everything, and nothing twice. A score's sum over channels begins in the first CTA and ends in
// the second, in the order of one CTA: 64 x 64 sums of a block are stored from registers into the
// other's shared memory. The second takes the softmax and sends the block's probabilities back as
// one bulk copy, with what earlier sums are multiplied with (9 kB). Two warpgroups take turns at
// the blocks' scores and hand stabilisers and sums to each other, thread by thread; one adds up the
// values, and before there are any looks up where the selected keys lie; two decode.
//
// Products take half of q and all probabilities from registers. The window is decoded before
// anything waits for the selection's list, whose first keys follow into places of the window's as
// these get free. All warps but those that decode store the result.
//
// Measured on one H200, in one run, before in brackets: 18.0 us for 16 rows (18.7), 18.7 for 33
// (19.2), 20.1 for 64 (20.2); behind a launch that makes q, 17.5 and 19.6 (18.6 and 19.9). Two CTAs
// that both decode and score all keys took 26. By clocks inside a launch of 64 rows (36,700 cycles,
// in the form before): 5,900 from the wait until the window's keys are there, for which, with q,
// all CTAs ask at once (8.5 MB: a load then takes 3,000 cycles, of 16 rows 1,000), 5,800 to the
// first probabilities, 2,400 a block, 2,600 from the last probabilities to the end.
//
// What limits it: the second CTA's warpgroups of scores are never idle, with 4,750 cycles for each
// second block, of which are products 1,100, sums so far 480, the largest 570, exponentials 1,100,
// the message 700, sums 530. The units are not busy (tensor cores 29 %, issue 32 %), nor is waiting
// at barriers what keeps memory busy (hints to sleep longer changed no count). But shared memory's
// banks are: 18,400 cycles of reads and writes a CTA, nearly all in the 24,000 of the main part
// (wgmma's operands 7,900, loads 4,200, stores and copies 6,300, by ncu). That is taken to be why
// every load, shuffle and arrival lasts some hundred cycles, and what runs beside a product makes
// that longer. With half of q in registers banks are read
// 1,500 cycles less and 16 rows take 0.5 us less; all of q (64 registers) does not fit beside 176
// for the values, five eighths of it gain nothing more and six eighths spill. Less traffic is the
// way on: keys that are decoded without a stop in shared memory (160 cycles a block), the other
// half of q (128).
//
// Tried, same bits each: three warpgroups of scores (80 registers; values by products of 64
// channels with probabilities from registers): 0.2 us less at 16 rows, 1 more at 64, since each of
// their steps takes as much longer; sums of probabilities while the next scores are multiplied: the
// product then takes 2,000 cycles instead of 1,100 and 530; window and q asked for into the L2
// before the wait: 0.3 less where nothing of it was there, 0.2 more behind a launch that makes q;
// every thread loading the row's descriptor: 1.3 more at 64; a fifth place of keys in the first CTA
// (one more in the second): 0.4 less, but no registers for the rest; one warpgroup for the
// scores: 24.9; results by the copy engine: none. Scores whose halves of the channels are summed
// apart would need one way over instead of two, but the kernel of many rows has no registers for a
// second sum.
#include <cuda_runtime.h>

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

constexpr int32_t kCtas = 2;  // a row
constexpr int32_t kPart = kWidth / kCtas;
constexpr int32_t kTiles = kPart / 64;

// Shared memory.
// Places of keys: the first CTA waits longer for the probabilities, and has room for one more where
// the second has scores.
constexpr int32_t kPlacesMax = 4;
__device__ __forceinline__ int32_t places_of(int32_t rank) { return kPlacesMax - rank; }
constexpr uint32_t kPlaceBytes = kTiles * kTileBytes;
constexpr uint32_t kPlacesAt = kTiles * kTileBytes;          // behind q
constexpr uint32_t kScoresAt = kPlacesAt + 3 * kPlaceBytes;  // what the second CTA begins with
constexpr uint32_t kScoresBytes = kHeads * kBlock * 4;
static_assert(2 * kScoresBytes == kPlaceBytes);
constexpr uint32_t kMessageAt = kScoresAt + 2 * kScoresBytes;
// What goes to the first CTA: a block's probabilities, what earlier sums are multiplied with, and
// after the last block the stabilisers and sums.
constexpr uint32_t kRescalesAt = kTileBytes;
constexpr uint32_t kTopsAt = kRescalesAt + kHeads * 4;
constexpr uint32_t kSumsAt = kTopsAt + kHeads * 4;
constexpr uint32_t kMessageBytes = kSumsAt + kHeads * 4;
constexpr uint32_t kMessageStep = kTileBytes + 1024;
constexpr uint32_t kWarpsAt = kMessageAt + 2 * kMessageStep;
constexpr int32_t kUnits = 4;  // of two granules, on their way
constexpr uint32_t kUnitScalesAt = kUnits * 2 * kGranuleBytes;
constexpr uint32_t kUnitScalesBytes = kWarpKeys * 16;
constexpr uint32_t kUnitListAt = kUnitScalesAt + kUnits * kUnitScalesBytes;
constexpr uint32_t kWarpPartBytes = kUnitListAt + kWarpSelected * 8;
// From the warpgroup of one block's scores to that of the next: stabilisers, and sums.
constexpr uint32_t kHandedTopsAt = kWarpsAt + kProducers / 32 * kWarpPartBytes;
constexpr uint32_t kHandedSumsAt = kHandedTopsAt + 2 * kGroup * 8;
constexpr uint32_t kBarsAt = kHandedSumsAt + 2 * kGroup * 8;
constexpr uint32_t kPairBytes = kBarsAt + 176 + 1024;
static_assert(kPairBytes + sizeof(AttentionRow) + 16 <= 227 * 1024);

struct Shared {
  uint32_t base;

  __device__ __forceinline__ uint32_t full(int32_t i) const { return base + kBarsAt + i * 8; }
  __device__ __forceinline__ uint32_t empty(int32_t i) const {
    return base + kBarsAt + (kPlacesMax + i) * 8;
  }
  // A message is there; its place is free in both CTAs (the second's).
  __device__ __forceinline__ uint32_t message_full(int32_t i) const {
    return base + kBarsAt + (2 * kPlacesMax + i) * 8;
  }
  __device__ __forceinline__ uint32_t message_empty(int32_t i) const {
    return base + kBarsAt + (2 * kPlacesMax + 2 + i) * 8;
  }
  // Scores of the first half of the channels are there (the second's); may come (the first's).
  __device__ __forceinline__ uint32_t scores_full(int32_t i) const {
    return base + kBarsAt + (2 * kPlacesMax + 4 + i) * 8;
  }
  __device__ __forceinline__ uint32_t scores_empty(int32_t i) const {
    return base + kBarsAt + (2 * kPlacesMax + 6 + i) * 8;
  }
  // Where the row's selection lies is known.
  __device__ __forceinline__ uint32_t list_full() const {
    return base + kBarsAt + (2 * kPlacesMax + 12) * 8;
  }
  // How long the selection is.
  __device__ __forceinline__ uint32_t count_full() const {
    return base + kBarsAt + (2 * kPlacesMax + 13) * 8;
  }
  // What the warpgroup i needs from the other is there.
  __device__ __forceinline__ uint32_t tops_full(int32_t i) const {
    return base + kBarsAt + (2 * kPlacesMax + 8 + i) * 8;
  }
  __device__ __forceinline__ uint32_t sums_full(int32_t i) const {
    return base + kBarsAt + (2 * kPlacesMax + 10 + i) * 8;
  }
};
static_assert((2 * kPlacesMax + 14) * 8 <= 176);

// A place in a ring and the parity of its round.
struct Turnstile {
  int32_t count;
  int32_t at = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ explicit Turnstile(int32_t places) : count(places) {}
  __device__ __forceinline__ void advance() {
    if (++at == count) {
      at = 0;
      parity ^= 1;
    }
  }
};

// Brings this CTA's channels of the row's keys: the window's while the selection is looked up.
struct Producer {
  const AttentionRow* row;
  int32_t rank;
  Shared shared;
  uint32_t lane, key, share;
  uint32_t copied, read;  // of place 0, this thread's
  uint32_t scales_copied, scales_read;
  uint32_t list;
  uint32_t place;  // of keys, of place 0
  Turnstile to;

  __device__ __forceinline__ Producer(const AttentionRow* row_in, int32_t rank_in,
                                      const Shared& shared_in)
      : row(row_in), rank(rank_in), shared(shared_in), to(places_of(rank_in)) {
    lane = threadIdx.x & 31;
    key = lane & 7;
    share = lane >> 3;
    const uint32_t staging = shared.base + kWarpsAt + (threadIdx.x >> 5) * kWarpPartBytes;
    copied = staging + (lane >> 2) * 64 + ((lane ^ (lane >> 3)) & 3) * 16;
    read = staging + key * 64 + ((share ^ (key >> 1)) & 3) * 16;
    scales_copied = staging + kUnitScalesAt + (lane >> 2) * 16;
    scales_read = staging + kUnitScalesAt + key * 16;
    list = staging + kUnitListAt;
    place = shared.base + kPlacesAt + ((threadIdx.x >> 5) * kWarpKeys + key) * 128;
  }

  __device__ __forceinline__ void copy(int32_t unit, const uint8_t* codes,
                                       const uint8_t* scales) const {
    copy_16(copied + unit * (2 * kGranuleBytes), codes + (lane & 3) * 16);
    copy_16(copied + unit * (2 * kGranuleBytes) + kGranuleBytes, codes + (lane & 3) * 16 + 64);
    if ((lane & 3) == 0) copy_16(scales_copied + unit * kUnitScalesBytes, scales);
  }
  __device__ __forceinline__ void copy_global(int32_t unit, int32_t block) const {
    const uint8_t* record = load_shared_pointer(list + (block * kWarpKeys + lane / 4) * 8);
    copy(unit, record + rank * 128, record + kWidth / 2 + rank * 16);
  }
  __device__ __forceinline__ void load(int32_t unit, uint4 (&codes)[2]) const {
    codes[0] = load_shared_16(read + unit * (2 * kGranuleBytes));
    codes[1] = load_shared_16(read + unit * (2 * kGranuleBytes) + kGranuleBytes);
  }
  __device__ __forceinline__ void wait_place() const {
    barrier_wait(shared.empty(to.at), to.parity ^ 1);
  }
  __device__ __forceinline__ void tell() {
    __syncwarp();
    if (lane == 0) barrier_arrive(shared.full(to.at));
    to.advance();
  }
};

// Where the row's selected keys lie, to the lists of the warps that bring them: by a warpgroup that
// has nothing else to do yet, while they bring the window.
__device__ __forceinline__ void look_up(const AttentionRow* row, int32_t count,
                                        const Shared& shared) {
  constexpr int32_t kEach = kAttentionSelectedMax / kGroup;
  const int32_t thread = threadIdx.x & (kGroup - 1);
  if (count > 0) {
    const PagedRecords global = row->global;
    const auto per_page = static_cast<uint32_t>(global.records_per_page);
    int32_t entry[kEach];
    int32_t page[kEach];
#pragma unroll
    for (int32_t i = 0; i < kEach; ++i) {
      entry[i] = load_written(row->selected + min(i * kGroup + thread, count - 1));
    }
#pragma unroll
    for (int32_t i = 0; i < kEach; ++i) {
      page[i] = load_written(global.page_table + static_cast<uint32_t>(entry[i]) / per_page);
    }
    const int32_t warp = thread % kBlock / kWarpKeys;
    const uint32_t list = shared.base + kWarpsAt + warp * kWarpPartBytes + kUnitListAt +
                          (thread / kBlock * kWarpKeys + thread % kWarpKeys) * 8;
#pragma unroll
    for (int32_t i = 0; i < kEach; ++i) {
      store_shared(list + i * (kGroup / kBlock * kWarpKeys * 8),
                   global_record_of(row, entry[i], page[i]));
    }
  }
  __syncwarp();
  if ((thread & 31) == 0) barrier_arrive(shared.list_full());
}

__device__ __forceinline__ void produce(const AttentionRow* row, const int32_t* selected,
                                        int32_t rank, const Shared& shared) {
  Producer p(row, rank, shared);
  const int32_t window = static_cast<int32_t>(p.row->position - p.row->window_begin) + 1;
  const int32_t window_blocks = (window + kBlock - 1) / kBlock;
  static_assert(kAttentionWindowMax / kBlock * 2 == kUnits);
#pragma unroll
  for (int32_t block = 0; block < kAttentionWindowMax / kBlock; ++block) {
    const int32_t at = block * kBlock + static_cast<int32_t>(threadIdx.x / 32) * kWarpKeys +
                       static_cast<int32_t>(p.lane / 4);
    const uint8_t* record = window_record_of(p.row, min(at, window - 1));
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
      if (block < window_blocks) {
        p.copy(block * 2 + half, record + rank * 256 + half * 128, record + kWidth);
      }
      copy_commit();
    }
  }
  // The selection's first blocks follow into the places of the window's as these get free, if by
  // then it is known where they lie; else behind the window.
  int32_t blocks = -1;  // of the selection
  int32_t asked = 0;
  int32_t asked_late = 0;  // behind how many steps the first was
  const auto copy_next = [&] {
    if (asked < blocks) p.copy_global(asked, asked);
    ++asked;
  };
#pragma unroll 1
  for (int32_t i = 0; i < window_blocks * 2; ++i) {
    copy_wait_but<kUnits - 1>();
    __syncwarp();
    uint4 codes[2];
    uint32_t scales[2];
    p.load(i, codes);
    const int32_t second = i & 1;
    const uint32_t at =
        p.scales_read + i * kUnitScalesBytes + rank * 8 + second * 4 + (p.share >> 1);
    scales[0] = load_shared_byte(at);
    scales[1] = load_shared_byte(at + 2);
    __syncwarp();
    if (blocks < 0 && __all_sync(0xFFFFFFFFU, barrier_passed(shared.list_full(), 0))) {
      blocks = (*selected + kBlock - 1) / kBlock;
      asked_late = i;
    }
    while (blocks >= 0 && asked <= i) copy_next();
    copy_commit();
    if (second == 0) p.wait_place();
    const uint32_t to = p.place + p.to.at * kPlaceBytes;
#pragma unroll
    for (int32_t k = 0; k < 2; ++k) {
      store_window(codes[k], scales[k], to + (second * 2 + k) * kTileBytes, p.share * 2, p.key);
    }
    if (second == 1) p.tell();
  }
  if (blocks < 0) {
    barrier_wait(shared.list_full(), 0);
    blocks = (*selected + kBlock - 1) / kBlock;
    asked_late = 0;
  }
  if (blocks == 0) return;
  while (asked < kUnits) {
    copy_next();
    copy_commit();
  }
  // What was asked for together is waited for together.
  if (asked_late == 1) copy_wait_but<kUnits - 2>();
  if (asked_late == 2) copy_wait_but<kUnits - 3>();
  if (asked_late == 3) copy_wait_but<kUnits - 4>();
  // Into a place of the warp's ring, when it is free.
  const auto copy_ahead = [&](int32_t unit, int32_t block) {
    if (block < blocks) p.copy_global(unit, block);
    copy_commit();
  };
#pragma unroll 1
  for (int32_t block = 0; block < blocks; ++block) {
    const int32_t unit = block % kUnits;
    copy_wait_but<kUnits - 1>();
    __syncwarp();
    uint4 codes[2];
    uint32_t scales[2];
    p.load(unit, codes);
    const uint32_t scales_at = p.scales_read + unit * kUnitScalesBytes + p.share * 2;
    scales[0] = load_shared_two_bytes(scales_at);
    scales[1] = load_shared_two_bytes(scales_at + 8);
    __syncwarp();
    copy_ahead(unit, block + kUnits);
    p.wait_place();
    const uint32_t to = p.place + p.to.at * kPlaceBytes + (p.share >> 1) * kTileBytes;
#pragma unroll
    for (int32_t k = 0; k < 2; ++k) {
      store_global(codes[k], scales[k], to + k * 2 * kTileBytes, (p.share & 1) * 4, p.key);
    }
    p.tell();
  }
}

// This CTA's half of q to shared memory, by both warpgroups of the scores; its rotary channels
// turn.
__device__ __forceinline__ void bring_query(const AttentionCall& call, int32_t row, int32_t rank,
                                            int32_t group, uint32_t shared) {
  const int32_t thread = threadIdx.x & (kGroup - 1);
  const int32_t chunk = thread & 7;
  const Bf16* q = call.q + row * call.q_stride + rank * kPart + chunk * 8;
  const auto place = [&](int32_t tile, int32_t i) {
    const int32_t head = i * 16 + (thread >> 3);
    return shared + kQAt + tile * kTileBytes + head * 128 + ((chunk ^ head) & 7) * 16;
  };
  constexpr int32_t kEach = kTiles / 2;
#pragma unroll
  for (int32_t i = 0; i < 4 * kEach; ++i) {
    const int32_t tile = group * kEach + i / 4;
    const int32_t head = i % 4 * 16 + (thread >> 3);
    copy_16(place(tile, i % 4), q + head * kWidth + tile * 64);
  }
  Turn turn = {};
  if (call.turns != 0 && rank == kCtas - 1 && group == 1) {
    turn = turn_of(kWidth - 64 + chunk * 8, call.rotary, call.cos + row * call.angle_stride,
                   call.sin + row * call.angle_stride);
  }
  copy_wait();
  if (turn.turns) {
#pragma unroll 1
    for (int32_t i = 0; i < 4; ++i) {
      const uint32_t at = place(kTiles - 1, i);
      store_shared(at, turn.forward(load_shared_16(at)));
    }
  }
  fence_async_proxy();
  named_sync(1, 2 * kGroup);
}

// An operand of 16 columns of a swizzled tile, of this warp's sixteen heads, to registers.
__device__ __forceinline__ void load_operand(uint32_t tile, uint32_t step, uint32_t (&x)[4]) {
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t head = (threadIdx.x & (kGroup - 1)) / 32 * 16 + (lane & 15);
  load_matrices(tile + head * 128 + ((((lane >> 4) ^ lane) & 7) * 16 ^ step * 32), x);
}

// The first half of this CTA's q, which products take from registers: shared memory is what they
// wait for.
struct HeldQuery {
  static constexpr int32_t kSteps = kPart / 16 / 2;
  uint32_t x[kSteps][4];

  __device__ __forceinline__ explicit HeldQuery(uint32_t shared) {
#pragma unroll
    for (int32_t k = 0; k < kSteps; ++k) {
      load_operand(shared + kQAt + k / 4 * kTileBytes, k % 4, x[k]);
    }
  }
};

__device__ __forceinline__ void multiply(float (&s)[32], const HeldQuery& q, uint32_t shared,
                                         int32_t place, bool add) {
  const uint64_t q_operand = swizzled_descriptor(shared + kQAt);
  const uint64_t k_operand = swizzled_descriptor(shared + kPlacesAt + place * kPlaceBytes);
  hold_registers(s);
  wgmma_fence();
#pragma unroll
  for (int32_t k = 0; k < kPart / 16; ++k) {
    const uint32_t at = ((k / 4) * kTileBytes + (k % 4) * 32) >> 4;
    if (k < HeldQuery::kSteps) {
      product_64x64x16(s, q.x[k % HeldQuery::kSteps], k_operand + at, add || k != 0);
    } else {
      product_64x64x16(s, q_operand + at, k_operand + at, true);
    }
  }
  wgmma_commit();
  wgmma_wait<0>();
  hold_registers(s);
}

// The first CTA: scores so far, to the second. Two warpgroups take turns.
__device__ __forceinline__ void begin_scores(int32_t blocks, int32_t group, const Shared& shared) {
  const uint32_t thread = threadIdx.x & (kGroup - 1);
  Turnstile from(places_of(0));
  if (group == 1) from.advance();
  uint32_t parity = 1;
  const HeldQuery q(shared.base);
  const uint32_t there =
      remote_address(shared.base + kScoresAt + group * kScoresBytes + thread * 16, 1);
  const uint32_t barrier = remote_address(shared.scores_full(group), 1);
#pragma unroll 1
  for (int32_t block = group; block < blocks; block += 2) {
    barrier_wait(shared.full(from.at), from.parity);
    fence_async_proxy();
    float s[32];
    multiply(s, q, shared.base, from.at, false);
    barrier_wait(shared.scores_empty(group), parity);
#pragma unroll
    for (int32_t i = 0; i < 8; ++i) {
      store_remote(there + i * (kGroup * 16), s[4 * i], s[4 * i + 1], s[4 * i + 2], s[4 * i + 3],
                   barrier);
    }
    from.advance();
    from.advance();
    parity ^= 1;
  }
}

// The second: the other channels, probabilities and what belongs to them, to both. Two warpgroups
// take turns and hand stabilisers and sums to each other, thread by thread.
__device__ __forceinline__ void end_scores(const Geometry& g, int32_t group, const Shared& shared) {
  const int32_t thread = threadIdx.x & (kGroup - 1);
  const int32_t head = (thread >> 5) * 16 + ((thread & 31) >> 2);
  const float scale = kScoreScale;
  Turnstile from(places_of(1));
  if (group == 1) from.advance();
  uint32_t parity = 0;
  uint32_t handed = 0;
  const uint32_t scores = shared.base + kScoresAt + group * kScoresBytes + thread * 16;
  const uint32_t message = shared.base + kMessageAt + group * kMessageStep;
  const uint32_t statistics = message + head * 4;
  const uint32_t mine = (group * kGroup + thread) * 8;
  const uint32_t other = ((group ^ 1) * kGroup + thread) * 8;
  const HeldQuery q(shared.base);
  Softmax upper, lower;
#pragma unroll 1
  for (int32_t block = group; block < g.blocks; block += 2) {
    float s[32];
    barrier_wait(shared.scores_full(group), parity);
    if (thread == 0) barrier_expect(shared.scores_full(group), kScoresBytes);  // the next
#pragma unroll
    for (int32_t i = 0; i < 8; ++i) {
      const uint4 x = load_shared_16(scores + i * (kGroup * 16));
      s[4 * i] = __uint_as_float(x.x);
      s[4 * i + 1] = __uint_as_float(x.y);
      s[4 * i + 2] = __uint_as_float(x.z);
      s[4 * i + 3] = __uint_as_float(x.w);
    }
    hold_registers(s);
    __syncwarp();
    // What no one waits for would come when the other CTA may have left.
    if ((thread & 31) == 0 && block + 2 < g.blocks) {
      barrier_arrive_remote(shared.scores_empty(group), 0);
    }
    barrier_wait(shared.full(from.at), from.parity);
    fence_async_proxy();
    multiply(s, q, shared.base, from.at, true);
    const bool first = block == 0;
    const bool last = block + 1 == g.blocks;
    const int32_t keys = g.keys_in(block);
    if (keys < kBlock) mask_scores(s, keys);
    const float best_upper = Softmax::own_best<0>(s, scale);
    const float best_lower = Softmax::own_best<2>(s, scale);
    if (!first) {
      barrier_wait(shared.tops_full(group), handed);
      const float2 tops = load_shared_pair(shared.base + kHandedTopsAt + mine);
      upper.stabiliser.top = tops.x;
      lower.stabiliser.top = tops.y;
    }
    const Rescales rescales =
        move_stabilisers(upper.stabiliser, lower.stabiliser, best_upper, best_lower, first);
    store_shared(
        shared.base + kHandedTopsAt + other,
        make_uint2(__float_as_uint(upper.stabiliser.top), __float_as_uint(lower.stabiliser.top)));
    __syncwarp();
    if ((thread & 31) == 0) barrier_arrive(shared.tops_full(group ^ 1));
    upper.exponentiate_all<0>(s, scale);
    lower.exponentiate_all<2>(s, scale);
    barrier_wait(shared.message_empty(group), parity ^ 1);
    store_probabilities(message, s);
    if ((thread & 3) == 0) {
      store_shared(statistics + kRescalesAt, rescales.upper);
      store_shared(statistics + kRescalesAt + 32, rescales.lower);
    }
    const auto send = [&] {
      fence_async_proxy();
      named_sync(2 + group, kGroup);
      if (thread == 0) {
        bulk_copy_remote(message, kMessageBytes, shared.message_full(group), 0);
        barrier_arrive(shared.message_full(group));
      }
    };
    if (!last) send();
    if (!first) {
      barrier_wait(shared.sums_full(group), handed);
      const float2 sums = load_shared_pair(shared.base + kHandedSumsAt + mine);
      upper.sum = sums.x;
      lower.sum = sums.y;
      handed ^= 1;
    }
    upper.add(rescales.upper, first);
    lower.add(rescales.lower, first);
    if (last) {
      const float sum_upper = quad_sum(upper.sum);
      const float sum_lower = quad_sum(lower.sum);
      if ((thread & 3) == 0) {
        store_shared(statistics + kTopsAt, upper.stabiliser.top);
        store_shared(statistics + kTopsAt + 32, lower.stabiliser.top);
        store_shared(statistics + kSumsAt, sum_upper);
        store_shared(statistics + kSumsAt + 32, sum_lower);
      }
      send();
    } else {
      store_shared(shared.base + kHandedSumsAt + other,
                   make_uint2(__float_as_uint(upper.sum), __float_as_uint(lower.sum)));
      __syncwarp();
      if ((thread & 31) == 0) barrier_arrive(shared.sums_full(group ^ 1));
    }
    from.advance();
    from.advance();
    parity ^= 1;
  }
}

// The result from where the warpgroup of the values leaves it, whole rows of channels a warp, by
// all warps but those that decode.
__device__ __forceinline__ void store_result(const AttentionCall& call, int32_t row, int32_t rank,
                                             const Shared& shared) {
  constexpr int32_t kWarps = 3 * kGroup / 32;
  constexpr int32_t kEach = (kHeads + kWarps - 1) / kWarps;
  const int32_t lane = threadIdx.x & 31;
  const int32_t warp = static_cast<int32_t>(threadIdx.x - kProducers) / 32;
  const Turn turn = turn_of(rank * kPart + lane * 8, call.rotary,
                            call.cos + row * call.angle_stride, call.sin + row * call.angle_stride);
  Bf16* to = call.o + row * call.o_stride + rank * kPart + lane * 8;
  named_sync(4, kWarps * 32);
#pragma unroll
  for (int32_t i = 0; i < kEach; ++i) {
    const int32_t head = warp + i * kWarps;
    if (head >= kHeads) break;
    uint4 x = load_shared_16(shared.base + kQAt + head * (kPart * 2) + ((lane ^ (head & 7)) * 16));
    if (turn.turns) x = turn.back(x);
    *reinterpret_cast<uint4*>(to + head * kWidth) = x;
  }
}

__device__ __forceinline__ void sum_values(const AttentionCall& call, int32_t row, int32_t rank,
                                           int32_t blocks, const Shared& shared) {
  const int32_t thread = threadIdx.x & (kGroup - 1);
  const int32_t lane = thread & 31;
  const int32_t head = (thread >> 5) * 16 + (lane >> 2);
  Turnstile from(places_of(rank));
  Turnstile with(2);
  const float sinks[2] = {load_constant(call.sink + head), load_constant(call.sink + head + 8)};
  float o[2][64];
  float units[2] = {0.0F, 0.0F};
#pragma unroll
  for (int32_t i = 0; i < 128; ++i) o[i / 64][i % 64] = 0.0F;
#pragma unroll 1
  for (int32_t block = 0; block < blocks; ++block) {
    barrier_wait(shared.message_full(with.at), with.parity);
    // The first CTA's messages come from the other: the next but one may.
    if (rank == 0 && thread == 0) barrier_expect(shared.message_full(with.at), kMessageBytes);
    const uint32_t message = shared.base + kMessageAt + with.at * kMessageStep;
    const uint32_t statistics = message + head * 4;
    if (block != 0) {
      const float rescale_upper = load_shared_float(statistics + kRescalesAt);
      const float rescale_lower = load_shared_float(statistics + kRescalesAt + 32);
      if (__any_sync(0xFFFFFFFFU, rescale_upper != 1.0F || rescale_lower != 1.0F)) {
#pragma unroll
        for (int32_t i = 0; i < 128; i += 4) {
          float* x = o[i / 64] + i % 64;
          x[0] *= rescale_upper;
          x[1] *= rescale_upper;
          x[2] *= rescale_lower;
          x[3] *= rescale_lower;
        }
      }
    }
    uint32_t p[kBlock / 16][4];
#pragma unroll
    for (int32_t k = 0; k < kBlock / 16; ++k) load_operand(message, k, p[k]);
    const uint64_t v_operand =
        tiles_descriptor(shared.base + kPlacesAt + from.at * kPlaceBytes, kTileBytes);
    barrier_wait(shared.full(from.at), from.parity);  // long since
    fence_async_proxy();
    hold_registers(o[0]);
    hold_registers(o[1]);
    wgmma_fence();
#pragma unroll
    for (int32_t k = 0; k < kBlock / 16; ++k) {
#pragma unroll
      for (int32_t n = 0; n < 2; ++n) {
        product_64x128x16_keys(o[n], p[k], v_operand + (k * 2048 + n * 2 * kTileBytes) / 16,
                               k != 0 || block != 0);
      }
    }
    wgmma_commit();
    if (block + 1 == blocks) {
      units[0] = unit_of(load_shared_float(statistics + kSumsAt),
                         sink_of(load_shared_float(statistics + kTopsAt), sinks[0]));
      units[1] = unit_of(load_shared_float(statistics + kSumsAt + 32),
                         sink_of(load_shared_float(statistics + kTopsAt + 32), sinks[1]));
    }
    wgmma_wait<0>();
    hold_registers(o[0]);
    hold_registers(o[1]);
    __syncwarp();
    if (lane == 0) {
      barrier_arrive(shared.empty(from.at));
      if (block + 2 < blocks) barrier_arrive_remote(shared.message_empty(with.at), 1);
    }
    from.advance();
    with.advance();
  }
  cluster_arrive_relaxed();  // nothing more goes to the other
  // By way of shared memory, where q was: heads of this warp, 512 bytes each.
  const int32_t warp = thread >> 5;
  const uint32_t result = shared.base + kQAt + warp * (16 * kPart * 2);
  const uint32_t matrix_row = result + (lane & 15) * (kPart * 2);
#pragma unroll
  for (int32_t i = 0; i < 16; ++i) {  // 16 channels each
    const float* x = o[i / 8] + i % 8 * 8;
    store_matrices(
        matrix_row + (((i * 2 + (lane >> 4)) ^ (lane & 7)) * 16),
        pack_bf16(x[0] * units[0], x[1] * units[0]), pack_bf16(x[2] * units[1], x[3] * units[1]),
        pack_bf16(x[4] * units[0], x[5] * units[0]), pack_bf16(x[6] * units[1], x[7] * units[1]));
  }
  store_result(call, row, rank, shared);
}

constexpr int32_t kThreads = kProducers + 3 * kGroup;

__global__ void __launch_bounds__(kThreads, 1) attention_pair_kernel(const AttentionCall call) {
  extern __shared__ uint8_t shared_bytes[];
  const Shared shared{(shared_address(shared_bytes) + 1023U) & ~1023U};
  const auto rank = static_cast<int32_t>(cluster_rank());
  const int32_t row = blockIdx.x / kCtas;
  __shared__ __align__(16) AttentionRow descriptor;
  __shared__ int32_t selected;
  if (threadIdx.x / 32 == kProducers / 32) fetch_row(call.rows + row, &descriptor);
  if (threadIdx.x == 0) {
    for (int32_t i = 0; i < kPlacesMax; ++i) {
      barrier_init(shared.full(i), kProducers / 32);
      barrier_init(shared.empty(i), 4);
    }
    for (int32_t i = 0; i < 2; ++i) {
      barrier_init(shared.message_full(i), 1);
      barrier_init(shared.message_empty(i), 2 * 4);
      barrier_init(shared.scores_full(i), 1);
      barrier_init(shared.scores_empty(i), 4);
      barrier_init(shared.tops_full(i), 4);
      barrier_init(shared.sums_full(i), 4);
    }
    barrier_init(shared.list_full(), kGroup / 32);
    barrier_init(shared.count_full(), 1);
    barrier_init_fence();
    for (int32_t i = 0; i < 2; ++i) {
      if (rank == 0) {
        barrier_expect(shared.message_full(i), kMessageBytes);
      } else {
        barrier_expect(shared.scores_full(i), kScoresBytes);
      }
    }
  }
  __syncthreads();
  cluster_arrive_relaxed();
  const int32_t role = static_cast<int32_t>(threadIdx.x / kGroup) - kProducers / kGroup;
  const int32_t window = static_cast<int32_t>(descriptor.position - descriptor.window_begin) + 1;
  const bool early = call.keys_early != 0;
  // Of the 96 that each thread starts with: 2 x 48, 2 x 104 and 176 are five times 96.
  if (role < 0) {
    registers_give<48>();
    if (!early) await_earlier();
    produce(&descriptor, &selected, rank, shared);
    if (early) await_earlier();  // no thread ends before
    __syncwarp();
    cluster_wait();
    cluster_arrive_relaxed();
  } else if (role < 2) {
    registers_take<104>();
    await_earlier();
    bring_query(call, row, rank, role, shared.base);
    barrier_wait(shared.count_full(), 0);
    Geometry g;
    g.set(window, selected);
    cluster_wait();
    if (rank == 0) {
      begin_scores(g.blocks, role, shared);
    } else {
      end_scores(g, role, shared);
    }
    __syncwarp();
    cluster_arrive_relaxed();
    store_result(call, row, rank, shared);
  } else {
    registers_take<176>();
    if (!early) await_earlier();
    const int32_t count = written_selection_of(descriptor);
    if ((threadIdx.x & (kGroup - 1)) == 0) {
      selected = count;
      barrier_arrive(shared.count_full());
    }
    look_up(&descriptor, count, shared);
    if (early) await_earlier();
    Geometry g;
    g.set(window, count);
    cluster_wait();
    sum_values(call, row, rank, g.blocks, shared);
  }
  __syncwarp();
  cluster_wait();  // no CTA leaves while the other may still send
}

}  // namespace

void attention_pair(const AttentionCall& call, Stream stream) {
  launch_kernel(attention_pair_kernel, {call.row_count * kCtas, kThreads, kPairBytes, kCtas},
                stream, call);
}

}  // namespace galley::kernels::cuda
