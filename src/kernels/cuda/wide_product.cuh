// The kernel of wide weights with exact bf16 inputs: the attention's output projection by groups
// (fp8 tiles) and the head (bf16), for every number of rows.
//
// Floor. The head's 1.3 GB take 290 us, one layer's 34 MB of fp8 7.5 us (9.3 us by this kernel's
// copies alone, a launch included); from about 160 rows of bf16 on, or 80 of fp8, the tensor cores
// take longer: 740 TFLOP/s in short bursts, 540 to 690 where power ends.
//
// Design. Weights are A of wgmma, 64 outputs a warpgroup, tokens are B: few tokens waste nothing.
// These weights are wide enough that their strips alone fill the chip, so no sum is split, and its
// order, 16 of K at a time, is the same for every number of tokens. The copy engine brings boxes
// of 64 of K of weights and tokens, as they lie in memory, into a ring of stages; of many tokens
// clusters of two blocks with neighbouring outputs share the copies. bf16 weights are multiplied
// from there. fp8 codes are picked up as wgmma's registers want them and become bf16 there,
// exactly: a code's exponent and mantissa moved into a bf16's are 2^-120 of its value, and one
// product with 2^120 of its tile's scale is the rest (two, where that is no bf16). That takes 6
// operations for two codes and happens while the chunk before it is multiplied; what the fold of
// other weights would save is not worth a second layout of them. Rows of wgmma are outputs in an
// order in which a thread has two neighbouring ones of a token, and in which eight rows of 64 bytes
// lie in different banks.
//
// Measured on one H200, weights from beyond the L2. The head, with its f32 results: 300 us at 4
// rows, 316 at 64, 357 at 128, 652 TFLOP/s at 384 rows, 693 at 512. wo_a: 18 us up to 8 rows, 20 at
// 64, 23 at 128, 35 at 256, 50 at 512 (680 TFLOP/s); 16,384 rows 1.6 ms after a rest, 2.0 ms after
// work. The general kernel took 40, 63 and 398 us at 4, 64 and 384 rows and 8.5 ms at 16,384.
//
// Tried, for wo_a:
// - clusters of four for few rows: 128 blocks of them are not resident at once, twice as slow;
// - tiles of 128 tokens for many rows: 546 TFLOP/s at 16,384 instead of 680; no clusters: the same
//   speed with 256 tokens, 20 % slower with 128;
// - few rows (up to 32 are wide_turns.cuh's now): stages of four chunks instead of two: 12.9 us
// for 14.2 at 8 rows, 14.0 for 15.8 at
//   32, 15.9 for 16.8 at 64, and 36 for 21 at 128, whose ring then has two stages. In a chain of a
//   layer's projections 1.4 us less at 8 rows and 1.1 at 16, but 0.5 more at 32 and 5 at 64. Codes
//   read a stage ahead of their use: nothing. Two warpgroups with 32 outputs each, half of wgmma's
//   rows zero: 8 to 18 % slower. y in Q8 by the clusters, whose 128 outputs have one scale, behind
//   a meeting of both blocks: 15.4 us for 15.6 with a launch of its own at 8 rows, 18.2 for 18.9 at
//   64, but 46 instead of 39 with wo_b inside a decode step of 64 rows. Three warpgroups that write
//   bf16 to shared memory and one that multiplies it: 15 to 17 us, but wrong at times, for a reason
//   that was not found; its parts alone: without products 12.8 us, without stores either 10.3.
//
// Later, wo_a: 192 rows by two blocks of 96, two chunks a stage: 27 us, 34 by two of 128; 256 rows
// 33 in stages of two chunks, 34.5 of one, but 384 rows (two of 192) 44 and 42. Four warpgroups of
// 64 outputs by 64 tokens: 42 us at 256 rows, 85 at 384; by 96 they spill.
//
// Later, wo_a of few rows, where copies alone take 14.3 us of 17 at 64 rows without clusters, and
// 15.2 with clusters of two:
// - warpgroups that widen to shared memory and one or two that multiply from there, with rings for
//   codes, their bf16 and tokens (right with a fence of the proxies by each thread): 18.6 to 19.3
//   us for 17.1 at 64 rows, 23 to 24 for 20.9 at 128, 39 for 33 at 256.
// - a stage's boxes as one box of three dimensions: 12.3 us for 11.8 at 8 rows, 22.3 for 21 at 128.
// - boxes of codes 128 wide instead of 64: 12.2 to 12.6 for 11.8 at 8 rows, the same at 64.
// - rows of x padded by 16 bytes to 8 KB, so that they lie in other places of the L2: nothing.
//
// Later still, wo_a without clusters up to 384 rows and in finer steps, us: 33 to 48 rows 16.8
// -> 15.5 (14.7 in stages of four chunks, but see above what those do in a chain), 64 16.7 -> 16.1,
// 80 20.9 -> 17.3, 96 20.8 -> 18.3, 128 21.0 -> 20.3, 160 27.2 -> 26.2, 256 33.0 -> 31.8, 320 43.7
// -> 39.7, 384 43.8 -> 42.7; at 512 clusters are 1 % faster. Two warpgroups by 64 tokens: 24 at 96
// and 128 rows.
//
// What limits it now: power for many rows. For few rows of fp8 a warpgroup's own latencies, about
// 200 to 250 ns for 64 of K whatever the number of tokens: codes read two at a time, widened by one
// warp a scheduler. Codes in wgmma's order in memory, four a load, would be the next step.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/ring_place.cuh"
#include "kernels/cuda/sm90.cuh"
#include "kernels/cuda/sm90_memory.cuh"
#include "kernels/cuda/tensor_map.cuh"
#include "kernels/cuda/wgmma_bf16.cuh"
#include "kernels/tensor.h"

namespace galley::kernels::cuda {

constexpr int kWideStrip = 64;      // outputs of a warpgroup
constexpr int kWideK = 64;          // of a stage
constexpr int kWideInMax = 8192;    // of fp8: room for the factors of its scales
constexpr int kWideLastCode = 134;  // of scales whose 2^120-fold is a bf16

struct WideArguments {
  CUtensorMap weights;  // boxes of a block's outputs x 64
  CUtensorMap x;        // boxes of a block's part of the tokens x 64
  const uint8_t* scale;
  int64_t scale_stride;
  int32_t chunks;  // of 64
  int32_t out;
  int32_t rows;
  int32_t groups;
  int32_t group_tiles;   // of a cluster's outputs
  int32_t token_blocks;  // of kTokens
  int32_t panel_blocks;  // token blocks that go through a group's weights together
  void* y;
  int64_t y_stride;
  bool f32;
  bool pairs;  // two neighbouring outputs of a row can be stored at once
};

// kStrips warpgroups of 64 outputs, two warps that copy, kTokens tokens, clusters of kCluster
// blocks with neighbouring outputs and the same tokens.
template <bool kIsFp8, int kStripsIn, int kTokensIn, int kClusterIn, int kBatchIn = 1,
          bool kHalfIn = false>
struct WideForm {
  static constexpr bool kFp8 = kIsFp8;
  static constexpr int kStrips = kStripsIn;
  static constexpr int kTokens = kTokensIn;
  static constexpr int kCluster = kClusterIn;
  // Registers are dealt in warpgroups: large sums take the copying one's too.
  static constexpr bool kLarge = kStrips == 2 && kTokens >= (kFp8 ? 128 : 192);
  static constexpr int kThreads = kStrips * 128 + (kLarge ? 128 : 64);
  static constexpr bool kHalf = kHalfIn;  // strips of 32: of wgmma's 64 rows every second 8 are 0
  static constexpr int kStripOutputs = kHalf ? kWideStrip / 2 : kWideStrip;
  static constexpr int kOutputs = kStrips * kStripOutputs;
  static constexpr int kBoxTokens = kTokens / kCluster;
  static constexpr int kWeightsAt = kTokens * kWideK * 2;
  static constexpr int kStripBytes = kStripOutputs * kWideK * (kFp8 ? 1 : 2);
  static constexpr int kPartBytes = kWeightsAt + kStrips * kStripBytes;  // 64 of K
  static constexpr int kBatch = kBatchIn;                                // of them a stage
  static constexpr int kStageBytes = kBatch * kPartBytes;
  // Two factors of bf16 and two more, for each chunk and warp.
  static constexpr int kFactorBytes = kFp8 ? kStrips * 4 * (kWideInMax / kWideK) * 8 : 0;
  static constexpr int kRoom = 227 * 1024 - 2048 - kFactorBytes;
  static constexpr int kStages = kRoom / kStageBytes < 32 ? kRoom / kStageBytes : 32;
  static constexpr int kSharedBytes = kStages * kStageBytes + kFactorBytes + 2048;
  static_assert(kBoxTokens % 8 == 0 && kBoxTokens <= 256);
};

// What a cluster works on next: outputs of one group times one block of tokens.
struct WideItem {
  int32_t group;
  int32_t tile;  // of the cluster's outputs, inside the group
  int32_t token;
};

template <class Form>
__device__ __forceinline__ WideItem wide_item(const WideArguments& args, int32_t item) {
  const int32_t group_items = args.group_tiles * args.token_blocks;
  const int32_t group = item / group_items;
  item -= group * group_items;
  const int32_t panel_items = args.panel_blocks * args.group_tiles;
  const int32_t panel = item / panel_items;
  item -= panel * panel_items;
  const int32_t first = panel * args.panel_blocks;
  const int32_t blocks = min(args.panel_blocks, args.token_blocks - first);
  const int32_t tile = item / blocks;
  return {group, tile, (first + item - tile * blocks) * Form::kTokens};
}

template <class Form>
__device__ __forceinline__ int32_t wide_rank() {
  return Form::kCluster > 1 ? static_cast<int32_t>(cluster_rank()) : 0;
}

// The first output that this block of the cluster makes.
template <class Form>
__device__ __forceinline__ int32_t wide_output(const WideArguments& args, const WideItem& item) {
  return ((item.group * args.group_tiles + item.tile) * Form::kCluster + wide_rank<Form>()) *
         Form::kOutputs;
}

__device__ __forceinline__ uint32_t load_shared_half(uint32_t at) {
  uint16_t value;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(at) : "memory");
  return value;
}

// Whether it holds for a thread of this warpgroup; one barrier each.
__device__ __forceinline__ bool warpgroup_any(bool mine, int32_t barrier) {
  uint32_t any;
  asm volatile(
      "{\n.reg .pred mine, any;\n"
      "setp.ne.b32 mine, %1, 0;\n"
      "barrier.red.or.pred any, %2, 128, mine;\n"
      "selp.b32 %0, 1, 0, any;\n}\n"
      : "=r"(any)
      : "r"(static_cast<uint32_t>(mine)), "r"(barrier)
      : "memory");
  return any != 0;
}

// Registers of four wgmmas, 64 of K: [16 of K][register].
using WideOperand = uint32_t[4][4];

// Two codes (bytes of `codes` named by the selector) as bf16 times 2^-120, exactly: exponent and
// mantissa moved into their places.
template <uint32_t kSelector = 0x4140>
__device__ __forceinline__ uint32_t spread_codes(uint32_t codes, uint32_t& most) {
  const uint32_t apart = __byte_perm(codes, 0, kSelector);
  const uint32_t magnitude = apart & 0x007F007FU;
  most = __vmaxs2(most, magnitude);
  return apart * 256U - magnitude * 240U;  // in each half: sign 2^15 + magnitude 2^4
}

// One thread's view of a warpgroup's strip of fp8 weights.
template <bool kHalf>
struct Fp8Strip {
  static constexpr int kRows = kHalf ? 1 : 2;  // of a thread
  uint32_t upper[4];  // place of the first row's first code in a stage, by 16 of K
  int32_t lower;      // from there to the row beside it
  uint32_t factors;   // shared address, 8 bytes a chunk
  uint32_t most[kRows] = {};

  // Rows g and g + 8 of wgmma are outputs 2 g and 2 g + 1, so that a thread has two neighbouring
  // outputs of a token: the even one first in lanes below 16, last in the others. So the eight
  // rows that a load reads lie in different banks: rows of 64 bytes, pieces of 16 bytes exchanged
  // by row / 2 mod 4. In half strips row g is output g.
  __device__ __forceinline__ Fp8Strip(uint32_t codes_at, uint32_t factors_in)
      : factors(factors_in) {
    const int32_t warp = (threadIdx.x >> 5) & 3;
    const int32_t lane = threadIdx.x & 31;
    const int32_t g = lane >> 2;
    const int32_t row = warp * 8 * kRows + (kHalf ? g : 2 * g + (g >> 2));
#pragma unroll
    for (int32_t j = 0; j < 4; ++j) {
      upper[j] = codes_at + row * kWideK + ((j ^ ((row >> 1) & 3)) << 4) + 2 * (lane & 3);
    }
    lower = g < 4 ? kWideK : -kWideK;
  }

  template <bool kTwice>
  __device__ __forceinline__ void widen(uint32_t part, int32_t chunk, WideOperand& a) {
    uint2 both;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                 : "=r"(both.x), "=r"(both.y)
                 : "r"(factors + chunk * 8)
                 : "memory");
    const uint32_t factor[2] = {__byte_perm(both.x, 0, 0x1010), __byte_perm(both.x, 0, 0x3232)};
    const uint32_t more[2] = {__byte_perm(both.y, 0, 0x1010), __byte_perm(both.y, 0, 0x3232)};
#pragma unroll
    for (int32_t j = 0; j < 4; ++j) {
      uint32_t pair[2][kRows];  // by 8 of K
#pragma unroll
      for (int32_t r = 0; r < kRows; ++r) {
        const uint32_t at = part + upper[j] + r * lower;
        pair[0][r] = load_shared_half(at);
        pair[1][r] = load_shared_half(at + 8);
      }
#pragma unroll
      for (int32_t r = 0; r < 4; ++r) {
        if (r % 2 >= kRows) {
          a[j][r] = 0;
          continue;
        }
        a[j][r] =
            multiply_bf16x2(spread_codes(pair[r / 2][r % kRows], most[r % kRows]), factor[j / 2]);
        if constexpr (kTwice) a[j][r] = multiply_bf16x2(a[j][r], more[j / 2]);
      }
    }
  }
};

// The factors of the scales of this warp's 16 outputs, and whether one needs two of them.
__device__ __forceinline__ bool make_factors(const WideArguments& args, int32_t output,
                                             uint32_t factors) {
  const uint8_t* scale = args.scale + min(output, args.out - 1) / 32 * args.scale_stride;
  bool large = false;
  __syncwarp();  // the tile before is done with them
  for (int32_t chunk = threadIdx.x & 31; chunk < args.chunks; chunk += 32) {
    uint32_t factor = 0;
    uint32_t more = 0;
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
      const int32_t code = scale[2 * chunk + half];
      const int32_t above = max(code - kWideLastCode, 0);
      const uint32_t one = code == 255 ? 0x7FC0 : (code - above + 120) << 7;
      factor |= one << (16 * half);
      more |= static_cast<uint32_t>(above + 127) << (7 + 16 * half);
      large |= above > 0;
    }
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(factors + chunk * 8), "r"(factor),
                 "r"(more)
                 : "memory");
  }
  __syncwarp();
  return large;
}

// A code of NaN makes its output NaN for every token.
template <int kSums>
__device__ __forceinline__ void make_nans(bool upper, bool lower, float (&sum)[kSums]) {
  if (!upper && !lower) return;
#pragma unroll
  for (int32_t i = 0; i < kSums; ++i) {
    if (i / 2 % 2 == 0 ? upper : lower) sum[i] = __uint_as_float(0x7FC00000U);
  }
}
template <bool kHalf, int kSums>
__device__ __forceinline__ void spread_nan(const Fp8Strip<kHalf>& codes, float (&sum)[kSums]) {
  constexpr uint32_t kNan = 0x7F;
  uint32_t most[2] = {codes.most[0], codes.most[kHalf ? 0 : 1]};
#pragma unroll
  for (uint32_t& one : most) {
    one = max(one & 0xFFFFU, one >> 16);
    one = max(one, __shfl_xor_sync(0xFFFFFFFFU, one, 1));
    one = max(one, __shfl_xor_sync(0xFFFFFFFFU, one, 2));
  }
  make_nans(most[0] >= kNan, most[1] >= kNan, sum);
}

template <class Form>
struct WideConsumer {
  uint32_t ring;
  uint32_t full;
  uint32_t empty;
  int32_t strip;

  __device__ __forceinline__ void wait(const RingPlace& place) const {
    barrier_wait(full + place.barrier, place.parity);
  }
  __device__ __forceinline__ void release(uint32_t barrier) const {
    const uint32_t lane = threadIdx.x & 31;
    __syncwarp();
    if constexpr (Form::kCluster > 1) {
      if (lane < Form::kCluster) barrier_arrive_remote(empty + barrier, lane);
    } else {
      if (lane == 0) barrier_arrive(empty + barrier);
    }
  }
  __device__ __forceinline__ uint64_t tokens(const RingPlace& place) const {
    return swizzled_descriptor(warp_uniform(ring + place.bytes));
  }

  // fp8: the next stage's codes become bf16 while this one is multiplied. An even number of stages.
  template <bool kTwice>
  __device__ __forceinline__ void sum_fp8(const WideArguments& args, Fp8Strip<Form::kHalf>& strip,
                                          RingPlace& place, float (&sum)[Form::kTokens / 2]) const {
    constexpr int kBatch = Form::kBatch;
    WideOperand even[kBatch];
    WideOperand odd[kBatch];
    const auto widen = [&](int32_t chunk, WideOperand(&a)[kBatch]) {
      if (chunk >= args.chunks) return;
      wait(place);
#pragma unroll
      for (int32_t part = 0; part < kBatch; ++part) {
        strip.template widen<kTwice>(ring + place.bytes + part * Form::kPartBytes, chunk + part,
                                     a[part]);
      }
    };
    const auto multiply = [&](const WideOperand(&a)[kBatch], bool first) {
      const uint64_t b = tokens(place);
      wgmma_fence();
#pragma unroll
      for (int32_t j = 0; j < 4 * kBatch; ++j) {
        WgmmaBf16<Form::kTokens>::run(sum, a[j / 4][j % 4],
                                      advance_descriptor(b, j / 4 * Form::kPartBytes + j % 4 * 32),
                                      !first || j > 0);
      }
      wgmma_commit();
    };
    uint32_t before = 0;
    widen(0, even);
#pragma unroll 1
    for (int32_t chunk = 0; chunk < args.chunks; chunk += 2 * kBatch) {
      multiply(even, chunk == 0);
      wgmma_wait<1>();
      if (chunk > 0) release(before);
      before = place.barrier;
      place.advance<Form>();
      widen(chunk + kBatch, odd);
      multiply(odd, false);
      wgmma_wait<1>();
      release(before);
      before = place.barrier;
      place.advance<Form>();
      widen(chunk + 2 * kBatch, even);
    }
    wgmma_wait<0>();
    hold_registers(sum);
    release(before);
  }

  __device__ __forceinline__ void sum_bf16(const WideArguments& args, RingPlace& place,
                                           float (&sum)[Form::kTokens / 2]) const {
    const uint32_t a = warp_uniform(Form::kWeightsAt + strip * Form::kStripBytes);
    uint32_t before = 0;
#pragma unroll 1
    for (int32_t chunk = 0; chunk < args.chunks; ++chunk) {
      wait(place);
      const uint64_t b = tokens(place);
      wgmma_fence();
#pragma unroll
      for (int32_t j = 0; j < 4; ++j) {
        WgmmaBf16<Form::kTokens>::run(sum, advance_descriptor(b, a + 32 * j),
                                      advance_descriptor(b, 32 * j), chunk > 0 || j > 0);
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (chunk > 0) release(before);
      before = place.barrier;
      place.advance<Form>();
    }
    wgmma_wait<0>();
    hold_registers(sum);
    release(before);
  }
};

// Which two outputs of its 16 a thread's two rows of wgmma are.
enum class WidePairs : uint8_t {
  kApart,       // g and g + 8
  kNeighbours,  // 2 g and 2 g + 1
  kSwapped,     // the same, the other way round from lane 16 on
  kOne,         // g of 8, and none
};

// The strip's sums as rows of y. Each thread has two outputs of the tokens 8 j + 2 q and one more.
template <WidePairs kPairs, int kTokens>
__device__ __forceinline__ void store_wide(const WideArguments& args, int32_t strip_output,
                                           int32_t token, float (&sum)[kTokens / 2]) {
  const int32_t warp = (threadIdx.x >> 5) & 3;
  const int32_t lane = threadIdx.x & 31;
  const int32_t g = lane >> 2;
  constexpr bool kNeighbours = kPairs == WidePairs::kNeighbours || kPairs == WidePairs::kSwapped;
  const bool swapped = kPairs == WidePairs::kSwapped && g >= 4;
  constexpr bool kOne = kPairs == WidePairs::kOne;
  const int32_t low = strip_output + warp * (kOne ? 8 : 16) + (kNeighbours ? 2 * g : g);
  const int32_t high = kOne ? args.out : low + (kNeighbours ? 1 : 8);
  if (low >= args.out) return;
  const int32_t left = args.rows - token - 2 * (lane & 3);
  const int64_t row = (token + 2 * (lane & 3)) * args.y_stride;
  if (args.f32) {
    float* y = static_cast<float*>(args.y) + row;
#pragma unroll
    for (int32_t j = 0; j < kTokens / 8; ++j) {
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) {
        if (8 * j + i < left) {
          float* to = y + (8 * j + i) * args.y_stride;
          to[swapped ? high : low] = sum[4 * j + i];
          if (high < args.out) to[swapped ? low : high] = sum[4 * j + 2 + i];
        }
      }
    }
    return;
  }
  auto* y = static_cast<__nv_bfloat16*>(args.y) + row;
#pragma unroll
  for (int32_t j = 0; j < kTokens / 8; ++j) {
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      const float a = sum[4 * j + i];
      const float b = sum[4 * j + 2 + i];
      const __nv_bfloat162 two = __floats2bfloat162_rn(swapped ? b : a, swapped ? a : b);
      if (8 * j + i < left) {
        __nv_bfloat16* to = y + (8 * j + i) * args.y_stride;
        if (kNeighbours && args.pairs) {
          *reinterpret_cast<__nv_bfloat162*>(to + low) = two;
        } else {
          to[low] = two.x;
          if (high < args.out) to[high] = two.y;
        }
      }
    }
  }
}

template <class Form, bool kTwice>
__device__ __forceinline__ void wide_fp8(const WideArguments& args, const WideConsumer<Form>& view,
                                         uint32_t factors, int32_t output, int32_t token,
                                         RingPlace& place) {
  float sum[Form::kTokens / 2];
  Fp8Strip<Form::kHalf> codes(Form::kWeightsAt + view.strip * Form::kStripBytes, factors);
  view.template sum_fp8<kTwice>(args, codes, place, sum);
  spread_nan(codes, sum);
  constexpr WidePairs kPairs = Form::kHalf ? WidePairs::kOne : WidePairs::kSwapped;
  store_wide<kPairs, Form::kTokens>(args, output, token, sum);
}

// The threads that copy. One brings weights, which are constant: the ring fills with them while an
// earlier kernel makes x. The other one brings this block's part of the tokens to the whole
// cluster, behind that kernel.
template <class Form>
__device__ __forceinline__ void produce_wide(const WideArguments& args, bool copies_weights,
                                             uint32_t ring, uint32_t full, uint32_t empty,
                                             int32_t items) {
  constexpr uint32_t kTokenBytes = Form::kWeightsAt;
  constexpr uint32_t kWeightBytes = Form::kPartBytes - Form::kWeightsAt;
  prefetch_map(copies_weights ? args.weights : args.x);
  if (!copies_weights) await_earlier();
  const int32_t first = wide_rank<Form>() * Form::kBoxTokens;
  RingPlace place;
  for (int32_t index = blockIdx.x / Form::kCluster; index < items;
       index += gridDim.x / Form::kCluster) {
    const WideItem item = wide_item<Form>(args, index);
    const int32_t output = wide_output<Form>(args, item);
    const int32_t column = item.group * args.chunks * kWideK;
    for (int32_t chunk = 0; chunk < args.chunks; chunk += Form::kBatch) {
      barrier_wait(empty + place.barrier, place.parity ^ 1);
      const uint32_t barrier = full + place.barrier;
      barrier_expect(barrier, Form::kBatch * (copies_weights ? kWeightBytes : kTokenBytes));
#pragma unroll
      for (int32_t part = 0; part < Form::kBatch; ++part) {
        const uint32_t to = ring + place.bytes + part * Form::kPartBytes;
        const int32_t k = (chunk + part) * kWideK;
        if (copies_weights) {
          box_load(to + Form::kWeightsAt, args.weights, k, output, barrier);
        } else if constexpr (Form::kCluster > 1) {
          constexpr uint16_t kAll = (1 << Form::kCluster) - 1;
          box_load_multicast(to + first * kWideK * 2, args.x, column + k, item.token + first,
                             barrier, kAll);
        } else {
          box_load(to, args.x, column + k, item.token, barrier);
        }
      }
      place.advance<Form>();
    }
  }
}

template <class Form>
__global__ void __launch_bounds__(Form::kThreads, 1)
    wide_product_kernel(const __grid_constant__ WideArguments args) {
  extern __shared__ uint8_t shared_memory[];
  const uint32_t ring = (shared_address(shared_memory) + 1023) & ~1023U;
  const uint32_t factors = ring + Form::kStages * Form::kStageBytes;
  const uint32_t full = factors + Form::kFactorBytes;
  const uint32_t empty = full + Form::kStages * 8;
  const int32_t warp = static_cast<int32_t>(warp_uniform(threadIdx.x >> 5));

  if (threadIdx.x == 0) {
    make_ring<Form>(full, empty, 2, Form::kStrips * 4 * Form::kCluster);  // weights and tokens
    barrier_init_fence();
  }
  __syncthreads();
  if constexpr (Form::kCluster > 1) cluster_sync();

  const int32_t items = args.groups * args.group_tiles * args.token_blocks;
  if (warp >= Form::kStrips * 4) {
    if constexpr (Form::kLarge) registers_give<40>();
    if (warp < Form::kStrips * 4 + 2 && (threadIdx.x & 31) == 0) {
      produce_wide<Form>(args, warp == Form::kStrips * 4, ring, full, empty, items);
    }
    __syncwarp();
    await_earlier();
  } else {
    if constexpr (Form::kLarge) registers_take<232>();
    await_earlier();
    const WideConsumer<Form> view{ring, full, empty, warp / 4};
    RingPlace place;
    for (int32_t index = blockIdx.x / Form::kCluster; index < items;
         index += gridDim.x / Form::kCluster) {
      const WideItem item = wide_item<Form>(args, index);
      const int32_t output = wide_output<Form>(args, item) + view.strip * Form::kStripOutputs;
      if constexpr (Form::kFp8) {
        const uint32_t mine = factors + warp * (kWideInMax / kWideK) * 8;
        const bool large = make_factors(args, output + warp % 4 * (Form::kHalf ? 8 : 16), mine);
        // Apart down to the stores: products in flight do not bear two ways to one sum (C7515).
        if (warpgroup_any(large, 1 + view.strip)) {
          wide_fp8<Form, true>(args, view, mine, output, item.token, place);
        } else {
          wide_fp8<Form, false>(args, view, mine, output, item.token, place);
        }
      } else {
        float sum[Form::kTokens / 2];
        view.sum_bf16(args, place, sum);
        store_wide<WidePairs::kApart, Form::kTokens>(args, output, item.token, sum);
      }
    }
  }
  if constexpr (Form::kCluster > 1) cluster_sync();  // nobody leaves while others copy to it
}

}  // namespace galley::kernels::cuda
