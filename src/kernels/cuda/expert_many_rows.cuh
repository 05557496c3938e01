// The routed experts' product at many rows: fp8 activations times fp4 weights, blocks of up to 256
// rows of one expert. Of many choices, experts with more than 128 rows are expert_row_tiles.cuh's.
//
// Floor: 2 rows N K over the tensor cores, 4,096 products a cycle and multiprocessor: 1,560 TFLOP/s
// at the 1,450 MHz that power leaves them.
//
// Design. As grouped_product.cuh has it: weights are A of wgmma, unpacked in registers, 64 slots a
// warpgroup; tokens are B. Unpacking a chunk costs the same for any number of tokens, so a block
// has as many as registers hold: 128 f32 sums of 256 tokens, 16 of A, and two products of a quarter
// of the tokens, 32 each, which take turns: one is multiplied while the other is promoted. Parts
// are multiplied one after another, but K has the order of every other form, and so have the bits.
// The plan makes an expert's blocks alike (rows_of_block), and ten sizes of a block are compiled.
// Tiles are drawn in the plan's order, large blocks first, and the last few in pieces
// (drawn_tiles.cuh).
// Sums leave through shared memory, as bf16, 32 tokens at a time: rows are written in whole
// sectors, and SwiGLU is a loop. From registers it was 2,200 instructions of straight code a block,
// and with the half sectors that it wrote 15 % of the time.
//
// On one H200, 98,304 rows, TFLOP/s; before (blocks of 160 tokens, in the same run); gate and up |
// down:
//
//   384 experts, 256 rows each            836   914  |  762   890
//   384 experts, drawn uniformly          806   793  |  748   781
//   384 experts, skewed as 1 / rank       785   784  |  697   728
//   52 experts, even                      886   887  |  808   865
//   52 experts, skewed                    907   918  |  817   882
//   7 experts, even                       929   959  |  837   938
//
// Tiles drawn, not in turn, and the last ones in pieces (us, the same run, both as they came; rows
// drawn uniformly or skewed): 7 experts of 128 rows, down 46 -> 40, of 256 64 -> 58, of 384 91 ->
// 80, of 768 158 -> 148; 52 of 79, gate and up 387 -> 346, skewed 412 -> 362; 384 of 256 skewed,
// down 764 -> 781 TFLOP/s. Gate and up of 7 experts have nearly two whole rounds at 256 rows:
// nothing.
//
// What limits it (ncu, 256 tokens, gate and up): a chunk takes 1,650 to 1,800 cycles, its products
// 1,024. A warp has 330 instructions, few of which wait for products (190 cycles); the others wait
// for their turn at shared memory, where a read takes up to 75 cycles: 1,220 cycles of it are asked
// for, 512 by operand B and as many by the tokens' scales, since lanes that read the same word are
// not fewer bytes. Wrong results show what each part costs: without unpacking 936 TFLOP/s instead
// of 782, without scales 1,004, without stores 923, without all three 1,322. Of 384 experts with
// about 256 rows each, half have two blocks of 136: fewer tokens share an unpacking, and two parts
// leave less to do while one is multiplied.
//
// Tried:
// - scales packed as bf16 pairs by a warp of its own: half of their reads, but two more ALU
//   operations for two tokens: 4 to 9 % slower.
// - products strictly in turns between the warpgroups, by barriers, so that one unpacks while the
//   other one multiplies: up to 4 % slower.
// - the next chunk's weights unpacked while the last parts are multiplied (192 and 224 tokens):
//   5 to 8 % slower than 256 tokens without it, at 52 experts; its codes read behind the last
//   products' start: 1 to 8 % slower. All of a part's scales asked for before its products: 240
//   registers, 2 to 8 % slower.
// - addresses left to the compiler: it computes them again in each chunk, 250 cycles.
// - scales spread to the lanes by products with rows of the identity (mma.sync m16n8k4 of tf32, a
//   sixteenth of the reads): 20 % slower, the tensor cores do not take both kinds at once.
// - tables of magnitudes by arithmetic instead of 8 reads: 3 to 6 % slower. The next chunk unpacked
//   into other registers while this one is multiplied (up to 224 tokens): 0 to 8 % slower.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/drawn_tiles.cuh"
#include "kernels/cuda/global_loads.cuh"
#include "kernels/cuda/grouped_product.cuh"
#include "kernels/cuda/ring_place.cuh"
#include "kernels/cuda/sm90_memory.cuh"

namespace galley::kernels::cuda {

// Blocks of kGroups warpgroups that multiply, of which one more copies: stages of kStrips strips of
// weights and kTokens rows, and room for results on their way out.
template <ResultForm kResultIn, int kGroupsIn, int kStripsIn, int kTokensIn>
struct DrawnForm {
  static_assert(kResultIn != ResultForm::kF32);
  static constexpr ResultForm kResult = kResultIn;
  static constexpr int kGroups = kGroupsIn;
  static constexpr int kStrips = kStripsIn;
  static constexpr int kTokens = kTokensIn;
  static constexpr int kThreads = kGroups * 128 + 128;
  static constexpr int kConsumerRegisters = 232;
  static constexpr int kProducerRegisters = 40;
  static constexpr int kStripBytes = kFp4Codes + kFp4Shifts;
  static constexpr int kCodesAt = kTokens * kChunk;
  static constexpr int kScalesAt = kCodesAt + kStrips * kStripBytes;
  static constexpr int kStageBytes = (kScalesAt + kTokens * 4 + 1023) / 1024 * 1024;
  // Results, a warpgroup: rows of 128 bytes.
  static constexpr int kStoreTokens = 32;
  static constexpr int kStoreBytes = kStoreTokens * 128;
  static constexpr int kRoom = 227 * 1024 - 2048 - kGroups * kStoreBytes;
  static constexpr int kStages = kRoom / kStageBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes + kGroups * kStoreBytes + 2048;
  static_assert(kStages >= 4);
};

// A strip a warpgroup.
template <ResultForm kResult>
struct ManyRowsForm : DrawnForm<kResult, 2, 2, kManyRowsBlock> {};

// Addresses in shared memory; of a thread's things, those in stage 0.
template <class Form>
struct ManyRowsView {
  uint32_t ring;  // warp-uniform, as are the barriers
  uint32_t full;
  uint32_t empty;
  uint32_t table;
  uint32_t codes;
  uint32_t shifts;
  uint32_t scales;  // of the thread's two tokens in every 8
  uint32_t store;   // room of this warpgroup
  uint32_t told;
  int32_t strip;  // of this warpgroup

  __device__ __forceinline__ StoredCodes wait_codes(const RingPlace& place) const {
    barrier_wait(full + place.barrier, place.parity);
    return codes_of(place.bytes);
  }
  __device__ __forceinline__ StoredCodes codes_of(uint32_t bytes) const {
    const uint32_t shift = load_shared_word(shifts + bytes);  // its tables come first
    return {load_shared_16(codes + bytes), load_shared_16(codes + bytes + 2048), shift};
  }
  __device__ __forceinline__ void release(const RingPlace& place, uint32_t loaded) const {
    release_stage(empty + place.barrier, loaded);
  }
};

// Of the two slots that this thread has of a strip.
__device__ __forceinline__ float2 row_scale_at(const ProductArguments& args,
                                               const TokenBlock& block, int32_t strip_slot) {
  const float* scales = args.row_scale + static_cast<int64_t>(block.expert) * args.slots +
                        strip_slot + ((threadIdx.x & 127) >> 5) * 16 + ((threadIdx.x & 31) >> 2);
  return {load_constant(scales), load_constant(scales + 8)};
}

// Writes tokens first + kFrom.. of the tile, kStoreTokens at a time: a warpgroup's pairs of bf16
// (two outputs, or gate and up, which round there anyway) change hands in shared memory.
template <class Form, int kPart, int kFrom = 0>
__device__ __forceinline__ void store_part(const ProductArguments& args,
                                           const ManyRowsView<Form>& view, const TokenBlock& block,
                                           int32_t strip_slot, int32_t first, float2 row_scale,
                                           float (&sum)[kPart / 2]) {
  constexpr int32_t kLeft = kPart - kFrom;
  constexpr int32_t kCount = kLeft < Form::kStoreTokens ? kLeft : Form::kStoreTokens;
  const int32_t thread = threadIdx.x & 127;
  const int32_t t = thread & 3;
  const int32_t pair = (thread >> 5) * 8 + ((thread & 31) >> 2);
  // Eights of pairs are exchanged by the token, so that no bank is hit twice.
  const uint32_t mine = view.store + 2 * t * 128 + (pair ^ (t * 8)) * 4;
  named_sync(1 + view.strip, 128);  // what was here is read
#pragma unroll
  for (int32_t j = 0; j < kCount / 8; ++j) {
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      const float* from = sum + kFrom / 2 + 4 * j + i;
      const __nv_bfloat162 values =
          __floats2bfloat162_rn(from[0] * row_scale.x, from[2] * row_scale.y);
      store_shared(mine + (8 * j + i) * 128, *reinterpret_cast<const uint32_t*>(&values));
    }
  }
  named_sync(1 + view.strip, 128);
  constexpr bool kSwiGlu = Form::kResult == ResultForm::kSwiGlu;
  const int32_t piece = thread & 7;  // 16 bytes of a token's 128
  const int64_t row = block.row + first + kFrom;
  const int32_t rows = min(block.rows - first - kFrom, kCount);
  const int32_t output = kSwiGlu ? strip_slot / 2 + piece * 4 : strip_slot + piece * 8;
  auto* y = static_cast<__nv_bfloat16*>(args.y) + row * args.y_stride + output;
#pragma unroll 1
  for (int32_t token = thread >> 3; token < rows && output < args.outputs; token += 16) {
    const uint4 raw =
        load_shared_16(view.store + token * 128 + ((piece * 16) ^ ((token >> 1 & 3) * 32)));
    auto* to = y + token * args.y_stride;
    if constexpr (kSwiGlu) {
      const float weight = args.row_weight == nullptr ? 1.0F : args.row_weight[row + token];
      const auto channel = [&](uint32_t gate_up) {
        return swiglu_of(__uint_as_float(gate_up << 16), __uint_as_float(gate_up & 0xffff0000U),
                         args.limit, weight);
      };
      const __nv_bfloat162 low = __floats2bfloat162_rn(channel(raw.x), channel(raw.y));
      const __nv_bfloat162 high = __floats2bfloat162_rn(channel(raw.z), channel(raw.w));
      *reinterpret_cast<uint2*>(to) = {*reinterpret_cast<const uint32_t*>(&low),
                                       *reinterpret_cast<const uint32_t*>(&high)};
    } else {
      *reinterpret_cast<uint4*>(to) = raw;
    }
  }
  if constexpr (kCount < kLeft) {
    store_part<Form, kPart, kFrom + kCount>(args, view, block, strip_slot, first, row_scale, sum);
  }
}

// A tile of kParts x kPart tokens. Its parts take turns on the tensor cores, two at a time: the
// compiler only follows products in flight inside straight code, so a chunk ends with none.
template <class Form, int kPart, int kParts>
__device__ __forceinline__ void consume_parts(const ProductArguments& args,
                                              const ManyRowsView<Form>& view, RingPlace& place,
                                              const TokenBlock& block, int32_t strip_slot) {
  float sum[kParts][kPart / 2];
#pragma unroll
  for (int32_t part = 0; part < kParts; ++part) {
#pragma unroll
    for (int32_t i = 0; i < kPart / 2; ++i) sum[part][i] = 0.0F;
  }
  constexpr int32_t kPairs = kPart / 8;  // of scales
  for (int32_t chunk = 0; chunk < args.chunks; ++chunk) {
    OperandA a;
    unpack_fp4(view.wait_codes(place), view.table, a);
    const uint64_t stage = swizzled_descriptor(view.ring + place.bytes);
    const uint32_t scales = view.scales + place.bytes;
    float partial[2][kPart / 2];
    multiply_chunk<kPart>(stage, a, 0, partial[0]);
    if constexpr (kParts > 1) multiply_chunk<kPart>(stage, a, kPart, partial[1]);
#pragma unroll
    for (int32_t part = 0; part < kParts; ++part) {
      const auto load_scales = [&](int32_t begin, int32_t end, float2(&scale)[kPairs]) {
#pragma unroll
        for (int32_t j = begin; j < end; ++j) {
          scale[j] = load_shared_pair(scales + part * kPart * 4 + j * 32);
        }
      };
      // Half of them before the products are there; all would cost registers.
      float2 scale[kPairs];
      load_scales(0, kPairs / 2, scale);
      if (part + 1 == kParts) {
        wgmma_wait<0>();
      } else {
        wgmma_wait<1>();
      }
      load_scales(kPairs / 2, kPairs, scale);
      if (part + 1 == kParts) view.release(place, bits_of(scale));  // behind all parts' scales
#pragma unroll
      for (int32_t j = 0; j < kPairs; ++j) {
        const float* from = partial[part & 1] + 4 * j;
        float* to = sum[part] + 4 * j;
        to[0] = fmaf(from[0], scale[j].x, to[0]);
        to[1] = fmaf(from[1], scale[j].y, to[1]);
        to[2] = fmaf(from[2], scale[j].x, to[2]);
        to[3] = fmaf(from[3], scale[j].y, to[3]);
      }
      if (part + 2 < kParts) {
        multiply_chunk<kPart>(stage, a, (part + 2) * kPart, partial[part & 1]);
      }
    }
    place.template advance<Form>();
  }
  const float2 row_scale = row_scale_at(args, block, strip_slot);
#pragma unroll
  for (int32_t part = 0; part < kParts; ++part) {
    store_part<Form, kPart>(args, view, block, strip_slot, part * kPart, row_scale, sum[part]);
  }
}

// What a tile reads, chunk by chunk: `bytes` of weights, and rows with their scales.
template <class Form>
__device__ __forceinline__ void copy_tile(const ProductArguments& args, const TokenBlock& block,
                                          const uint8_t* weights, uint32_t bytes, uint32_t ring,
                                          uint32_t full, uint32_t empty, RingPlace& place) {
  const uint32_t rows = (block.rows + 7) & ~7;
  const uint8_t* x = args.x + static_cast<int64_t>(block.row) * kChunk;
  const float* x_scale = args.x_scale + block.row;
  for (int32_t chunk = 0; chunk < args.chunks; ++chunk) {
    const uint32_t stage = ring + place.bytes;
    const uint32_t barrier = full + place.barrier;
    // The ring is full for most of the time, and consumers want the issue slots.
    barrier_wait_asleep(empty + place.barrier, place.parity ^ 1);
    barrier_expect(barrier, bytes + rows * (kChunk + 4));
    bulk_load(stage + Form::kCodesAt, weights, bytes, barrier);
    bulk_load(stage, x, rows * kChunk, barrier);
    bulk_load(stage + Form::kScalesAt, x_scale, rows * 4, barrier);
    weights += 4 * Form::kStripBytes;
    x += args.x_rows * kChunk;
    x_scale += args.x_rows;
    place.template advance<Form>();
  }
}
__device__ __forceinline__ void tell_end(uint32_t full, uint32_t empty, uint32_t told,
                                         uint32_t turn, const RingPlace& place) {
  barrier_wait_asleep(empty + place.barrier, place.parity ^ 1);
  tell_tile(told, turn, {});
  barrier_arrive(full + place.barrier);
}

// The thread that draws tiles and copies what they read.
template <class Form>
__device__ __forceinline__ void produce_drawn(const ProductArguments& args, uint32_t ring,
                                              uint32_t full, uint32_t empty, uint32_t told) {
  constexpr uint32_t kTileBytes = Form::kStrips * Form::kStripBytes;
  TileDraw<32> draw(args.slots / (kStripSlots * Form::kStrips),
                    args.all_blocks ? 0 : args.totals->row_blocks, args.totals->blocks);
  RingPlace place;
  uint32_t turn = 0;
  for (DrawnTile tile; draw.next(args, tile); ++turn) {
    tell_tile(told, turn, tile);
    const int32_t strip = tile.tile * Form::kStrips;
    const uint8_t* weights =
        args.weights + tile.block.expert * args.expert_bytes +
        (static_cast<int64_t>(strip / 4) * args.chunks * 4 + strip % 4) * Form::kStripBytes;
    copy_tile<Form>(args, tile.block, weights, kTileBytes, ring, full, empty, place);
  }
  tell_end(full, empty, told, turn, place);
}

// A block whose warps multiply but for one thread, which draws tiles: what lies where in its shared
// memory, and who is who.
template <class Form>
struct DrawnBlock {
  // Stages, results, then the table of shifts and the barriers.
  static constexpr uint32_t kStoreAt = Form::kStages * Form::kStageBytes;
  static constexpr uint32_t kTableAt = kStoreAt + Form::kGroups * Form::kStoreBytes;
  static constexpr uint32_t kFullAt = kTableAt + 128;
  static constexpr uint32_t kEmptyAt = kFullAt + Form::kStages * 8;
  static constexpr uint32_t kToldAt = kFullAt + 256;
  static_assert(2 * Form::kStages * 8 <= 256 && Form::kStages < 7);

  uint8_t* memory;
  uint32_t begin;
  uint32_t ring;

  __device__ __forceinline__ explicit DrawnBlock(uint8_t* memory_in)
      : memory(memory_in), begin(shared_address(memory_in)), ring((begin + 1023) & ~1023U) {}
  __device__ __forceinline__ uint32_t full() const { return ring + kFullAt; }
  __device__ __forceinline__ uint32_t empty() const { return ring + kEmptyAt; }
  __device__ __forceinline__ uint32_t told() const { return ring + kToldAt; }

  // By all threads. True for those that do not multiply: one of them has called produce() then.
  template <class Produce>
  __device__ __forceinline__ bool copies(const Produce& produce) const {
    const int32_t warp = threadIdx.x >> 5;
    const int32_t lane = threadIdx.x & 31;
    fill_shift_table(memory + (ring - begin) + kTableAt);
    if (threadIdx.x == 0) {
      make_ring<Form>(full(), empty(), 1, Form::kGroups * 4);
      barrier_init_fence();
    }
    __syncthreads();
    await_earlier();
    if (warp >= Form::kGroups * 4) {
      registers_give<Form::kProducerRegisters>();
      if (warp == Form::kGroups * 4 && lane == 0) produce();
      __syncwarp();
      return true;
    }
    registers_take<Form::kConsumerRegisters>();
    return false;
  }
};

template <class Form>
__global__ void __launch_bounds__(Form::kThreads, 1)
    expert_many_rows_kernel(const __grid_constant__ ProductArguments args) {
  extern __shared__ uint8_t shared_memory[];
  const DrawnBlock<Form> memory(shared_memory);
  if (memory.copies([&] {
        produce_drawn<Form>(args, memory.ring, memory.full(), memory.empty(), memory.told());
      })) {
    return;
  }
  const int32_t warp = threadIdx.x >> 5;
  const int32_t thread = threadIdx.x & 127;
  const uint32_t base = warp_uniform(kept(memory.ring));
  const uint32_t strip = warp_uniform(warp / 4);
  const uint32_t codes = base + Form::kCodesAt + strip * Form::kStripBytes;
  const ManyRowsView<Form> view{
      .ring = base,
      .full = base + DrawnBlock<Form>::kFullAt,
      .empty = base + DrawnBlock<Form>::kEmptyAt,
      .table = base + DrawnBlock<Form>::kTableAt,
      .codes = kept(codes + thread * 16),
      .shifts = kept(codes + kFp4Codes + (thread >> 2) * 4),
      .scales = kept(base + Form::kScalesAt + (thread & 3) * 8),
      .store = base + DrawnBlock<Form>::kStoreAt + strip * Form::kStoreBytes,
      .told = base + DrawnBlock<Form>::kToldAt,
      .strip = static_cast<int32_t>(strip),
  };
  RingPlace place;
  for (uint32_t turn = 0;; ++turn) {
    barrier_wait(view.full + place.barrier, place.parity);
    const DrawnTile drawn = told_tile(view.told, turn);
    const TokenBlock block = drawn.block;
    if (block.rows == 0) break;
    const int32_t strip_slot = (drawn.tile * Form::kStrips + view.strip) * kStripSlots;
    const auto consume = [&]<int kPart, int kParts>() {
      consume_parts<Form, kPart, kParts>(args, view, place, block, strip_slot);
    };
    if (block.rows <= 32) {
      consume.template operator()<32, 1>();
    } else if (block.rows <= 64) {
      consume.template operator()<32, 2>();
    } else if (block.rows <= 96) {
      consume.template operator()<48, 2>();
    } else if (block.rows <= 112) {
      consume.template operator()<56, 2>();
    } else if (block.rows <= 128) {
      consume.template operator()<64, 2>();
    } else if (block.rows <= 144) {
      consume.template operator()<72, 2>();
    } else if (block.rows <= 160) {
      consume.template operator()<80, 2>();
    } else if (block.rows <= 192) {
      consume.template operator()<64, 3>();
    } else if (block.rows <= 224) {
      consume.template operator()<56, 4>();
    } else {
      consume.template operator()<64, 4>();
    }
  }
}

}  // namespace galley::kernels::cuda
