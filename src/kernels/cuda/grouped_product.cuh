// The kernel behind grouped_product.h: fp8 activations times fp4 weights, up to 80 rows an expert.
//
// Floor. Few rows: the weights' bytes, 2.6 us for one expert's gate and up (11.8 MB of codes at
// 4.6 TB/s). Many rows: 2 rows N K over the peak of wgmma, 1,850 TFLOP/s of e4m3 in bursts. They
// meet at 80 rows an expert.
//
// Design. Weights are A of wgmma, from registers: 64 slots a warpgroup; tokens are B, N of them.
// So few tokens waste nothing, and fp4 crosses every memory as fp4. A power-of-two scale is folded
// into the codes: E2M1 times 2^shift is E4M3, looked up by byte permutation in a table of the
// block's shift (weight_tiles.h), so that the tensor cores sum 128 of K and one fma with the
// token's scale promotes the sum to f32; row scales wait for the end. One thread streams weights
// and another one activations with bulk copies into a ring of 6 to 9 stages; tiles were laid out
// by the fold, so a stage is two or three copies. Every form has the same order of the sum.
// Four warpgroups of 64 slots, 80 tokens at most; more rows are expert_pair_strips.cuh's and
// expert_row_tiles.cuh's.
//
// Tried, on one H200, gate and up:
// - the first form read 8 weights with 12 ALU operations, and tables through three adds: 72 % of
//   the floor at 52 experts; 6 operations and an address by permutation: 79 %. The ALU takes
//   two cycles a warp and is what unpacking costs.
// - cluster pairs that share the tokens' copies by multicast: with waits of cluster scope twice as
//   slow as without (their fences). With plain waits both of a pair wait for the slower one at
//   every tile: without clusters gate and up are 2 % faster, down 4 to 8 %.
// - threads that copy and spin on the barrier of a full ring: 37 tries a chunk, on schedulers that
//   other warps want; asleep in between, 80 tokens are up to 3 % faster.
// - copies in pieces of 2 KB: 30 % slower; the copy engine counts copies.
// - two warpgroups of 160 tokens reach 870 TFLOP/s at 98,304 rows of 7 experts, 128 tokens 710,
//   three warpgroups of 128 tokens 835. The compiler follows products in flight only in straight
//   code: a loop that carries them is serialised (C7514).
// - a fixed distance between the warpgroups, so that some unpack while others multiply: nothing
//   for two, 10 % slower for four.
// - descriptors in vector registers: two moves and their latency before every product; told to be
//   uniform: 20 % faster at 80 tokens.
// - 160 tokens in halves, the next chunk unpacked meanwhile: 765 TFLOP/s at 384 experts. Four
//   chunks in straight code, so that products are in flight for longer: it spills and is 40 %
//   slower; products of 160 tokens at once, beside the other warpgroup's promotion: 20 % slower,
//   for the same reason. A card that is warm from the contender before is 5 % slower, so less than
//   that says nothing here.
// - few rows: the next chunk unpacked while this one's products run: 0 to 8 % slower. Two chunks at
//   a time up to 32 tokens: nothing.
// - tables computed, two IMAD each, where a warp's shifts leave normal numbers only, and looked up
//   elsewhere: the same bits, 33.6 us for gate and up of 7 experts with 55 rows, as before.
// - few rows, the shared expert's fp8 tiles in the same launch and all tiles shared out in even
//   runs of chunks, where a block hands the sums of a tile that it begins to the next block, in
//   order, so that bits stay: 94 us for all launches of a layer of 7 experts and 64 rows instead of
//   86, 143 instead of 139 for 4 rows of 384, 65 instead of 69 for one row. Each change of a tile
//   drains the ring for all four warpgroups.
// - few rows: down's weights asked for while an earlier launch runs (its plan is known), its tiles
//   fetched into the L2 when gate and up end, theirs by the plan: nothing, and a plan 1 us longer.
//
// - addresses kept in registers and tiles of 40, 48 and 56 tokens, too: gate and up of 55 rows of 7
//   experts 33.6 -> 31.4 us, of 80 rows 38.9 -> 37.7. Down is 6 % slower with both (25.1 -> 27.2),
//   so it has neither.
// - who of a warp releases a stage elected, not the thread that has lane 0, whose number is read
// again
//   for every chunk where registers are few: gate and up 2 to 3 % faster, down 1 % slower.
// - the last round's strips of down by all four warpgroups, chunks in turns and the sum handed on
//   through shared memory (its order stays): 55 rows of 7 experts 25.7 -> 24.8 us, 73 nothing, and
//   512 skewed rows' gate and up, two strips a block, 52 -> 62. Left out: 16 KB each way are 250
//   cycles.
//
// What limits it now, around 80 rows: a warp's own instructions, 190 a chunk of 64 tokens, each of
// which waits four cycles for the one before it, and hardly ever for a product.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/global_loads.cuh"
#include "kernels/cuda/grouped_product.h"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/ring_place.cuh"
#include "kernels/cuda/sm90.cuh"
#include "kernels/cuda/sm90_memory.cuh"
#include "kernels/cuda/weight_tiles.h"
#include "kernels/cuda/wgmma_e4m3.cuh"

namespace galley::kernels::cuda {

// One compiled form: `kStrips` warpgroups of 64 slots each, one warp that copies, tokens in
// tiles of at most kTokens.
template <int kStripsIn, int kTokensIn, ResultForm kResultIn>
struct ProductForm {
  static constexpr int kStrips = kStripsIn;
  static constexpr int kTokens = kTokensIn;
  static constexpr ResultForm kResult = kResultIn;
  static constexpr int kThreads = kStrips * 128 + 128;  // the last warpgroup copies
  static constexpr int kConsumerRegisters = 112;
  static constexpr int kProducerRegisters = 32;
  // Addresses in registers, and more sizes of a tile: down's stores leave too few registers.
  static constexpr bool kKeeps = kResultIn == ResultForm::kSwiGlu;
  static constexpr int kStripBytes = kFp4Codes + kFp4Shifts;
  static constexpr int kCodesAt = kTokens * kChunk;
  static constexpr int kScalesAt = kCodesAt + kStrips * kStripBytes;
  static constexpr int kStageBytes = (kScalesAt + kTokens * 4 + 1023) / 1024 * 1024;
  static constexpr int kRoom = 227 * 1024 - 2048;
  static constexpr int kStages = kRoom / kStageBytes < 12 ? kRoom / kStageBytes : 12;
  static constexpr int kSharedBytes = kStages * kStageBytes + 2048;
};

__device__ __forceinline__ TokenBlock block_at(const ProductArguments& args, int32_t index,
                                               int32_t tokens) {
  if (args.blocks != nullptr) {
    const int4 raw = load_written(reinterpret_cast<const int4*>(args.blocks) + index);
    return {raw.x, raw.y, raw.z, raw.w};
  }
  return {0, index * tokens, min(tokens, args.rows - index * tokens), 0};
}

__device__ __forceinline__ int32_t block_total(const ProductArguments& args, int32_t tokens) {
  return args.blocks != nullptr ? load_written(&args.totals->blocks)
                                : (args.rows + tokens - 1) / tokens;
}

// Work of a block of threads: strips first.. of a tile of all strips. Whole tiles go round; what is
// left for the last round and would keep few blocks busy is shared out by strips.
struct TileShare {
  int32_t item = 0;
  int32_t first = 0;
  int32_t count = 0;  // 0: nothing left
};
template <class Form>
__device__ __forceinline__ TileShare share_at(int32_t round, int32_t items) {
  const auto blocks = static_cast<int32_t>(gridDim.x);
  const int32_t at = round * blocks + static_cast<int32_t>(blockIdx.x);
  const int32_t whole = Form::kStrips == 4 ? items / blocks * blocks : items;
  if (at < whole) return {at, 0, Form::kStrips};
  const int32_t rest = items - whole;
  const int32_t pieces = rest * 4 <= blocks ? 4 : rest * 2 <= blocks ? 2 : 1;
  const int32_t piece = at - whole;
  if (piece >= rest * pieces) return {};
  const int32_t strips = Form::kStrips / pieces;
  return {whole + piece / pieces, piece % pieces * strips, strips};
}

// Registers of four wgmmas: [K of 32][register].
using OperandA = uint32_t[4][4];

__device__ __forceinline__ uint2 load_table(uint32_t address) {
  uint2 value;
  // Not volatile: the table never changes, so the compiler may place the load as it likes.
  asm("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "r"(address));
  return value;
}

// A thread's 64 codes of a strip's chunk, and the shifts of their blocks.
struct StoredCodes {
  uint4 first;
  uint4 second;
  uint32_t shift;
};

// They become wgmma's A registers. ALU operations are what counts here (two cycles each and warp):
// 6 for 8 codes and 3 for 2 tables of 4 rows x 32.
__device__ __forceinline__ void unpack_fp4(const StoredCodes& codes, uint32_t table, OperandA& a) {
  const uint32_t words[8] = {codes.first.x,  codes.first.y,  codes.first.z,  codes.first.w,
                             codes.second.x, codes.second.y, codes.second.z, codes.second.w};
  // Nibble i of the shifts, times 8, as byte i / 2 of even or odd.
  const uint32_t even = (codes.shift << 3) & 0x78787878;
  const uint32_t odd = (codes.shift >> 1) & 0x78787878;
#pragma unroll
  for (int32_t j = 0; j < 4; ++j) {
#pragma unroll
    for (int32_t upper = 0; upper < 2; ++upper) {
      const int32_t byte = 2 * upper + j / 2;
      // The table is 256-byte aligned: its address with this byte as the last one.
      const uint2 bytes = load_table(permute_bytes(j % 2 == 0 ? even : odd, table, 0x7650 | byte));
      const uint32_t word = words[2 * j + upper];
      const uint32_t magnitude = word & 0x77777777;
      a[j][upper] = permute_bytes(bytes.x, bytes.y, magnitude) | ((word << 4) & 0x80808080);
      a[j][2 + upper] = permute_bytes(bytes.x, bytes.y, magnitude >> 16) | (word & 0x80808080);
    }
  }
}

__device__ __forceinline__ StoredCodes load_codes(const uint8_t* codes) {
  const int32_t thread = threadIdx.x & 127;
  return {*reinterpret_cast<const uint4*>(codes + thread * 16),
          *reinterpret_cast<const uint4*>(codes + 2048 + thread * 16),
          *reinterpret_cast<const uint32_t*>(codes + kFp4Codes + (thread >> 2) * 4)};
}

// 16 tables of 8 bytes: E2M1 magnitudes times 2^shift. An aligned LDS.64 each, no bank twice.
__device__ __forceinline__ void fill_shift_table(uint8_t* table) {
  if (threadIdx.x >= 128) return;
  const int32_t nibble = threadIdx.x / 8;
  table[threadIdx.x] =
      nibble == kZeroBlock
          ? 0
          : static_cast<uint8_t>(folded_magnitude(threadIdx.x % 8, nibble - kShiftBias));
}

// Products of a chunk with tokens first.. of its stage, under way together.
template <int kTokens>
__device__ __forceinline__ void multiply_chunk(uint64_t stage, const OperandA& a, int32_t first,
                                               float (&partial)[kTokens / 2]) {
  wgmma_fence();
#pragma unroll
  for (int32_t j = 0; j < 4; ++j) {
    const uint64_t b = advance_descriptor(stage, first * kChunk + 32 * j);
    Wgmma<kTokens, true>::run(partial, a[j], b, j > 0);
  }
  wgmma_commit();
}

template <class Form>
struct ConsumerView {
  const uint8_t* ring;
  uint32_t table;  // shared address, 256-byte aligned
  uint32_t ring_address;
  uint32_t full;  // barriers, 8 bytes each
  uint32_t empty;
  int32_t strip;  // of this warpgroup

  __device__ __forceinline__ void wait_full(const RingPlace& place) const {
    barrier_wait(full + place.barrier, place.parity);
  }
  __device__ __forceinline__ void release(const RingPlace& place, uint32_t loaded) const {
    const uint32_t lane = threadIdx.x & 31;
    __syncwarp();
    if (lane == 0) barrier_arrive(behind_loads(empty + place.barrier, loaded));
  }
  __device__ __forceinline__ void unpack(const RingPlace& place, OperandA& a) const {
    const uint8_t* stage = ring + place.bytes;
    const uint8_t* codes = stage + Form::kCodesAt + strip * Form::kStripBytes;
    unpack_fp4(load_codes(codes), table, a);
  }
  // Of the stage's tokens; warp-uniform.
  __device__ __forceinline__ uint64_t descriptor(const RingPlace& place) const {
    return swizzled_descriptor(warp_uniform(ring_address + place.bytes));
  }
  // Tokens first.. of the tile: sum += partial * scale of the token: the one order of the sum.
  // Returns bits of all scales.
  template <int kTokens>
  __device__ __forceinline__ uint32_t promote(const RingPlace& place, int32_t first,
                                              float (&partial)[kTokens / 2],
                                              float (&sum)[kTokens / 2]) const {
    wgmma_wait<0>();
    uint32_t loaded = 0;
    const uint8_t* stage = ring + place.bytes;
    const auto* scales =
        reinterpret_cast<const float2*>(stage + Form::kScalesAt) + first / 2 + (threadIdx.x & 3);
#pragma unroll
    for (int32_t j = 0; j < kTokens / 8; ++j) {
      const float2 scale = scales[4 * j];
      loaded |= __float_as_uint(scale.x);
      sum[4 * j] = fmaf(partial[4 * j], scale.x, sum[4 * j]);
      sum[4 * j + 1] = fmaf(partial[4 * j + 1], scale.y, sum[4 * j + 1]);
      sum[4 * j + 2] = fmaf(partial[4 * j + 2], scale.x, sum[4 * j + 2]);
      sum[4 * j + 3] = fmaf(partial[4 * j + 3], scale.y, sum[4 * j + 3]);
    }
    return loaded;
  }
};

// A value that the compiler keeps in a register: it would rather compute addresses again in every
// chunk, each from the thread's number and a special register of 30 cycles.
__device__ __forceinline__ uint32_t kept(uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}

// The same with addresses in registers: in shared memory, of a thread's things those in stage 0.
template <class Form>
struct KeptView {
  uint32_t ring;  // warp-uniform, as are the barriers
  uint32_t full;
  uint32_t empty;
  uint32_t table;  // 256-byte aligned
  uint32_t codes;
  uint32_t shifts;
  uint32_t scales;  // of the thread's two tokens in every 8
  int32_t strip;    // of this warpgroup

  __device__ __forceinline__ void wait_full(const RingPlace& place) const {
    barrier_wait(full + place.barrier, place.parity);
  }
  __device__ __forceinline__ void release(const RingPlace& place, uint32_t loaded) const {
    release_stage(empty + place.barrier, loaded);
  }
  __device__ __forceinline__ void unpack(const RingPlace& place, OperandA& a) const {
    const uint32_t shift = load_shared_word(shifts + place.bytes);  // its tables come first
    unpack_fp4(
        {load_shared_16(codes + place.bytes), load_shared_16(codes + place.bytes + 2048), shift},
        table, a);
  }
  __device__ __forceinline__ uint64_t descriptor(const RingPlace& place) const {
    return swizzled_descriptor(ring + place.bytes);
  }
  // Tokens first.. of the tile: sum += partial * scale of the token: the one order of the sum.
  // Half of the scales are read before the products are there; all would cost registers. Returns
  // bits of all of them.
  template <int kTokens>
  __device__ __forceinline__ uint32_t promote(const RingPlace& place, int32_t first,
                                              float (&partial)[kTokens / 2],
                                              float (&sum)[kTokens / 2]) const {
    constexpr int32_t kPairs = kTokens / 8;
    constexpr int32_t kBefore = (kPairs + 1) / 2;
    const uint32_t at = scales + place.bytes + first * 4;
    float2 scale[kPairs];
#pragma unroll
    for (int32_t j = 0; j < kBefore; ++j) scale[j] = load_shared_pair(at + j * 32);
    wgmma_wait<0>();
#pragma unroll
    for (int32_t j = kBefore; j < kPairs; ++j) scale[j] = load_shared_pair(at + j * 32);
#pragma unroll
    for (int32_t j = 0; j < kPairs; ++j) {
      sum[4 * j] = fmaf(partial[4 * j], scale[j].x, sum[4 * j]);
      sum[4 * j + 1] = fmaf(partial[4 * j + 1], scale[j].y, sum[4 * j + 1]);
      sum[4 * j + 2] = fmaf(partial[4 * j + 2], scale[j].x, sum[4 * j + 2]);
      sum[4 * j + 3] = fmaf(partial[4 * j + 3], scale[j].y, sum[4 * j + 3]);
    }
    return bits_of(scale);
  }
};

// bf16(row weight * swiglu) of two f32 sums; both products round to bf16 first, as the
// specification has it (5).
__device__ __forceinline__ float swiglu_of(float gate, float up, float limit, float weight) {
  const float a = fminf(__bfloat162float(__float2bfloat16(gate)), limit);
  const float b = fminf(fmaxf(__bfloat162float(__float2bfloat16(up)), -limit), limit);
  return weight * (__fdividef(a, 1.0F + __expf(-a)) * b);
}

// Four neighbouring outputs of a row, or two channels of gate and up.
template <ResultForm kResult>
__device__ __forceinline__ void store_quad(const ProductArguments& args, int64_t row,
                                           int32_t output, float4 value) {
  if constexpr (kResult == ResultForm::kSwiGlu) {
    const int32_t channel = output / 2;
    if (channel >= args.outputs) return;
    const float weight = args.row_weight == nullptr ? 1.0F : args.row_weight[row];
    *reinterpret_cast<__nv_bfloat162*>(static_cast<__nv_bfloat16*>(args.y) + row * args.y_stride +
                                       channel) =
        __floats2bfloat162_rn(swiglu_of(value.x, value.y, args.limit, weight),
                              swiglu_of(value.z, value.w, args.limit, weight));
  } else if (output < args.outputs) {
    if constexpr (kResult == ResultForm::kF32) {
      *reinterpret_cast<float4*>(static_cast<float*>(args.y) + row * args.y_stride + output) =
          value;
    } else {
      auto* y = reinterpret_cast<__nv_bfloat162*>(static_cast<__nv_bfloat16*>(args.y) +
                                                  row * args.y_stride + output);
      y[0] = __floats2bfloat162_rn(value.x, value.y);
      y[1] = __floats2bfloat162_rn(value.z, value.w);
    }
  }
}

// Writes one warpgroup's strip: `sum` is its 64 slots x tokens first..first + kTokens. Each thread
// has two neighbouring outputs (or a gate and its up) of the tokens 8 j + 2 t and one more.
template <ResultForm kResult, int kTokens>
__device__ __forceinline__ void store_strip(const ProductArguments& args, const TokenBlock& block,
                                            int32_t strip_slot, int32_t first, float2 row_scale,
                                            float (&sum)[kTokens / 2]) {
  const int32_t lane = threadIdx.x & 31;
  const int32_t g = lane >> 2;
  const int32_t token = first + 2 * (lane & 3);
  const int32_t warp_slot = strip_slot + ((threadIdx.x & 127) >> 5) * 16;
  if constexpr (kResult == ResultForm::kSwiGlu) {
    // Neighbours exchange, so that each lane has two channels of one token.
    const bool odd = (g & 1) != 0;
    const int32_t channel = (warp_slot / 2 + g) & ~1;
    const int32_t mine = token + (odd ? 1 : 0);
    const int32_t left = channel < args.outputs ? block.rows - mine : 0;
    auto* y = static_cast<__nv_bfloat16*>(args.y) +
              static_cast<int64_t>(block.row + mine) * args.y_stride + channel;
    // Readable behind the last row (ProductArguments): no branch for a weight nobody stores.
    const float* weights =
        args.row_weight == nullptr ? nullptr : args.row_weight + block.row + token;
    // All before the first store, which no load of what was written can pass.
    __nv_bfloat162 pair[kTokens / 8];
#pragma unroll
    for (int32_t j = 0; j < kTokens / 8; ++j) {
      float2 weight = {1.0F, 1.0F};
      if (weights != nullptr) weight = *reinterpret_cast<const float2*>(weights + 8 * j);
      const float low =
          swiglu_of(sum[4 * j] * row_scale.x, sum[4 * j + 2] * row_scale.y, args.limit, weight.x);
      const float high = swiglu_of(sum[4 * j + 1] * row_scale.x, sum[4 * j + 3] * row_scale.y,
                                   args.limit, weight.y);
      const float other = __shfl_xor_sync(0xffffffffU, odd ? low : high, 4);
      pair[j] = odd ? __floats2bfloat162_rn(other, high) : __floats2bfloat162_rn(low, other);
    }
#pragma unroll
    for (int32_t j = 0; j < kTokens / 8; ++j) {
      if (8 * j < left) *reinterpret_cast<__nv_bfloat162*>(y + 8 * j * args.y_stride) = pair[j];
    }
  } else {
    const int32_t output = warp_slot + 2 * g;
    const int32_t left = output < args.outputs ? block.rows - token : 0;
    const int64_t at = static_cast<int64_t>(block.row + token) * args.y_stride + output;
#pragma unroll
    for (int32_t j = 0; j < kTokens / 8; ++j) {
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) {
        const float low = sum[4 * j + i] * row_scale.x;
        const float high = sum[4 * j + 2 + i] * row_scale.y;
        const int64_t place = at + (8 * j + i) * args.y_stride;
        if (8 * j + i >= left) continue;
        if constexpr (kResult == ResultForm::kF32) {
          *reinterpret_cast<float2*>(static_cast<float*>(args.y) + place) = {low, high};
        } else {
          *reinterpret_cast<__nv_bfloat162*>(static_cast<__nv_bfloat16*>(args.y) + place) =
              __floats2bfloat162_rn(low, high);
        }
      }
    }
  }
}

// The loop of few tokens: several warpgroups hide each other's latencies, and registers are few.
template <class Form, int kTokens, class View>
__device__ __forceinline__ void consume_tile(const ProductArguments& args, const View& view,
                                             RingPlace& place, const TokenBlock& block,
                                             int32_t strip_slot, float2 row_scale) {
  // Unpacked weights leave the registers for half of the products at a time.
  constexpr int kParts = kTokens > 64 ? 2 : 1;
  constexpr int kPart = kTokens / kParts;
  float sum[kParts][kPart / 2];
#pragma unroll
  for (int32_t i = 0; i < kTokens / 2; ++i) sum[i / (kPart / 2)][i % (kPart / 2)] = 0.0F;
  for (int32_t chunk = 0; chunk < args.chunks; ++chunk) {
    OperandA a;
    const uint64_t stage = view.descriptor(place);
    view.wait_full(place);
    view.unpack(place, a);
    uint32_t loaded = 0;
#pragma unroll
    for (int32_t part = 0; part < kParts; ++part) {
      float partial[kPart / 2];
      multiply_chunk<kPart>(stage, a, part * kPart, partial);
      loaded |= view.template promote<kPart>(place, part * kPart, partial, sum[part]);
    }
    view.release(place, loaded);
    place.template advance<Form>();
  }
#pragma unroll
  for (int32_t part = 0; part < kParts; ++part) {
    store_strip<Form::kResult, kPart>(args, block, strip_slot, part * kPart, row_scale, sum[part]);
  }
}

// A tile of which this warpgroup has no strip.
template <class Form, class View>
__device__ __forceinline__ void pass_tile(const ProductArguments& args, const View& view,
                                          RingPlace& place) {
  for (int32_t chunk = 0; chunk < args.chunks; ++chunk) {
    view.wait_full(place);
    view.release(place, 0);
    place.template advance<Form>();
  }
}

// The threads that copy: one issues the weights, another one the activations.
template <class Form>
__device__ __forceinline__ void produce(const ProductArguments& args, bool copies_weights,
                                        uint32_t ring, uint32_t full, uint32_t empty, int32_t tiles,
                                        int32_t blocks) {
  RingPlace place;
  for (int32_t round = 0;; ++round) {
    const TileShare share = share_at<Form>(round, tiles * blocks);
    if (share.count == 0) break;
    const TokenBlock block = block_at(args, share.item / tiles, Form::kTokens);
    const int32_t strip = share.item % tiles * Form::kStrips + share.first;
    const uint32_t copied = share.count * Form::kStripBytes;
    const uint32_t codes_at = Form::kCodesAt + share.first * Form::kStripBytes;
    const uint8_t* weights =
        args.weights + block.expert * args.expert_bytes +
        (static_cast<int64_t>(strip / 4) * args.chunks * 4 + strip % 4) * Form::kStripBytes;
    const uint32_t rows = (block.rows + 7) & ~7;
    const uint8_t* x = args.x + static_cast<int64_t>(block.row) * kChunk;
    const float* x_scale = args.x_scale + block.row;
    for (int32_t chunk = 0; chunk < args.chunks; ++chunk) {
      const uint32_t stage = ring + place.bytes;
      const uint32_t barrier = full + place.barrier;
      // The ring is full for most of the time, and consumers want the issue slots.
      barrier_wait_asleep(empty + place.barrier, place.parity ^ 1);
      if (copies_weights) {
        barrier_expect(barrier, copied);
        bulk_load(stage + codes_at, weights, copied, barrier);
        weights += 4 * Form::kStripBytes;
      } else {
        barrier_expect(barrier, rows * (kChunk + 4));
        bulk_load(stage, x, rows * kChunk, barrier);
        bulk_load(stage + Form::kScalesAt, x_scale, rows * 4, barrier);
        x += args.x_rows * kChunk;
        x_scale += args.x_rows;
      }
      place.template advance<Form>();
    }
  }
}

// The smallest compiled tile that holds the block's rows.
template <class Form, int kTokens, int... kMore, class View>
__device__ __forceinline__ void consume_fitting(const ProductArguments& args, const View& view,
                                                RingPlace& place, const TokenBlock& block,
                                                int32_t strip_slot, float2 row_scale) {
  if (sizeof...(kMore) == 0 || block.rows <= kTokens) {
    consume_tile<Form, kTokens>(args, view, place, block, strip_slot, row_scale);
  } else if constexpr (sizeof...(kMore) > 0) {
    consume_fitting<Form, kMore...>(args, view, place, block, strip_slot, row_scale);
  }
}

template <class Form>
__global__ void __launch_bounds__(Form::kThreads, 1)
    grouped_product_kernel(const __grid_constant__ ProductArguments args) {
  extern __shared__ uint8_t shared_memory[];
  const uint32_t begin = shared_address(shared_memory);
  uint8_t* ring = shared_memory + (((begin + 1023) & ~1023U) - begin);
  uint8_t* table = ring + Form::kStages * Form::kStageBytes;
  const uint32_t full = shared_address(table) + 128;
  const uint32_t empty = full + Form::kStages * 8;
  const int32_t warp = threadIdx.x >> 5;
  const int32_t lane = threadIdx.x & 31;

  fill_shift_table(table);
  if (threadIdx.x == 0) {
    make_ring<Form>(full, empty, 2, Form::kStrips * 4);  // weights and activations
    barrier_init_fence();
  }
  __syncthreads();
  await_earlier();

  const int32_t tiles = args.slots / (kStripSlots * Form::kStrips);
  const int32_t blocks = block_total(args, Form::kTokens);
  if (warp >= Form::kStrips * 4) {
    registers_give<Form::kProducerRegisters>();
    if (warp < Form::kStrips * 4 + 2 && lane == 0) {
      produce<Form>(args, warp == Form::kStrips * 4, shared_address(ring), full, empty, tiles,
                    blocks);
    }
    __syncwarp();
  } else {
    registers_take<Form::kConsumerRegisters>();
    const auto view = [&] {
      if constexpr (Form::kKeeps) {
        const int32_t thread = threadIdx.x & 127;
        const uint32_t base = warp_uniform(kept(shared_address(ring)));
        const uint32_t mine = warp_uniform(warp / 4);
        const uint32_t codes = base + Form::kCodesAt + mine * Form::kStripBytes;
        return KeptView<Form>{
            .ring = base,
            .full = base + Form::kStages * Form::kStageBytes + 128,
            .empty = base + Form::kStages * Form::kStageBytes + 128 + Form::kStages * 8,
            .table = base + Form::kStages * Form::kStageBytes,
            .codes = kept(codes + thread * 16),
            .shifts = kept(codes + kFp4Codes + (thread >> 2) * 4),
            .scales = kept(base + Form::kScalesAt + (thread & 3) * 8),
            .strip = static_cast<int32_t>(mine),
        };
      } else {
        return ConsumerView<Form>{ring,
                                  shared_address(table),
                                  shared_address(ring),
                                  full,
                                  empty,
                                  static_cast<int32_t>(warp_uniform(warp / 4))};
      }
    }();
    RingPlace place;
    for (int32_t round = 0;; ++round) {
      const TileShare share = share_at<Form>(round, tiles * blocks);
      if (share.count == 0) break;
      if (view.strip < share.first || view.strip >= share.first + share.count) {
        pass_tile<Form>(args, view, place);
        continue;
      }
      const TokenBlock block = block_at(args, share.item / tiles, Form::kTokens);
      const int32_t tile = share.item % tiles;
      const int32_t strip_slot = (tile * Form::kStrips + view.strip) * kStripSlots;
      const float* scales = args.row_scale + static_cast<int64_t>(block.expert) * args.slots +
                            strip_slot + (warp % 4) * 16 + (lane >> 2);
      const float2 row_scale = {load_constant(scales), load_constant(scales + 8)};
      static_assert(Form::kTokens == 80);
      if constexpr (Form::kKeeps) {
        consume_fitting<Form, 8, 16, 32, 40, 48, 56, 64, 80>(args, view, place, block, strip_slot,
                                                             row_scale);
      } else {
        consume_fitting<Form, 8, 16, 32, 64, 80>(args, view, place, block, strip_slot, row_scale);
      }
    }
  }
}

}  // namespace galley::kernels::cuda
