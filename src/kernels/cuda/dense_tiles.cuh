// fp8 products of many rows with one matrix.
//
// Floor: 2 rows N K over the tensor cores, 4,096 products a cycle and multiprocessor: 1,560 TFLOP/s
// at the 1,440 MHz that are left when all of them multiply and the card draws its 650 W.
//
// Design. Rows are A of wgmma and weights B, both from shared memory: a thread then has two rows
// and slots of few scales, so that a chunk's sums need few factors. Two warpgroups of 64 rows by a
// tile's slots, or of half of the slots each where a tile has 64 rows; a form is how tiles are cut
// (TileCut), and dense_product.cu takes the one that fills the multiprocessors best: 128 rows by
// 256 slots or 160, down to 64 by 64. The product of a chunk, 128 of K, is promoted while the other
// warpgroup's is computed; small tiles have those of two to five chunks under way, the widest
// halves of one. Neighbouring blocks of rows can share the slots of a cluster, each copying its
// part for both; one form still does. Outputs go through shared memory in boxes, which the copy
// engine writes while the next tile is multiplied; it also leaves out what is behind the last row
// or column. Matrices of one input are one launch.
//
// A chunk's copies are those of four warps. A thread takes 150 to 200 cycles for a copy (it waits,
// moves five operands to uniform registers and asks which lanes copy), so one that does all of a
// chunk's takes longer than a small tile's products: with one thread 64 rows by 64 slots took 260
// ns a chunk, with four 190, 128 by 80 515 and 315 (wo_b at 256 rows 38 and 24 us). Where 128 x 256
// is one copy of 16 KB, a thread was enough. A warp that keeps together and elects the lane (the
// operands stay in uniform registers) is 1 to 3 % faster than a lone lane.
//
// Up to 64 rows a tile of 48 slots has one warpgroup and a ring of 14 stages, since weights come
// from memory then: 64 rows of 5,120 x 8,192 13.8 us, with clusters of two or four that share the
// copies of rows 14.8 and 14.4, with 64 slots 15.5. 65 to 128 rows by 48 slots: 16.3 us, 18.2 with
// clusters.
//
// What limits it: a product of 64 rows x n slots x 32 takes n / 2 + 16 cycles in every form, as if
// its rows were read from shared memory before its slots, so that a chunk of 128 x 256 takes 1,180
// to 1,280 cycles where multiplying is 1,024, one of 128 x 128 660 for 512, of 64 x 64 280 for 128.
// Without any copies 5,120 x 8,192 takes 21.5 us at 256 rows (with them 23.5), with nothing but
// copies 17: a multiprocessor takes in 64 bytes a cycle, so that a chunk of 128 x 80 comes in 416
// cycles and one of 128 x 128 in 512, as long as it is multiplied; a cluster changes nothing of
// that. Sustained, the card's power limits: variants that differ by 5 % in short runs are equal
// after half a second.
//
// Products of a chunk begin when an earlier one has been promoted, in straight code of eight chunks
// (TileCut::run): 3 to 5 % less for 128 x 48 and 128 x 80, nothing for 64 x 48 and 128 x 128.
//
// Tried, on one H200, bits always the same (32,768 x 1,280 and 5,120 x 8,192, 16,384 rows,
// TFLOP/s in one run; the kernel before, weights as A and 128 by 192, had 786 and 863 there):
// - outputs from registers, 8 to 16 bytes a lane: 983 and 1,138; in boxes 1,099 and 1,180.
// - rows from registers (ldmatrix once a chunk), since shared memory is then read less: 979 and
//   974 with products of 128 slots, 1,000 and 1,017 with two of 64 under way; the next chunk's rows
//   loaded before the last promotion: 966 and 1,031. It seems that a warp whose product reads
//   registers waits for most of it.
// - the second warpgroup half a product, one or one and a half chunks behind the first, by a
//   barrier a tile: within 1 %, the last 4 % slower; products strictly in turns by two barriers
//   each: 4 % slower, 10 % with 128 slots.
// - panels of 2,048 or 4,096 rows: within 1 %. No clusters: within 1 % then; with a warp for each
//   kind of copies 2 to 7 % faster, sustained too.
// - outputs that leave L2 early: 2 to 4 % slower. Four stages instead of three (rows from
// registers): nothing.
// - tiles of a last round halved where it is less than half full, by a loop of their own or a
// branch
//   in the one: 10 to 20 % slower even where none is, for no reason seen in the machine code.
// - rows and slots copied by two threads, or asked into L2 four chunks ahead: nothing; six chunks
//   ahead with 128 slots 15 to 25 % slower.
// - without promotion (wrong sums), rows from registers: 1,159 and 1,331 instead of 866 and 949.
// - the end of a sum's part by a division in each chunk, which was in front of the stage's release:
//   1,280 x 5,120 took 254 us, 213 with a loop over parts, 2 % less by shifts.
// - rows from registers again, now that a product with rows in shared memory seemed to wait for
// them:
//   5,120 x 8,192 took 28 us instead of 25 at 256 rows, 38 instead of 35 at 512, 20.4 instead
//   of 20.0 at 128, 1,519 instead of 1,258 at 16,384; 1,280 x 5,120 11.6 instead of 10.9 at 256.
// - products under way from one turn of a loop to the next: the compiler serialises them (C7514).
//   Straight code of sixteen chunks: 1 % slower than of eight, or spills.
// - sums of parts left in shared memory, so that registers are free for a second product of 128 x
//   128: 24.3 us for 20.7 at 4,096 rows of 512 x 5,120, whose ring is then short.
// - up to 64 rows two blocks a multiprocessor with rings of seven stages: 5 to 10 % slower. Outputs
//   straight from registers: the same at 64 rows, 3 to 15 % slower above; not waited for: nothing.
// - blocks that share rows instead of slots: the same to 3 % slower. Clusters of four: 120 blocks
//   at a time. 128 x 192 in one product of 192: 680 ns a chunk where 128 x 160 takes 490.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <cstring>
#include <numeric>

#include "kernels/cuda/copy_row.cuh"
#include "kernels/cuda/grouped_product.cuh"
#include "kernels/cuda/ring_place.cuh"
#include "kernels/cuda/sm90_memory.cuh"
#include "kernels/cuda/tensor_map.cuh"

namespace galley::kernels::cuda {

// How a tile is cut: rows by slots, over how many blocks of a cluster that have the same slots
// (kAlong) or the same rows (kAcross), which copy for each other; a warpgroup's products of a chunk
// (kParts), or its products of several chunks that are under way together (kBatch), in straight
// code of so many chunks (kRun; kBatch if 0).
struct TileCut {
  int rows;
  int slots;
  int along = 1;
  int across = 1;
  int parts = 1;
  int batch = 1;
  int teams = 2;   // warpgroups that multiply
  int stages = 7;  // at most
  int run = 0;
  int blocks = 1;  // that share a multiprocessor
};

template <TileCut kCut, ResultForm kResultIn, bool kGroupedIn, bool kBoxesIn>
struct TileForm {
  static constexpr int kRows = kCut.rows;
  static constexpr int kSlots = kCut.slots;
  static constexpr int kAlong = kCut.along;
  static constexpr int kAcross = kCut.across;
  static constexpr int kCluster = kAlong * kAcross;
  static constexpr int kParts = kCut.parts;
  static constexpr int kBatch = kCut.batch;
  static constexpr int kRun = kCut.run > 0 ? kCut.run : kBatch;
  static constexpr ResultForm kResult = kResultIn;
  static constexpr bool kPaired = kResult == ResultForm::kSwiGlu;
  static constexpr bool kGrouped = kGroupedIn;  // the sum has args.groups parts
  // Outputs go through shared memory and the copy engine, or straight from registers.
  static constexpr bool kBoxes = kBoxesIn;

  static constexpr int kTeams = kCut.teams;
  static constexpr int kThreads = (kTeams + 1) * 128;   // the last warpgroup's threads copy
  static constexpr int kPanel = 2048 / kRows / kAlong;  // of rows, in clusters
  // A warpgroup has 64 rows by all slots, or by half of them.
  static constexpr bool kHalves = kRows == 64 && kTeams == 2;
  static constexpr int kOwn = kHalves ? kSlots / 2 : kSlots;
  static constexpr int kPart = kOwn / kParts;
  // Slots from one scale to the next that a thread loads: 32 have one, if none are cut apart.
  static constexpr int kScaledMost = kPaired ? 64 : 32;
  static constexpr int kScaled =
      kSlots % kScaledMost == 0 && kPart % kScaledMost == 0 ? kScaledMost : 16;
  static constexpr int kPairSlots = 2 * kStripSlots;
  static constexpr int kPairBytes = 2 * (kFp8Codes + kFp8Scales);
  static constexpr int kPairScales = 2 * kFp8Scales;
  static constexpr int kPairsMax =
      kSlots % kPairSlots == 0 ? kSlots / kPairSlots : kSlots / kPairSlots + 2;
  static constexpr int kShare = kSlots / kAlong;  // that a block copies
  static constexpr int kPieces = kPairSlots % kShare == 0 ? 1 : 2;
  static_assert(kShare <= kPairSlots + std::gcd(kShare, kPairSlots));
  // Whole pairs are a copy each, their scales included, and keep them behind their codes.
  static constexpr bool kWholePairs = kShare == kPairSlots && kPart == kPairSlots && !kHalves;
  static constexpr int kPartRoom = kWholePairs ? (kPairBytes + 1023) / 1024 * 1024 : kPart * kChunk;
  static constexpr int kCodesAt = kRows * kChunk;
  static constexpr int kScalesAt = kCodesAt + kParts * kPartRoom * (kHalves ? 2 : 1);  // of rows
  static constexpr int kSlotScalesAt =
      kWholePairs ? kCodesAt + 2 * kFp8Codes : kScalesAt + kRows * 4;
  static constexpr int kPartScales = kWholePairs ? kPartRoom : kPart / 2;  // from part to part
  static constexpr int kStageBytes =
      (kScalesAt + kRows * 4 + (kWholePairs ? 0 : kPairsMax * kPairScales) + 1023) / 1024 * 1024;
  // A box is 64 rows of 128 or 64 swizzled bytes, or of 160 or 96 (80 of gates and ups) as they
  // are, where eight rows lie in different banks too.
  static constexpr int kOwnColumns = kPaired ? kOwn / 2 : kOwn;
  static constexpr int kBoxColumns = kOwnColumns % 64 == 0   ? 64
                                     : kOwnColumns % 80 == 0 ? 80
                                     : kOwnColumns % 48 == 0 ? 48
                                     : kOwnColumns % 40 == 0 ? 40
                                     : kOwnColumns % 24 == 0 ? 24
                                                             : kOwnColumns;
  static constexpr bool kSwizzled = kBoxColumns == 64 || kBoxColumns == 32;
  static constexpr int kOwnBoxes = kOwnColumns / kBoxColumns;
  static constexpr int kBoxBytes = 64 * kBoxColumns * 2;
  static constexpr int kOutputBytes = kBoxes ? kTeams * kOwnBoxes * kBoxBytes : 0;
  static constexpr int kBlocks = kCut.blocks;
  static constexpr int kStagesMost = (227 / kBlocks * 1024 - 2048 - kOutputBytes) / kStageBytes;
  static constexpr int kStages = kStagesMost < kCut.stages ? kStagesMost : kCut.stages;
  static constexpr int kSharedBytes = kStages * kStageBytes + kOutputBytes + 2048;
  static_assert(kRows == 64 || (kRows == 128 && kTeams == 2));
  static_assert(kOwn % 16 == 0 && kPart % 16 == 0 && kSlots / kAlong % 8 == 0);
  static_assert(kParts == 1 || kBatch == 1);
  static_assert(kStages > kBatch);
  static_assert(!kBoxes || kResult != ResultForm::kF32);
};

// Matrices of one input, whose sums have as many parts. A map has boxes of 64 rows by kBoxColumns
// columns of a matrix's y, where Form::kBoxes. Behind the blocks that multiply, one for each copy.
struct TileSet {
  ProductArguments common;
  DensePart parts[DenseSet::kMax];
  CUtensorMap maps[DenseSet::kMax];
  int32_t count;
  int32_t product_blocks;
  const RowCopy* copies;
};

struct TilePlace {
  int32_t part;
  int32_t slot;  // the first one
  int32_t row;
};

// Tiles in the order in which clusters take them: all slots of a panel of rows before the next
// panel, so that clusters that work at the same time share few rows and few slots, and both stay
// in L2. The last tiles of a matrix may overlap: then several blocks make the same outputs.
template <class Form>
struct TileItems {
  const TileSet& set;
  int32_t tiles = 0;  // of a cluster's slots
  int32_t clusters;   // of rows

  __host__ __device__ __forceinline__ explicit TileItems(const TileSet& set_in)
      : set(set_in),
        clusters((set.common.rows + Form::kRows * Form::kAlong - 1) /
                 (Form::kRows * Form::kAlong)) {
    for (int32_t i = 0; i < set.count; ++i) tiles += tiles_of(i);
  }
  __host__ __device__ __forceinline__ int32_t tiles_of(int32_t part) const {
    constexpr int32_t kTile = Form::kAcross * Form::kSlots;
    return (set.parts[part].slots + kTile - 1) / kTile;
  }
  __host__ __device__ __forceinline__ int32_t count() const { return tiles * clusters; }
  // Of the block that is `rank` in its cluster.
  __device__ __forceinline__ TilePlace at(int32_t item, int32_t rank) const {
    const int32_t panel = item / (Form::kPanel * tiles);
    const int32_t height = min(Form::kPanel, clusters - panel * Form::kPanel);
    item -= panel * Form::kPanel * tiles;
    const int32_t cluster = panel * Form::kPanel + item % height;
    int32_t tile = item / height;
    int32_t part = 0;
    for (; part + 1 < set.count; ++part) {
      const int32_t before = tiles_of(part);
      if (tile < before) break;
      tile -= before;
    }
    tile = tile * Form::kAcross + rank / Form::kAlong;
    return {part, min(tile * Form::kSlots, set.parts[part].slots - Form::kSlots),
            (cluster * Form::kAlong + rank % Form::kAlong) * Form::kRows};
  }
};

// Where the parts of a block's shared memory are.
struct TileMemory {
  const uint8_t* ring;
  uint32_t ring_address;
  uint32_t boxes;
  uint32_t full;
  uint32_t empty;
  // Where the last two tiles are (part and slot, row), by turns: who copies tells who multiplies.
  uint32_t told;

  static constexpr uint32_t kToldAt = 512;  // from `full` on
  static constexpr int32_t kPartShift = 28;
};

// One warp's copies of a tile: the same piece of every chunk, and another one if it has bytes.
struct TileCopy {
  const uint8_t* from;
  int64_t step;  // from chunk to chunk
  uint32_t to;   // in a stage
  uint32_t bytes;
};
template <class Form, int kBlocks, int kCopies>
__device__ __forceinline__ void copy_chunks(const TileMemory& memory, TileCopy (&copies)[kCopies],
                                            int32_t chunks, uint32_t expected, uint16_t blocks,
                                            RingPlace& place) {
#pragma unroll 1
  for (int32_t chunk = 0; chunk < chunks; ++chunk) {
    const uint32_t barrier = memory.full + place.barrier;
    barrier_wait(memory.empty + place.barrier, place.parity ^ 1);
    if (elected()) {
      if (expected > 0) barrier_expect(barrier, expected - 1);
#pragma unroll
      for (int32_t i = 0; i < kCopies; ++i) {
        const TileCopy& copy = copies[i];
        const uint32_t to = memory.ring_address + place.bytes + copy.to;
        if (copy.bytes == 0) continue;
        if (kBlocks > 1 && i == 0) {
          bulk_load_multicast(to, copy.from, copy.bytes, barrier, blocks);
        } else {
          bulk_load(to, copy.from, copy.bytes, barrier);
        }
      }
    }
#pragma unroll
    for (int32_t i = 0; i < kCopies; ++i) copies[i].from += copies[i].step;
    place.template advance<Form>();
  }
}

// Who copies: the warps of the third warpgroup, since one that issues all copies of a chunk takes
// longer than the chunk's products. Weights are constant: the ring fills with them
// while an earlier kernel makes the rows.
enum class TileCopier : uint8_t { kSlots, kRows, kMoreSlots, kSlotScales };

// Chunks of a sum that a block multiplies.
struct ChunkRange {
  int32_t begin;
  int32_t end;
};

// Of its tile's slots a block copies a share for all blocks that have the same: what is in the
// first pair that it touches, then the rest. kSlots says what all copies of weights bring.
template <class Form, TileCopier kCopier>
__device__ __forceinline__ void copy_slots(const TileSet& set, const TileMemory& memory,
                                           const TilePlace& at, int32_t rank, ChunkRange range,
                                           RingPlace& place) {
  constexpr uint32_t kAll = (1U << Form::kAlong) - 1;
  const auto blocks = static_cast<uint16_t>(kAll << (rank / Form::kAlong * Form::kAlong));
  const int64_t step = 2 * Form::kPairBytes;
  const int32_t first_pair = at.slot / Form::kPairSlots;
  const int32_t pairs = (at.slot + Form::kSlots - 1) / Form::kPairSlots - first_pair + 1;
  // Two pairs for each 256 slots of a chunk.
  const auto pair_at = [&](int32_t pair) {
    return set.parts[at.part].weights +
           (static_cast<int64_t>(pair / 2) * set.common.chunks * 2 + pair % 2) * Form::kPairBytes +
           range.begin * step;
  };
  if constexpr (kCopier == TileCopier::kSlotScales) {
    TileCopy copies[Form::kPairsMax];
#pragma unroll
    for (int32_t i = 0; i < Form::kPairsMax; ++i) {
      copies[i] = {pair_at(first_pair + i) + 2 * kFp8Codes, step,
                   static_cast<uint32_t>(Form::kSlotScalesAt + i * Form::kPairScales),
                   i < pairs ? Form::kPairScales : 0U};
    }
    copy_chunks<Form, 1>(memory, copies, range.end - range.begin, 0, 0, place);
  } else {
    const int32_t mine = rank % Form::kAlong * Form::kShare;
    int32_t first = at.slot + mine;
    int32_t count = min(Form::kPairSlots - first % Form::kPairSlots, Form::kShare);
    uint32_t to =
        Form::kCodesAt + (Form::kWholePairs ? mine / Form::kPart * Form::kPartRoom : mine * kChunk);
    uint32_t expected = 1 + Form::kSlots * kChunk + pairs * Form::kPairScales;
    if constexpr (kCopier == TileCopier::kMoreSlots) {
      first += count;
      to += count * kChunk;
      count = Form::kShare - count;
      expected = 1;  // arrives, though there may be nothing: or the ring could go round twice
    }
    TileCopy copies[1] = {
        {pair_at(first / Form::kPairSlots) + first % Form::kPairSlots * kChunk, step, to,
         static_cast<uint32_t>(count * kChunk + (Form::kWholePairs ? Form::kPairScales : 0))}};
    copy_chunks<Form, Form::kAlong>(memory, copies, range.end - range.begin, expected, blocks,
                                    place);
  }
}

template <class Form, TileCopier kCopier>
__device__ __forceinline__ void produce_slots(const TileSet& set, TileMemory memory, int32_t rank) {
  const TileItems<Form> items(set);
  RingPlace place;
  for (int32_t item = blockIdx.x / Form::kCluster; item < items.count();
       item += set.product_blocks / Form::kCluster) {
    const TilePlace at = items.at(item, rank);
    if constexpr (kCopier == TileCopier::kSlots) {
      if (elected()) {
        store_shared(memory.told,
                     uint2{static_cast<uint32_t>(at.part << TileMemory::kPartShift | at.slot),
                           static_cast<uint32_t>(at.row)});
      }
      __syncwarp();
      memory.told ^= 8;
    }
    copy_slots<Form, kCopier>(set, memory, at, rank, {0, set.common.chunks}, place);
  }
}

// Rows and their scales; of the rows a share for all blocks that have the same.
template <class Form>
__device__ __forceinline__ void copy_rows(const TileSet& set, const TileMemory& memory,
                                          const TilePlace& at, int32_t rank, ChunkRange range,
                                          RingPlace& place) {
  constexpr int32_t kShare = Form::kRows / Form::kAcross;
  uint32_t blocks = 0;
#pragma unroll
  for (int32_t i = 0; i < Form::kAcross; ++i) {
    blocks |= 1U << (i * Form::kAlong + rank % Form::kAlong);
  }
  const ProductArguments& args = set.common;
  // The last block of a cluster may have none.
  const int32_t rows = (max(min(Form::kRows, args.rows - at.row), 0) + 7) & ~7;
  const int32_t first = rank / Form::kAlong * kShare;
  const int32_t mine = max(min(kShare, rows - first), 0);
  const int64_t before = range.begin * args.x_rows;
  TileCopy copies[2] = {
      {args.x + (before + at.row + first) * kChunk, args.x_rows * kChunk,
       static_cast<uint32_t>(first * kChunk), static_cast<uint32_t>(mine * kChunk)},
      {reinterpret_cast<const uint8_t*>(args.x_scale + before + at.row), args.x_rows * 4,
       Form::kScalesAt, static_cast<uint32_t>(rows * 4)}};
  copy_chunks<Form, Form::kAcross>(memory, copies, range.end - range.begin, 1 + rows * (kChunk + 4),
                                   static_cast<uint16_t>(blocks), place);
}
template <class Form>
__device__ __forceinline__ void produce_rows(const TileSet& set, const TileMemory& memory,
                                             int32_t rank) {
  const TileItems<Form> items(set);
  RingPlace place;
  for (int32_t item = blockIdx.x / Form::kCluster; item < items.count();
       item += set.product_blocks / Form::kCluster) {
    copy_rows<Form>(set, memory, items.at(item, rank), rank, {0, set.common.chunks}, place);
  }
}

template <class Form>
__device__ __forceinline__ void produce_tiles(const TileSet& set, const TileMemory& memory,
                                              int32_t rank, TileCopier copier) {
  switch (copier) {
    case TileCopier::kSlots:
      return produce_slots<Form, TileCopier::kSlots>(set, memory, rank);
    case TileCopier::kRows:
      await_earlier();
      return produce_rows<Form>(set, memory, rank);
    case TileCopier::kMoreSlots:
      if constexpr (Form::kPieces == 2) {
        produce_slots<Form, TileCopier::kMoreSlots>(set, memory, rank);
      }
      return;
    case TileCopier::kSlotScales:
      if constexpr (!Form::kWholePairs) {
        produce_slots<Form, TileCopier::kSlotScales>(set, memory, rank);
      }
      return;
  }
}

// A warpgroup's sums of 64 rows by kSlots slots: element 4 j + {0, 1} is row g, slots 8 j + 2 t +
// {0, 1}; 4 j + {2, 3} the same slots of row g + 8.
template <int kSlots>
using SlotSums = float[kSlots / 2];

template <class Form>
struct TileConsumer {
  TileMemory memory;
  int32_t group;  // warpgroup
  int32_t row;    // of this thread, and 8 more

  using Sums = SlotSums<Form::kOwn>;
  using Partial = SlotSums<Form::kPart>;
  // Of a part's slots.
  static constexpr int32_t kScales = Form::kPart / Form::kScaled * (Form::kPaired ? 2 : 1);

  __device__ __forceinline__ void multiply(uint64_t stage, int32_t part, Partial& partial) const {
    const uint32_t rows = Form::kHalves ? 0 : group * 64 * kChunk;
    const uint32_t slots =
        Form::kCodesAt + (Form::kHalves ? group * Form::kOwn * kChunk : 0) + part * Form::kPartRoom;
    wgmma_fence();
#pragma unroll
    for (int32_t j = 0; j < 4; ++j) {
      Wgmma<Form::kPart, false>::run(partial, advance_descriptor(stage, rows + 32 * j),
                                     advance_descriptor(stage, slots + 32 * j), j > 0);
    }
    wgmma_commit();
  }

  // sum += partial * (scale of the row * scale of the weights): the one order of the sum. 32
  // neighbouring slots have one scale, or a strip's gates and its ups.
  __device__ __forceinline__ void promote(float2 token, const float (&weight)[kScales],
                                          const Partial& partial, float* sum) const {
#pragma unroll
    for (int32_t j = 0; j < Form::kPart / 8; ++j) {
      const float scale =
          weight[Form::kPaired ? j / (Form::kScaled / 8) * 2 + j % 2 : j / (Form::kScaled / 8)];
      const float2 factor = {token.x * scale, token.y * scale};
      sum[4 * j] = fmaf(partial[4 * j], factor.x, sum[4 * j]);
      sum[4 * j + 1] = fmaf(partial[4 * j + 1], factor.x, sum[4 * j + 1]);
      sum[4 * j + 2] = fmaf(partial[4 * j + 2], factor.y, sum[4 * j + 2]);
      sum[4 * j + 3] = fmaf(partial[4 * j + 3], factor.y, sum[4 * j + 3]);
    }
  }

  // Behind the loads of these.
  __device__ __forceinline__ void release(const RingPlace& place, float2 token,
                                          const float (&weight)[kScales]) const {
    uint32_t loaded = __float_as_uint(token.x) | __float_as_uint(token.y);
#pragma unroll
    for (int32_t i = 0; i < kScales; ++i) loaded |= __float_as_uint(weight[i]);
    const uint32_t empty = behind_loads(memory.empty + place.barrier, loaded);
    const uint32_t lane = threadIdx.x & 31;
    __syncwarp();
    if constexpr (Form::kCluster == 1) {
      if (lane == 0) barrier_arrive(empty);
    } else {
      if (lane < Form::kCluster) barrier_arrive_remote(empty, lane);
    }
  }

  __device__ __forceinline__ float2 token_scales(const RingPlace& place) const {
    const auto* tokens =
        reinterpret_cast<const float*>(memory.ring + place.bytes + Form::kScalesAt) + row;
    return {tokens[0], tokens[8]};
  }
  __device__ __forceinline__ void load_scales(const RingPlace& place, int32_t eighth, int32_t part,
                                              float (&weight)[kScales]) const {
    const uint8_t* scales =
        memory.ring + place.bytes + Form::kSlotScalesAt + part * Form::kPartScales;
    const auto* from = reinterpret_cast<const float*>(scales) + eighth;
#pragma unroll
    for (int32_t i = 0; i < kScales; ++i) {
      weight[i] =
          from[Form::kPaired ? i / 2 * (Form::kScaled / 8) + i % 2 : i * (Form::kScaled / 8)];
    }
  }

  // The next kCount chunks; `eighth` is the place of the first scale, of 8 slots each.
  template <int kCount>
  __device__ __forceinline__ void add_chunks(RingPlace& place, int32_t eighth, Sums& sum) const {
    if constexpr (Form::kParts > 1) {
      const uint64_t stage = swizzled_descriptor(warp_uniform(memory.ring_address + place.bytes));
      barrier_wait(memory.full + place.barrier, place.parity);
      Partial partial;
      multiply(stage, 0, partial);
      const float2 token = token_scales(place);
      float weight[Form::kParts][kScales];
#pragma unroll
      for (int32_t part = 0; part < Form::kParts; ++part) {
        load_scales(place, eighth, part, weight[part]);
      }
#pragma unroll
      for (int32_t part = 0; part < Form::kParts; ++part) {
        if (part > 0) multiply(stage, part, partial);
        wgmma_wait<0>();
        if (part + 1 == Form::kParts) release(place, token, weight[part]);
        promote(token, weight[part], partial, sum + part * (Form::kPart / 2));
      }
      place.template advance<Form>();
    } else {
      constexpr int kSets = Form::kBatch < kCount ? Form::kBatch : kCount;
      Partial partial[kSets];
      RingPlace ahead = place;
#pragma unroll
      for (int32_t i = 0; i + 1 < kSets; ++i) begin_chunk(ahead, partial[i]);
      chain_from<0, kCount, kSets>(place, ahead, eighth, partial, sum);
    }
  }

 private:
  __device__ __forceinline__ void begin_chunk(RingPlace& ahead, Partial& partial) const {
    const uint64_t stage = swizzled_descriptor(warp_uniform(memory.ring_address + ahead.bytes));
    barrier_wait(memory.full + ahead.barrier, ahead.parity);
    multiply(stage, 0, partial);
    ahead.template advance<Form>();
  }

  template <int kFirst, int kCount, int kSets>
  __device__ __forceinline__ void chain_from(RingPlace& place, RingPlace& ahead, int32_t eighth,
                                             Partial (&partial)[kSets], Sums& sum) const {
    constexpr int kNext = kFirst + kSets - 1;
    if constexpr (kNext < kCount) begin_chunk(ahead, partial[kNext % kSets]);
    const float2 token = token_scales(place);
    float weight[kScales];
    load_scales(place, eighth, 0, weight);
    wgmma_wait<(kNext < kCount ? kSets - 1 : kCount - 1 - kFirst)>();
    release(place, token, weight);
    promote(token, weight, partial[kFirst % kSets], sum);
    place.template advance<Form>();
    if constexpr (kFirst + 1 < kCount) {
      chain_from<kFirst + 1, kCount, kSets>(place, ahead, eighth, partial, sum);
    }
  }
};

// From registers to memory. Sixteen slots are sixteen outputs, the even ones first
// (weight_tiles.h): a thread has four neighbours of each of its rows, or two channels.
template <class Form>
__device__ __forceinline__ void store_sums(const ProductArguments& args, int32_t row, int32_t slot,
                                           const SlotSums<Form::kOwn>& sum) {
  const int32_t left = args.rows - row;
#pragma unroll
  for (int32_t i = 0; i < Form::kOwn / 16; ++i) {
    const float* at = sum + i * 8;
    const int32_t output = slot + 16 * i + 4 * (threadIdx.x & 3);
    if (left > 0) store_quad<Form::kResult>(args, row, output, {at[0], at[4], at[1], at[5]});
    if (left > 8) store_quad<Form::kResult>(args, row + 8, output, {at[2], at[6], at[3], at[7]});
  }
}

__device__ __forceinline__ uint32_t bf16_pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  uint32_t bits;
  memcpy(&bits, &pair, sizeof(bits));
  return bits;
}

// Through shared memory, in boxes that the copy engine takes while the next tile is multiplied.
template <class Form>
__device__ __forceinline__ void store_boxes(float limit, const CUtensorMap& map,
                                            const TileMemory& memory, int32_t group, int32_t row,
                                            int32_t slot, const SlotSums<Form::kOwn>& sum) {
  const uint32_t thread = threadIdx.x & 127;
  const uint32_t g = (thread & 31) >> 2;
  const uint32_t t = thread & 3;
  const uint32_t begin = memory.boxes + group * Form::kOwnBoxes * Form::kBoxBytes;
  if (thread == 0) box_stores_read();
  named_sync(2 + group, 128);
  constexpr int32_t kRowBytes = Form::kBoxColumns * 2;
  constexpr int32_t kSixteen = Form::kPaired ? 16 : 32;  // bytes of sixteen slots
  constexpr int32_t kInBox = kRowBytes / kSixteen;
  // Swizzled, pieces of 16 bytes are exchanged by row mod 8, which is g, or by half of it.
  const uint32_t turn = Form::kBoxColumns == 64 ? g : g / 2;
  uint32_t to = begin + (thread / 32 * 16 + g) * kRowBytes;
  if constexpr (Form::kSwizzled) {
    to += Form::kPaired ? turn * 16 + t * 4 : ((t / 2) ^ turn) * 16 + t % 2 * 8;
  } else {
    to += t * (Form::kPaired ? 4 : 8);
  }
#pragma unroll
  for (int32_t i = 0; i < Form::kOwn / 16; ++i) {
    const float* at = sum + i * 8;
    const uint32_t box = to + i / kInBox * Form::kBoxBytes;
    const uint32_t place =
        Form::kSwizzled ? box ^ (i % kInBox * kSixteen) : box + i % kInBox * kSixteen;
#pragma unroll
    for (int32_t lower = 0; lower < 2; ++lower, at += 2) {
      if constexpr (Form::kPaired) {
        store_shared(
            place + lower * 8 * kRowBytes,
            bf16_pair(swiglu_of(at[0], at[4], limit, 1.0F), swiglu_of(at[1], at[5], limit, 1.0F)));
      } else {
        store_shared(place + lower * 8 * kRowBytes,
                     uint2{bf16_pair(at[0], at[4]), bf16_pair(at[1], at[5])});
      }
    }
  }
  fence_async_proxy();
  named_sync(2 + group, 128);
  if (thread == 0) {
    const int32_t column = Form::kPaired ? slot / 2 : slot;
#pragma unroll
    for (int32_t i = 0; i < Form::kOwnBoxes; ++i) {
      box_store(map, column + i * Form::kBoxColumns, row, begin + i * Form::kBoxBytes);
    }
    box_stores_commit();
  }
}

// Chunks up to `end`, in runs of kRun and less.
template <int kRun, class Form>
__device__ __forceinline__ void add_runs(const TileConsumer<Form>& view, RingPlace& place,
                                         int32_t eighth, int32_t& chunk, int32_t end,
                                         SlotSums<Form::kOwn>& sum) {
#pragma unroll 1
  for (; chunk + kRun <= end; chunk += kRun) view.template add_chunks<kRun>(place, eighth, sum);
  if constexpr (kRun > 1) add_runs<kRun / 2>(view, place, eighth, chunk, end, sum);
}

template <class Form>
__device__ __forceinline__ void consume_dense_tile(const TileSet& set,
                                                   const TileConsumer<Form>& view,
                                                   RingPlace& place) {
  constexpr int32_t kSums = Form::kOwn / 2;
  SlotSums<Form::kOwn> sum = {};
  SlotSums<Form::kGrouped ? Form::kOwn : 2> total = {};
  int32_t eighth = Form::kHalves ? view.group * (Form::kOwn / 8) : 0;
  if constexpr (Form::kSlots % Form::kPairSlots != 0) {
    barrier_wait(view.memory.full + place.barrier, place.parity);  // who copies has told
    eighth += static_cast<int32_t>(load_shared_word(view.memory.told) % Form::kPairSlots / 8);
  }
  int32_t chunk = 0;
  const auto add_until = [&](int32_t end) {
    add_runs<Form::kRun>(view, place, eighth, chunk, end, sum);
  };
  if constexpr (Form::kGrouped) {
    const int32_t groups = set.common.groups;
    const int32_t shift = 31 - __clz(groups);  // a power of two
    for (int32_t group = 1; group <= groups; ++group) {
      add_until(set.common.chunks * group >> shift);
#pragma unroll
      for (int32_t i = 0; i < kSums; ++i) {
        total[i] += sum[i];
        sum[i] = 0.0F;
      }
    }
  } else {
    add_until(set.common.chunks);
  }
  const uint32_t told = load_shared_word(view.memory.told);
  const auto part = static_cast<int32_t>(told >> TileMemory::kPartShift);
  auto slot = static_cast<int32_t>(told & ((1U << TileMemory::kPartShift) - 1));
  auto row = static_cast<int32_t>(load_shared_word(view.memory.told + 4));
  if constexpr (Form::kHalves) {
    slot += view.group * Form::kOwn;
  } else {
    row += view.group * 64;
  }
  const auto store = [&](const SlotSums<Form::kOwn>& result) {
    if constexpr (Form::kBoxes) {
      store_boxes<Form>(set.common.limit, set.maps[part], view.memory, view.group, row, slot,
                        result);
    } else {
      ProductArguments args = set.common;
      args.y = set.parts[part].y;
      args.y_stride = set.parts[part].y_stride;
      args.outputs = set.parts[part].outputs;
      store_sums<Form>(args, row + view.row % 64, slot, result);
    }
  };
  if constexpr (Form::kGrouped) {
    store(total);
  } else {
    store(sum);
  }
}

template <class Form>
__device__ __forceinline__ void consume_tiles(const TileSet& set, TileConsumer<Form> view) {
  const TileItems<Form> items(set);
  RingPlace place;
  for (int32_t item = blockIdx.x / Form::kCluster; item < items.count();
       item += set.product_blocks / Form::kCluster) {
    consume_dense_tile<Form>(set, view, place);
    view.memory.told ^= 8;
  }
  if (Form::kBoxes && (threadIdx.x & 127) == 0) box_stores_wait();
}

template <class Form>
__global__ void __launch_bounds__(Form::kThreads, Form::kBlocks)
    dense_tiles_kernel(const __grid_constant__ TileSet set) {
  extern __shared__ uint8_t shared_memory[];
  if constexpr (Form::kCluster == 1) {
    const int32_t copy = static_cast<int32_t>(blockIdx.x) - set.product_blocks;
    if (copy >= 0) {
      await_earlier();
      return copy_row<Form::kThreads>(set.copies[copy]);
    }
  }
  const uint32_t begin = shared_address(shared_memory);
  TileMemory memory;
  memory.ring = shared_memory + (((begin + 1023) & ~1023U) - begin);
  memory.ring_address = shared_address(memory.ring);
  memory.boxes = memory.ring_address + Form::kStages * Form::kStageBytes;
  memory.full = memory.boxes + Form::kOutputBytes;
  memory.empty = memory.full + Form::kStages * 8;
  memory.told = memory.full + TileMemory::kToldAt;
  const int32_t warp = threadIdx.x >> 5;
  const int32_t lane = threadIdx.x & 31;
  const int32_t rank = Form::kCluster > 1 ? static_cast<int32_t>(cluster_rank()) : 0;

  if (threadIdx.x == 0) {
    // Slots, in one piece or two, and rows.
    make_ring<Form>(memory.full, memory.empty, 1 + Form::kPieces,
                    4 * Form::kTeams * Form::kCluster);
    barrier_init_fence();
  }
  if constexpr (Form::kCluster > 1) {
    cluster_sync();
  } else {
    __syncthreads();
  }

  if (warp >= 4 * Form::kTeams) {
    if constexpr (Form::kTeams > 1) registers_give<40>();
    produce_tiles<Form>(set, memory, static_cast<int32_t>(warp_uniform(rank)),
                        static_cast<TileCopier>(warp_uniform(warp - 4 * Form::kTeams)));
    __syncwarp();
    await_earlier();
  } else {
    if constexpr (Form::kTeams > 1) registers_take<232>();
    await_earlier();
    const auto group = static_cast<int32_t>(warp_uniform(warp / 4));
    const int32_t row = (Form::kRows == 64 ? warp % 4 : warp) * 16 + lane / 4;
    consume_tiles<Form>(set, {memory, group, row});
  }
  // No block ends while another one may still copy to it or arrive at its barriers.
  if constexpr (Form::kCluster > 1) cluster_sync();
}

}  // namespace galley::kernels::cuda
