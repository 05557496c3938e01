// The routed experts' product where an expert has about 77 to 112 rows: fp8 activations times fp4
// weights, up to 128 rows of one expert by 256 slots.
//
// Floor: the weights' bytes up to 80 rows, then 2 rows N K over the tensor cores
// (grouped_product.cuh, expert_row_tiles.cuh).
//
// Design. Weights are A of wgmma, unpacked in registers, and tokens are B, as grouped_product.cuh
// has them, but a warpgroup has two strips of 64 slots: their products take turns, so that one is
// multiplied while the other one is unpacked or promoted, and both are promoted with the same
// scales of tokens. So a tile has 256 slots and an expert 18 of gate and up: those of seven experts
// fill one round of 132 multiprocessors. Down's 140 do not: what the last round has left goes by
// strips, or a quarter of a strip's rows, which both warpgroups share. Tiles are drawn
// (drawn_tiles.cuh). Sums leave through shared memory, as bf16, 32 tokens at a time: rows are
// written in whole sectors, and SwiGLU is a loop. From registers it was 2,200 instructions of
// straight code a block, and with the half sectors that it wrote 15 % of the time.
//
// On one H200, 7 experts, us, gate and up | down; before: a strip a warpgroup, and in brackets
// four warpgroups of a strip each (grouped_product.cuh with more tokens, for the experiment):
//
//   rows each      before              before
//   96        43.8   49.7 (42)   | 30.3   31.5 (29.8)
//   110       46.8   58.0 (47)   | 32.0   34.3 (34)
//   128       51.9   59.7 (66)   | 34.3   36.6 (38)
//   110, drawn 55.2  58.5        | 33.9   35.1
//   160       74     69          | 45     39.8
//   220       87.5   84          | 50.5   46.3
//   329       129    139         | 69     73
//   384       145    141         | 77     74
//
// 52 experts of 100 rows, drawn: gate and up 6 % faster than before.
//
// What limits it (ncu, 110 rows, gate and up): a chunk takes 1,900 cycles, its products 896. Of two
// warps on a scheduler one issues in 44 % of them: a warp has 349 instructions, whose time goes to
// being issued (22 %), their fixed latencies (16), reads of shared memory (14), the tensor cores
// and the other warps of a group (13) and the register file, which products in flight share with
// fma (13). The weights' bytes and the tokens' from the L2, 71 MB with 256 slots a tile, take 28 us
// of its ports. Without reading scales 43 us instead of 50, without unpacking as well 38, with a
// quarter of the products 40 (four warpgroups).
//
// Tried: tables of magnitudes by arithmetic: nothing. The second strip's codes read behind the
// first one's products: 0 to 1 % faster. Who of a warp releases a stage elected: 2 to 5 % faster,
// it is. What is left of down by 32 rows, not strips: 34 us for 110 rows; by whole strips 31.7, by
// quarters of their rows 30.4.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/drawn_tiles.cuh"
#include "kernels/cuda/global_loads.cuh"
#include "kernels/cuda/grouped_product.cuh"
#include "kernels/cuda/ring_place.cuh"
#include "kernels/cuda/sm90_memory.cuh"

namespace galley::kernels::cuda {

// Two warpgroups that multiply, of two strips each, and one more that copies: stages of four strips
// of weights and their rows, and room for results on their way out.
template <ResultForm kResultIn>
struct PairStripsForm {
  static_assert(kResultIn != ResultForm::kF32);
  static constexpr ResultForm kResult = kResultIn;
  static constexpr int kGroups = 2;
  static constexpr int kStrips = 4;
  static constexpr int kTokens = kPairStripsBlock;
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

// Addresses in shared memory; of a thread's things, those in stage 0.
template <class Form>
struct StripsView {
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
                                           const StripsView<Form>& view, const TokenBlock& block,
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
                                              const StripsView<Form>& view, RingPlace& place,
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
    uint32_t loaded = 0;
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
      loaded |= bits_of(scale);
      if (part + 1 == kParts) view.release(place, loaded);
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

// Tiles of four strips; what the last round has left goes by two strips, one, or a half or quarter
// of one's rows.
struct StripTile {
  int32_t first;
  int32_t count;

  // As it is told.
  static __device__ __forceinline__ int32_t told(int32_t first, int32_t count) {
    return first | count << 16;
  }
  static __device__ __forceinline__ StripTile of(int32_t told) {
    return {told & 0xffff, told >> 16};
  }
};

class StripDraw {
 public:
  __device__ __forceinline__ StripDraw(int32_t tiles, int32_t blocks)
      : tiles_(tiles), parts_(LastPieces::of(tiles * blocks, 16)), draw_(parts_.total) {}

  // False when nothing is left; it is then not called again.
  __device__ __forceinline__ bool next(const ProductArguments& args, DrawnTile& to) {
    for (int32_t at; draw_.next(args, at);) {
      const int32_t item = parts_.item(at);
      const bool whole = at < parts_.whole;
      const int32_t pieces = whole ? 1 : parts_.pieces;
      const int32_t piece = whole ? 0 : parts_.piece(at);
      const int32_t cuts = pieces > 4 ? pieces / 4 : 1;  // of a strip's rows
      const int32_t strips = pieces > 4 ? 1 : 4 / pieces;
      to.block = block_at(args, item / tiles_, 0);
      to.tile = StripTile::told(item % tiles_ * 4 + piece / cuts * strips, strips);
      const int32_t each = (to.block.rows + 8 * cuts - 1) / (8 * cuts) * 8;
      if (take_rows(to.block, piece % cuts, each)) return true;
    }
    return false;
  }

 private:
  int32_t tiles_;
  LastPieces parts_;
  ItemDraw draw_;
};

// The thread that draws tiles and copies what they read.
template <class Form>
__device__ __forceinline__ void produce_strips(const ProductArguments& args, uint32_t ring,
                                               uint32_t full, uint32_t empty, uint32_t told) {
  StripDraw draw(args.slots / (kStripSlots * Form::kStrips), args.totals->blocks);
  RingPlace place;
  uint32_t turn = 0;
  for (DrawnTile tile; draw.next(args, tile); ++turn) {
    tell_tile(told, turn, tile);
    const StripTile strips = StripTile::of(tile.tile);
    const uint32_t tile_bytes = strips.count * Form::kStripBytes;
    const uint8_t* weights =
        args.weights + tile.block.expert * args.expert_bytes +
        (static_cast<int64_t>(strips.first / 4) * args.chunks * 4 + strips.first % 4) *
            Form::kStripBytes;
    copy_tile<Form>(args, tile.block, weights, tile_bytes, ring, full, empty, place);
  }
  tell_end(full, empty, told, turn, place);
}

// Two strips, and kParts x kPart tokens: products (part, strip), strips in turns, two under way.
template <class Form, int kPart, int kParts>
__device__ __forceinline__ void consume_pair(const ProductArguments& args,
                                             const StripsView<Form>& view, RingPlace& place,
                                             const TokenBlock& block, int32_t slot) {
  float sum[2][kParts][kPart / 2];
#pragma unroll
  for (int32_t i = 0; i < kParts * kPart; ++i) {
    sum[i % 2][i / 2 / (kPart / 2)][i / 2 % (kPart / 2)] = 0.0F;
  }
  constexpr int32_t kPairs = kPart / 8;  // of scales
  constexpr int32_t kProducts = 2 * kParts;
#pragma unroll 1
  for (int32_t chunk = 0; chunk < args.chunks; ++chunk) {
    OperandA a[2];
    float partial[2][kPart / 2];
    float2 scale[kPairs];
    const uint64_t stage = swizzled_descriptor(view.ring + place.bytes);
    const uint32_t scales = view.scales + place.bytes;
    const auto load_scales = [&](int32_t part) {
#pragma unroll
      for (int32_t j = 0; j < kPairs; ++j) {
        scale[j] = load_shared_pair(scales + part * kPart * 4 + j * 32);
      }
    };
    const StoredCodes first = view.wait_codes(place);
    const StoredCodes second = view.codes_of(place.bytes + Form::kStripBytes);
    unpack_fp4(first, view.table, a[0]);
    multiply_chunk<kPart>(stage, a[0], 0, partial[0]);
    load_scales(0);
    unpack_fp4(second, view.table, a[1]);
    multiply_chunk<kPart>(stage, a[1], 0, partial[1]);
#pragma unroll
    for (int32_t product = 0; product < kProducts; ++product) {
      const int32_t strip = product % 2;
      const int32_t part = product / 2;
      if (strip == 0 && part > 0) load_scales(part);
      if (product + 1 == kProducts) {
        wgmma_wait<0>();
        // Sums took the scales of parts before when these products took their registers.
        view.release(place, bits_of(scale));
      } else {
        wgmma_wait<1>();
      }
      // The one order of the sum.
#pragma unroll
      for (int32_t j = 0; j < kPairs; ++j) {
        const float* from = partial[strip] + 4 * j;
        float* to = sum[strip][part] + 4 * j;
        to[0] = fmaf(from[0], scale[j].x, to[0]);
        to[1] = fmaf(from[1], scale[j].y, to[1]);
        to[2] = fmaf(from[2], scale[j].x, to[2]);
        to[3] = fmaf(from[3], scale[j].y, to[3]);
      }
      if (product + 2 < kProducts) {
        multiply_chunk<kPart>(stage, a[strip], (part + 1) * kPart, partial[strip]);
      }
    }
    place.template advance<Form>();
  }
#pragma unroll
  for (int32_t strip = 0; strip < 2; ++strip) {
    const int32_t of_strip = slot + strip * kStripSlots;
    const float2 row_scale = row_scale_at(args, block, of_strip);
#pragma unroll
    for (int32_t part = 0; part < kParts; ++part) {
      store_part<Form, kPart>(args, view, block, of_strip, part * kPart, row_scale,
                              sum[strip][part]);
    }
  }
}

// What a warpgroup does of a tile.
template <class Form>
__device__ __forceinline__ void consume_strips(const ProductArguments& args,
                                               const StripsView<Form>& whole, RingPlace& place,
                                               const TokenBlock& block, const StripTile& strips) {
  const int32_t group = whole.strip;
  if (strips.count == Form::kStrips) {
    StripsView<Form> view = whole;
    view.codes += group * 2 * Form::kStripBytes;
    view.shifts += group * 2 * Form::kStripBytes;
    const auto consume = [&]<int kPart, int kParts>() {
      consume_pair<Form, kPart, kParts>(args, view, place, block,
                                        (strips.first + group * 2) * kStripSlots);
    };
    if (block.rows <= 32) {
      consume.template operator()<32, 1>();
    } else if (block.rows <= 64) {
      consume.template operator()<64, 1>();
    } else if (block.rows <= 80) {
      consume.template operator()<40, 2>();
    } else if (block.rows <= 96) {
      consume.template operator()<48, 2>();
    } else if (block.rows <= 112) {
      consume.template operator()<56, 2>();
    } else if (block.rows <= 120) {
      consume.template operator()<40, 3>();
    } else {
      consume.template operator()<32, 4>();
    }
    return;
  }
  // One strip: its own, or half of the tokens of the one that both have.
  StripsView<Form> view = whole;
  TokenBlock mine = block;
  int32_t strip = 0;
  if (strips.count == 2) {
    strip = group;
    view.codes += group * Form::kStripBytes;
    view.shifts += group * Form::kStripBytes;
  } else {
    const int32_t half = (block.rows + 15) / 16 * 8;
    const int32_t from = group * half;
    mine.row += from;
    mine.rows = min(block.rows - from, half);
    view.ring = warp_uniform(view.ring + from * kChunk);
    view.scales += from * 4;
  }
  const auto consume = [&]<int kPart, int kParts>() {
    consume_parts<Form, kPart, kParts>(args, view, place, mine,
                                       (strips.first + strip) * kStripSlots);
  };
  if (mine.rows <= 32) {  // or none: a tile has one row at least
    consume.template operator()<32, 1>();
  } else if (mine.rows <= 64) {
    consume.template operator()<32, 2>();
  } else if (mine.rows <= 96) {
    consume.template operator()<48, 2>();
  } else {
    consume.template operator()<64, 2>();
  }
}

template <class Form>
__global__ void __launch_bounds__(Form::kThreads, 1)
    expert_pair_strips_kernel(const __grid_constant__ ProductArguments args) {
  extern __shared__ uint8_t shared_memory[];
  const DrawnBlock<Form> memory(shared_memory);
  if (memory.copies([&] {
        produce_strips<Form>(args, memory.ring, memory.full(), memory.empty(), memory.told());
      })) {
    return;
  }
  const int32_t warp = threadIdx.x >> 5;
  const int32_t thread = threadIdx.x & 127;
  const uint32_t base = warp_uniform(kept(memory.ring));
  const uint32_t group = warp_uniform(warp / 4);
  const StripsView<Form> view{
      .ring = base,
      .full = base + DrawnBlock<Form>::kFullAt,
      .empty = base + DrawnBlock<Form>::kEmptyAt,
      .table = base + DrawnBlock<Form>::kTableAt,
      .codes = base + Form::kCodesAt + thread * 16,
      .shifts = base + Form::kCodesAt + kFp4Codes + (thread >> 2) * 4,
      .scales = base + Form::kScalesAt + (thread & 3) * 8,
      .store = base + DrawnBlock<Form>::kStoreAt + group * Form::kStoreBytes,
      .told = base + DrawnBlock<Form>::kToldAt,
      .strip = static_cast<int32_t>(group),
  };
  RingPlace place;
  for (uint32_t turn = 0;; ++turn) {
    barrier_wait(view.full + place.barrier, place.parity);
    const DrawnTile drawn = told_tile(view.told, turn);
    if (drawn.block.rows == 0) break;
    consume_strips<Form>(args, view, place, drawn.block, StripTile::of(drawn.tile));
  }
}

}  // namespace galley::kernels::cuda
