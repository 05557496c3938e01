// fp8 products whose sums have eight parts (dense_sum_groups), as long as all their blocks run at
// once: a cluster of eight blocks has a tile of outputs, each block one part of its sums, or one of
// four blocks, each with two parts.
//
// Floor: the weights' bytes, 0.6 us for 512 x 5,120 and 1.4 for 1,280, but behind a launch that
// waits for the one before it, reads rows and ends, 2.4 us in all. A part of 5,120 is five chunks.
//
// Design. A tile is one of dense_tiles.cuh, with its copies and its warpgroups, which multiply a
// part in straight code. Then a thread sends its sums from registers to the block that adds up
// their rows, an even share of the tile's, 16 bytes at a time (st.async), counted by that block's
// barrier; who has all parts adds them in order, the one of dense_few_rows.cuh and dense_tiles.cuh,
// and stores. Nobody asks for anything, so that one way through the cluster is all that it costs,
// and there is no barrier at the end: a block ends behind all that comes to it, and what it sends
// comes from registers.
//
// What limits it: the sums' way, 16 to 20 bytes a cycle and multiprocessor, whoever moves them:
// 64 x 64 sums a block take 0.5 us, 128 x 128 2. So small tiles would be best, but clusters of
// eight find room on 120 multiprocessors at a time, and two blocks share one only where tiles are
// small.
//
// On one H200, us before and so: 512 x 5,120 3.6 and 2.5 at one row, 4.5 and 3.0 at 64, 5.8 and 4.2
// at 128, 10.1 (8.4 by tiles) and 6.0 at 256, 8.6 and 7.0 at 384; 1,280 x 5,120 4.8 and 3.5, 6.2
// and 4.8, at 128 11.4 (8.6) and 6.4, at 192 8.7 and 7.7; both in one launch 4.7 and 4.2 at one
// row, 5.1 and 4.4 at 8, 7.0 and 5.7 at 64, 8.7 and 7.5 at 128.
//
// Tried: sums left in shared memory, read by who adds them up between two barriers of the cluster:
// 3.6 us at 64 rows of 512 x 5,120, 6.3 of both; sent from there by the copy engine: 4.0 and 6.6. A
// barrier of the cluster at the end: 3.3 and 6.2. A block's own share by the same way as the
// others: 1 to 3 % slower. Clusters of two with four parts a block: 1,280 outputs at 192 rows 7.9
// us. Both matrices at 192 rows and more: 9.6 us and more, by tiles 9.4.
#pragma once

#include "kernels/cuda/dense_tiles.cuh"

namespace galley::kernels::cuda {

constexpr int32_t kSplitParts = 8;

// kSplit blocks of a cluster; TileCut::blocks of threads share a multiprocessor.
template <TileCut kCut, ResultForm kResultIn, int kSplitIn = kSplitParts>
struct SplitForm : TileForm<kCut, kResultIn, true, false> {
  using Base = TileForm<kCut, kResultIn, true, false>;
  static constexpr int kSplit = kSplitIn;
  static constexpr int kEach = kSplitParts / kSplit;  // parts of a block
  // Registers are dealt where a multiprocessor's are all for one block.
  static constexpr bool kDeals = Base::kTeams > 1 && Base::kBlocks == 1;
  static constexpr int kRowBytes = Base::kSlots * 4;
  static constexpr int kShareBytes = Base::kRows / kSplit * kRowBytes;  // of one part, at most
  static constexpr int kSumBytes = kSplitParts * kShareBytes;
  static constexpr int kRoom = 227 / Base::kBlocks * 1024 - 2048 - kSumBytes;
  static constexpr int kStages =
      kRoom / Base::kStageBytes < kCut.stages ? kRoom / Base::kStageBytes : kCut.stages;
  static constexpr int kSharedBytes = kStages * Base::kStageBytes + kSumBytes + 2048;
  static_assert(Base::kCluster == 1 && kStages > Base::kBatch);
};

// Whose sums go where: of a tile's rows, `each` to a block.
template <class Form>
struct SplitRows {
  int32_t rows;
  int32_t each;

  explicit __device__ __forceinline__ SplitRows(int32_t rows_in)
      : rows(rows_in), each((rows_in + Form::kSplit - 1) / Form::kSplit) {}
  __device__ __forceinline__ int32_t of(int32_t rank) const {
    return max(min(each, rows - rank * each), 0);
  }
};

// A warpgroup's sums of a part, four neighbours of a row at a time as in store_sums.
template <class Form>
__device__ __forceinline__ void send_sums(uint32_t part, uint32_t arrived, SplitRows<Form> split,
                                          int32_t rank, const TileConsumer<Form>& view,
                                          const SlotSums<Form::kOwn>& sum) {
  part += (threadIdx.x & 3) * 16 + (Form::kHalves ? view.group * Form::kOwn * 4 : 0);
#pragma unroll
  for (int32_t lower = 0; lower < 2; ++lower) {
    const int32_t row = view.row + 8 * lower;
    if (row >= split.rows) continue;
    const int32_t owner = row / split.each;
    const uint32_t here = part + row % split.each * Form::kRowBytes;
    if (owner == rank) {
#pragma unroll
      for (int32_t i = 0; i < Form::kOwn / 16; ++i) {
        const float* at = sum + i * 8 + 2 * lower;
        store_shared(here + i * 64, make_uint4(__float_as_uint(at[0]), __float_as_uint(at[4]),
                                               __float_as_uint(at[1]), __float_as_uint(at[5])));
      }
    } else {
      const uint32_t to = remote_address(here, owner);
      const uint32_t barrier = remote_address(arrived, owner);
#pragma unroll
      for (int32_t i = 0; i < Form::kOwn / 16; ++i) {
        const float* at = sum + i * 8 + 2 * lower;
        store_remote(to + i * 64, at[0], at[4], at[1], at[5], barrier);
      }
    }
  }
}

// All parts of this block's rows, in order, by the threads that multiply.
template <class Form>
__device__ __forceinline__ void add_parts(const TileSet& set, const TilePlace& at, uint32_t sums,
                                          SplitRows<Form> split, int32_t rank) {
  constexpr int32_t kQuads = Form::kSlots / 4;  // of a row
  ProductArguments args = set.common;
  args.y = set.parts[at.part].y;
  args.y_stride = set.parts[at.part].y_stride;
  args.outputs = set.parts[at.part].outputs;
  const int32_t first = at.row + rank * split.each;
#pragma unroll 1
  for (int32_t quad = threadIdx.x; quad < split.of(rank) * kQuads; quad += Form::kTeams * 128) {
    float4 total = {0.0F, 0.0F, 0.0F, 0.0F};
#pragma unroll
    for (int32_t part = 0; part < kSplitParts; ++part) {
      const uint4 one = load_shared_16(sums + part * Form::kShareBytes + quad * 16);
      total.x += __uint_as_float(one.x);
      total.y += __uint_as_float(one.y);
      total.z += __uint_as_float(one.z);
      total.w += __uint_as_float(one.w);
    }
    store_quad<Form::kResult>(args, first + quad / kQuads, at.slot + quad % kQuads * 4, total);
  }
}

template <class Form>
__device__ __forceinline__ void copy_part(const TileSet& set, const TileMemory& memory,
                                          const TilePlace& at, ChunkRange range,
                                          TileCopier copier) {
  RingPlace place;
  switch (copier) {
    case TileCopier::kSlots:
      return copy_slots<Form, TileCopier::kSlots>(set, memory, at, 0, range, place);
    case TileCopier::kRows:
      await_earlier();
      return copy_rows<Form>(set, memory, at, 0, range, place);
    case TileCopier::kMoreSlots:
      if constexpr (Form::kPieces == 2) {
        copy_slots<Form, TileCopier::kMoreSlots>(set, memory, at, 0, range, place);
      }
      return;
    case TileCopier::kSlotScales:
      if constexpr (!Form::kWholePairs) {
        copy_slots<Form, TileCopier::kSlotScales>(set, memory, at, 0, range, place);
      }
      return;
  }
}

// set.product_blocks, then one for each copy, and what fills the last cluster up.
template <class Form>
__global__ void __launch_bounds__(Form::kThreads, Form::kBlocks)
    dense_split_kernel(const __grid_constant__ TileSet set, int32_t copy_count) {
  extern __shared__ uint8_t shared_memory[];
  if (static_cast<int32_t>(blockIdx.x) >= set.product_blocks) {
    await_earlier();
    const int32_t copy = static_cast<int32_t>(blockIdx.x) - set.product_blocks;
    if (copy < copy_count) copy_row<Form::kThreads>(set.copies[copy]);
    return;
  }
  const uint32_t begin = shared_address(shared_memory);
  TileMemory memory{};
  memory.ring = shared_memory + (((begin + 1023) & ~1023U) - begin);
  memory.ring_address = shared_address(memory.ring);
  const uint32_t sums = memory.ring_address + Form::kStages * Form::kStageBytes;
  memory.full = sums + Form::kSumBytes;
  memory.empty = memory.full + Form::kStages * 8;
  const uint32_t arrived = memory.empty + Form::kStages * 8;
  const int32_t warp = threadIdx.x >> 5;
  const int32_t lane = threadIdx.x & 31;
  const auto rank = static_cast<int32_t>(cluster_rank());
  const TilePlace at = TileItems<Form>(set).at(static_cast<int32_t>(blockIdx.x) / Form::kSplit, 0);
  const auto part_begin = [&](int32_t part) { return set.common.chunks * part / kSplitParts; };
  const int32_t first_part = rank * Form::kEach;
  const SplitRows<Form> split(min(Form::kRows, set.common.rows - at.row));

  if (threadIdx.x == 0) {
    make_ring<Form>(memory.full, memory.empty, 1 + Form::kPieces, 4 * Form::kTeams);
    barrier_init(arrived, 1);
    barrier_init_fence();
    barrier_expect(arrived, (kSplitParts - Form::kEach) * split.of(rank) * Form::kRowBytes);
  }
  __syncthreads();
  cluster_arrive();  // this block's barriers are there

  if (warp >= 4 * Form::kTeams) {
    if constexpr (Form::kDeals) registers_give<40>();
    copy_part<Form>(set, memory, at, {part_begin(first_part), part_begin(first_part + Form::kEach)},
                    static_cast<TileCopier>(warp_uniform(warp - 4 * Form::kTeams)));
    __syncwarp();
    await_earlier();
    cluster_wait();
  } else {
    if constexpr (Form::kDeals) registers_take<232>();
    await_earlier();
    const auto group = static_cast<int32_t>(warp_uniform(warp / 4));
    const TileConsumer<Form> view{memory, group,
                                  (Form::kRows == 64 ? warp % 4 : warp) * 16 + lane / 4};
    const int32_t eighth =
        (Form::kHalves ? group * (Form::kOwn / 8) : 0) + at.slot % Form::kPairSlots / 8;
    RingPlace place;
    int32_t chunk = part_begin(first_part);
#pragma unroll 1
    for (int32_t i = 0; i < Form::kEach; ++i) {
      SlotSums<Form::kOwn> sum = {};
      add_runs<Form::kRun>(view, place, eighth, chunk, part_begin(first_part + i + 1), sum);
      if (i == 0) cluster_wait();
      send_sums<Form>(sums + (first_part + i) * Form::kShareBytes, arrived, split, rank, view, sum);
    }
    named_sync(1, Form::kTeams * 128);  // those that stay here
    barrier_wait(arrived, 0);
    add_parts<Form>(set, at, sums, split, rank);
  }
}

}  // namespace galley::kernels::cuda
