// fp8 products of many rows with one matrix.
//
// Floor: 2 rows N K over the tensor cores, 4,096 products a cycle and multiprocessor: 1,560 TFLOP/s
// at the 1,440 MHz that are left when all of them multiply and the card draws its 650 W.
//
// Design. Rows are A of wgmma and weights B, both from shared memory: a thread then has two rows
// and 32 slots of one scale, so that a chunk's 128 sums need 16 factors. Two warpgroups of 64 rows
// by 256 slots each: 128 registers of sums, and 64 for the product of 128 slots by 128 of K, which
// is promoted while the other warpgroup's is computed. One thread streams 128 rows and 256 slots a
// chunk into a ring of three stages; two blocks of rows share the slots of a cluster, and each
// copies half of them for both. Outputs go through shared memory in swizzled boxes of 64 x 64,
// which the copy engine writes while the next tile is multiplied; it also leaves out what is
// behind the last row or column. Where 256 slots would leave multiprocessors idle, and where a sum
// has parts (a third accumulator), a tile has 128 slots and a block works alone.
//
// What limits it (ncu, 4,096 rows of 5,120 x 8,192): a chunk of 128 x 256 takes 1,180 cycles where
// products are 1,024, so the tensor cores are busy for 84 % of the time; shared memory has 71 %.
// Both warpgroups wait for products and promote at nearly the same time. Sustained, the card's
// power limits: variants that differ by 5 % in short runs are equal after half a second. Sums of
// parts have tiles of 128 slots and 770 to 840 cycles for 512: half of the work between two waits.
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
// - no clusters, panels of 2,048 or 4,096 rows: within 1 %.
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
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <cstring>

#include "kernels/cuda/grouped_product.cuh"
#include "kernels/cuda/ring_place.cuh"
#include "kernels/cuda/sm90_memory.cuh"
#include "kernels/cuda/tensor_map.cuh"

namespace galley::kernels::cuda {

// One compiled form. A block has 128 rows, 64 a warpgroup, by kPairs pairs of strips: 128 slots,
// whose sums are one product. Blocks of a cluster have the same two pairs, and each copies one of
// them for both.
template <int kPairsIn, ResultForm kResultIn, bool kGroupedIn, bool kBoxesIn>
struct TileForm {
  static constexpr int kRows = 128;
  static constexpr int kPairs = kPairsIn;
  static constexpr int kCluster = kPairs;
  static constexpr ResultForm kResult = kResultIn;
  static constexpr bool kPaired = kResult == ResultForm::kSwiGlu;
  static constexpr bool kGrouped = kGroupedIn;  // the sum has args.groups parts
  // Outputs go through shared memory and the copy engine, or straight from registers.
  static constexpr bool kBoxes = kBoxesIn;

  static constexpr int kThreads = 3 * 128;  // two warpgroups multiply, a thread of the third copies
  static constexpr int kPanel = 16 / kCluster;  // of rows, in clusters
  static constexpr int kPairSlots = 2 * kStripSlots;
  static constexpr int kPairBytes = 2 * (kFp8Codes + kFp8Scales);
  static constexpr int kPairRoom = (kPairBytes + kRows * 4 + 1023) / 1024 * 1024;
  static constexpr int kCodesAt = kRows * kChunk;
  static constexpr int kScalesAt = kCodesAt + kPairBytes;  // of the rows, behind the first pair
  static constexpr int kStageBytes = kCodesAt + kPairs * kPairRoom;
  // A box is 64 rows of 128 bytes.
  static constexpr int kPairBoxes = kPaired ? 1 : 2;
  static constexpr int kBoxBytes = 64 * 128;
  static constexpr int kBoxColumns = 64;
  static constexpr int kOutputBytes = kBoxes ? 2 * kPairs * kPairBoxes * kBoxBytes : 0;
  static constexpr int kStages = (227 * 1024 - 2048 - kOutputBytes) / kStageBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes + kOutputBytes + 2048;
  static_assert(kPairs == 1 || (kPairs == 2 && !kGrouped));  // three sums of two are too many
  static_assert(!kBoxes || kResult != ResultForm::kF32);
};

// Tiles in the order in which clusters take them: all slots of a panel of rows before the next
// panel, so that clusters that work at the same time share few rows and few slots, and both stay
// in L2.
template <class Form>
struct TileItems {
  int32_t tiles;     // of slots
  int32_t clusters;  // of rows

  __device__ __forceinline__ explicit TileItems(const ProductArguments& args)
      : tiles(args.slots / (Form::kPairs * Form::kPairSlots)),
        clusters((args.rows + Form::kRows * Form::kCluster - 1) / (Form::kRows * Form::kCluster)) {}
  __device__ __forceinline__ int32_t count() const { return tiles * clusters; }
  // {first pair of strips, first row} of the block that is `rank` in its cluster.
  __device__ __forceinline__ int2 at(int32_t item, int32_t rank) const {
    const int32_t panel = item / (Form::kPanel * tiles);
    const int32_t height = min(Form::kPanel, clusters - panel * Form::kPanel);
    item -= panel * Form::kPanel * tiles;
    const int32_t cluster = panel * Form::kPanel + item % height;
    return {item / height * Form::kPairs, (cluster * Form::kCluster + rank) * Form::kRows};
  }
};

// Where the parts of a block's shared memory are.
struct TileMemory {
  const uint8_t* ring;
  uint32_t ring_address;
  uint32_t boxes;
  uint32_t full;
  uint32_t empty;
  uint32_t told;  // where the last two tiles are, by turns: who copies tells who multiplies

  static constexpr uint32_t kToldAt = 512;  // from `full` on
};

// The thread that copies. A block of a cluster asks for its own rows and, on behalf of both, for
// one pair of strips.
template <class Form>
__device__ __forceinline__ void produce_tiles(const ProductArguments& args, TileMemory memory,
                                              int32_t rank) {
  const TileItems<Form> items(args);
  RingPlace place;
  for (int32_t item = blockIdx.x / Form::kCluster; item < items.count();
       item += gridDim.x / Form::kCluster) {
    const int2 at = items.at(item, rank);
    store_shared(memory.told, uint2{static_cast<uint32_t>(at.x), static_cast<uint32_t>(at.y)});
    memory.told ^= 8;
    // The last block of a cluster may have none.
    const uint32_t rows = (max(min(Form::kRows, args.rows - at.y), 0) + 7) & ~7;
    const uint8_t* x = args.x + static_cast<int64_t>(at.y) * kChunk;
    const float* x_scale = args.x_scale + at.y;
    // Two pairs for each 256 slots of a chunk.
    const int32_t pair = at.x + rank;
    const uint8_t* weights =
        args.weights +
        (static_cast<int64_t>(pair / 2) * args.chunks * 2 + pair % 2) * Form::kPairBytes;
#pragma unroll 1
    for (int32_t chunk = 0; chunk < args.chunks; ++chunk) {
      const uint32_t stage = memory.ring_address + place.bytes;
      const uint32_t barrier = memory.full + place.barrier;
      barrier_wait(memory.empty + place.barrier, place.parity ^ 1);
      barrier_expect(barrier, Form::kPairs * Form::kPairBytes + rows * (kChunk + 4));
      if (rows > 0) {
        bulk_load(stage, x, rows * kChunk, barrier);
        bulk_load(stage + Form::kScalesAt, x_scale, rows * 4, barrier);
      }
      const uint32_t codes = stage + Form::kCodesAt + rank * Form::kPairRoom;
      if constexpr (Form::kCluster == 1) {
        bulk_load(codes, weights, Form::kPairBytes, barrier);
      } else {
        bulk_load_multicast(codes, weights, Form::kPairBytes, barrier, 3);
      }
      x += args.x_rows * kChunk;
      x_scale += args.x_rows;
      weights += 2 * Form::kPairBytes;
      place.template advance<Form>();
    }
  }
}

// Sums of 64 rows by the slots of a pair: element 4 j + {0, 1} is row g, slots 8 j + 2 t + {0, 1};
// 4 j + {2, 3} the same slots of row g + 8.
using PairSums = float[kStripSlots];

template <class Form>
struct TileConsumer {
  TileMemory memory;
  int32_t group;  // warpgroup
  int32_t row;    // of this thread, and 8 more

  __device__ __forceinline__ void multiply(uint64_t stage, int32_t pair, PairSums& partial) const {
    wgmma_fence();
#pragma unroll
    for (int32_t j = 0; j < 4; ++j) {
      Wgmma<Form::kPairSlots, false>::run(
          partial, advance_descriptor(stage, group * 64 * kChunk + 32 * j),
          advance_descriptor(stage, Form::kCodesAt + pair * Form::kPairRoom + 32 * j), j > 0);
    }
    wgmma_commit();
  }

  // sum += partial * (scale of the row * scale of the weights): the one order of the sum. 32
  // neighbouring slots have one scale, or a strip's gates and its ups.
  __device__ __forceinline__ void promote(float2 token, const float (&weight)[4],
                                          const PairSums& partial, PairSums& sum) const {
#pragma unroll
    for (int32_t j = 0; j < Form::kPairSlots / 8; ++j) {
      const float scale = weight[j / 8 * 2 + (Form::kPaired ? j % 2 : j % 8 / 4)];
      const float2 factor = {token.x * scale, token.y * scale};
      sum[4 * j] = fmaf(partial[4 * j], factor.x, sum[4 * j]);
      sum[4 * j + 1] = fmaf(partial[4 * j + 1], factor.x, sum[4 * j + 1]);
      sum[4 * j + 2] = fmaf(partial[4 * j + 2], factor.y, sum[4 * j + 2]);
      sum[4 * j + 3] = fmaf(partial[4 * j + 3], factor.y, sum[4 * j + 3]);
    }
  }

  __device__ __forceinline__ void release(const RingPlace& place) const {
    const uint32_t lane = threadIdx.x & 31;
    __syncwarp();
    if constexpr (Form::kCluster == 1) {
      if (lane == 0) barrier_arrive(memory.empty + place.barrier);
    } else {
      if (lane < Form::kCluster) barrier_arrive_remote(memory.empty + place.barrier, lane);
    }
  }

  __device__ __forceinline__ void add_chunk(const RingPlace& place,
                                            PairSums (&sum)[Form::kPairs]) const {
    const uint64_t stage = swizzled_descriptor(warp_uniform(memory.ring_address + place.bytes));
    barrier_wait(memory.full + place.barrier, place.parity);
    PairSums partial;
    multiply(stage, 0, partial);
    const uint8_t* codes = memory.ring + place.bytes + Form::kCodesAt;
    const auto* tokens =
        reinterpret_cast<const float*>(memory.ring + place.bytes + Form::kScalesAt) + row;
    const float2 token = {tokens[0], tokens[8]};
    float weight[Form::kPairs][4];
#pragma unroll
    for (int32_t pair = 0; pair < Form::kPairs; ++pair) {
      const auto* from =
          reinterpret_cast<const float*>(codes + pair * Form::kPairRoom + 2 * kFp8Codes);
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        weight[pair][i] = from[i / 2 * (kFp8Scales / 4) + i % 2 * (Form::kPaired ? 1 : 4)];
      }
    }
#pragma unroll
    for (int32_t pair = 0; pair < Form::kPairs; ++pair) {
      if (pair > 0) multiply(stage, pair, partial);
      wgmma_wait<0>();
      if (pair + 1 == Form::kPairs) release(place);
      promote(token, weight[pair], partial, sum[pair]);
    }
  }
};

// From registers to memory. Sixteen slots are sixteen outputs, the even ones first
// (weight_tiles.h): a thread has four neighbours of each of its rows, or two channels.
template <class Form>
__device__ __forceinline__ void store_sums(const ProductArguments& args, int32_t row, int32_t slot,
                                           const PairSums (&sum)[Form::kPairs]) {
  const int32_t left = args.rows - row;
#pragma unroll
  for (int32_t i = 0; i < Form::kPairs * 8; ++i) {
    const float* at = sum[i / 8] + i % 8 * 8;
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
__device__ __forceinline__ void store_boxes(const ProductArguments& args, const CUtensorMap& map,
                                            const TileMemory& memory, int32_t group, int32_t row,
                                            int32_t pair, const PairSums (&sum)[Form::kPairs]) {
  const uint32_t thread = threadIdx.x & 127;
  const uint32_t g = (thread & 31) >> 2;
  const uint32_t t = thread & 3;
  const uint32_t begin = memory.boxes + group * Form::kPairs * Form::kPairBoxes * Form::kBoxBytes;
  if (thread == 0) box_stores_read();
  named_sync(2 + group, 128);
  // Pieces of 16 bytes are exchanged by row mod 8, which is g.
  const uint32_t to = begin + (thread / 32 * 16 + g) * 128 +
                      (Form::kPaired ? g * 16 + t * 4 : ((t / 2) ^ g) * 16 + t % 2 * 8);
#pragma unroll
  for (int32_t i = 0; i < Form::kPairs * 8; ++i) {
    const float* at = sum[i / 8] + i % 8 * 8;
    constexpr int32_t kInBox = 8 / Form::kPairBoxes;  // sixteens of slots
    const uint32_t place =
        (to + i / kInBox * Form::kBoxBytes) ^ (i % kInBox * (Form::kPaired ? 16 : 32));
#pragma unroll
    for (int32_t lower = 0; lower < 2; ++lower, at += 2) {
      if constexpr (Form::kPaired) {
        store_shared(place + lower * 1024, bf16_pair(swiglu_of(at[0], at[4], args.limit, 1.0F),
                                                     swiglu_of(at[1], at[5], args.limit, 1.0F)));
      } else {
        store_shared(place + lower * 1024, uint2{bf16_pair(at[0], at[4]), bf16_pair(at[1], at[5])});
      }
    }
  }
  fence_async_proxy();
  named_sync(2 + group, 128);
  if (thread == 0) {
#pragma unroll
    for (int32_t i = 0; i < Form::kPairs * Form::kPairBoxes; ++i) {
      box_store(map, (pair * Form::kPairBoxes + i) * Form::kBoxColumns, row + group * 64,
                begin + i * Form::kBoxBytes);
    }
    box_stores_commit();
  }
}

template <class Form>
__device__ __forceinline__ void consume_dense_tile(const ProductArguments& args,
                                                   const CUtensorMap& map,
                                                   const TileConsumer<Form>& view,
                                                   RingPlace& place) {
  PairSums sum[Form::kPairs] = {};
  PairSums total[Form::kGrouped ? Form::kPairs : 1] = {};
  int32_t chunk = 0;
  if constexpr (Form::kGrouped) {
    const int32_t shift = 31 - __clz(args.groups);  // a power of two
    for (int32_t group = 1; group <= args.groups; ++group) {
      const int32_t end = args.chunks * group >> shift;
      for (; chunk < end; ++chunk) {
        view.add_chunk(place, sum);
        place.template advance<Form>();
      }
#pragma unroll
      for (int32_t i = 0; i < Form::kPairs * kStripSlots; ++i) {
        total[i / kStripSlots][i % kStripSlots] += sum[i / kStripSlots][i % kStripSlots];
        sum[i / kStripSlots][i % kStripSlots] = 0.0F;
      }
    }
  } else {
    for (; chunk < args.chunks; ++chunk) {
      view.add_chunk(place, sum);
      place.template advance<Form>();
    }
  }
  const auto pair = static_cast<int32_t>(load_shared_word(view.memory.told));
  const auto row = static_cast<int32_t>(load_shared_word(view.memory.told + 4));
  const auto store = [&](const PairSums(&result)[Form::kPairs]) {
    if constexpr (Form::kBoxes) {
      store_boxes<Form>(args, map, view.memory, view.group, row, pair, result);
    } else {
      store_sums<Form>(args, row + view.row, pair * Form::kPairSlots, result);
    }
  };
  if constexpr (Form::kGrouped) {
    store(total);
  } else {
    store(sum);
  }
}

template <class Form>
__device__ __forceinline__ void consume_tiles(const ProductArguments& args, const CUtensorMap& map,
                                              TileConsumer<Form> view) {
  const TileItems<Form> items(args);
  RingPlace place;
  for (int32_t item = blockIdx.x / Form::kCluster; item < items.count();
       item += gridDim.x / Form::kCluster) {
    consume_dense_tile<Form>(args, map, view, place);
    view.memory.told ^= 8;
  }
  if (Form::kBoxes && (threadIdx.x & 127) == 0) box_stores_wait();
}

// The map has boxes of 64 rows by 64 columns of y, where Form::kBoxes.
template <class Form>
__global__ void __launch_bounds__(Form::kThreads, 1)
    dense_tiles_kernel(const __grid_constant__ ProductArguments args,
                       const __grid_constant__ CUtensorMap map) {
  extern __shared__ uint8_t shared_memory[];
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
    make_ring<Form>(memory.full, memory.empty, 1, 8 * Form::kCluster);
    barrier_init_fence();
  }
  if constexpr (Form::kCluster > 1) {
    cluster_sync();
  } else {
    __syncthreads();
  }
  await_earlier();

  if (warp >= 8) {
    registers_give<40>();
    if (warp == 8 && lane == 0) produce_tiles<Form>(args, memory, rank);
    __syncwarp();
  } else {
    registers_take<232>();
    const auto group = static_cast<int32_t>(warp_uniform(warp / 4));
    consume_tiles<Form>(args, map, {memory, group, warp * 16 + lane / 4});
  }
  // No block ends while another one may still copy to it or arrive at its barriers.
  if constexpr (Form::kCluster > 1) cluster_sync();
}

}  // namespace galley::kernels::cuda
