// Sparse attention at the released shape: 64 heads x 512 channels, 128 window and up to 512
// selected keys a row, which are the values as well (spec/model.md 4.6, 4.7).
//
// Floor: a row is 84 MFLOP, 113 ns of one H200's bf16 peak (741 TFLOP/s), and 344 kB (packed keys
// 215 kB, q and o 128 kB), 75 ns. So the tensor cores decide, if keys are decoded beside them: a
// block of 64 keys is 2,048 cycles of wgmma, and decoding it about 2.4 instructions for each of
// 32,768 values.
//
// Design: a CTA of five warpgroups, one an SM, takes row after row. Two decode keys into two blocks
// of swizzled bf16 tiles (attention_keys.cuh); one multiplies q with a block, takes the softmax and
// leaves probabilities in shared memory; two add up 256 of the values' channels each. 64 heads are
// exactly one wgmma tile, and each key is decoded once for all of them. fp4 and fp8 become bf16 by
// putting their bits in place and one bf16 multiplication with the scale, which also mends
// exponents and subnormals; keys stay 2^32 too small until the end, so that no scale overflows.
// The stabiliser of the softmax moves only when the maximum grows 2^8 times: accumulators are
// hardly ever rescaled. Those who add up values, and wait most, bring the next row's q while the
// last softmax of a row is taken; its selection is looked up while its window is decoded.
//
// Few rows: attention_pair_sm90.cu, two CTAs a row, and fewer still attention_cluster_sm90.cu.
// Every sum has the same order there, so a row's bits do not depend on the number of rows.
//
// Measured on one H200: 29 us at 67 rows, 349 TFLOP/s at 128, 388 at 512, 447 to 453 in prefill.
// What limits it: the one warpgroup of the scores, whose products (1,600 cycles of a block's
// 4,300), probabilities (1,500) and sums (450) follow each other; the decoders wait for places a
// sixth of their time (docs/benchmarks.md: the parts, and what was tried). When it brought q as
// well, in the same run: 345, 378, 438 to 445; window keys alone took 7 % longer. Lanes look for a
// head's largest score only where a stabiliser moves: 30.25 -> 29.8 us at 128 rows, 56.2 -> 55.4 at
// 256. Tried since: probabilities as operands in registers, three steps of four (168 registers for
// the values, 40 for those who decode): 2 to 4 % more.
#include <cuda_runtime.h>

#include <algorithm>

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

using namespace attention;  // NOLINT: the other half of one kernel

// --- scores and probabilities ------------------------------------------------

// q of one row on its way to shared memory: warp w of a warpgroup has heads 16 w .. 16 w + 15, a
// thread always the same eighth of a tile.
struct QueryPlace {
  int32_t head;
  int32_t chunk;

  __device__ __forceinline__ explicit QueryPlace(int32_t i)
      : head(static_cast<int32_t>((threadIdx.x & (kGroup - 1)) >> 5) * 16 + i * 4 +
             static_cast<int32_t>((threadIdx.x & 31) >> 3)),
        chunk(static_cast<int32_t>(threadIdx.x & 7)) {}
  __device__ __forceinline__ uint32_t at(uint32_t shared, int32_t tile) const {
    return shared + kQAt + tile * kTileBytes + head * 128 + ((chunk ^ head) & 7) * 16;
  }
};

// The row's q is there; it has been read.
__device__ __forceinline__ uint32_t query_full(uint32_t shared) {
  return shared + kBarriersAt + 48;
}
__device__ __forceinline__ uint32_t query_empty(uint32_t shared) {
  return shared + kBarriersAt + 56;
}

// By the warpgroups of the values, which wait most: half of the tiles each.
__device__ __forceinline__ void bring_query(const AttentionCall& call, int32_t row, int32_t half,
                                            uint32_t shared) {
  const QueryPlace even(0);
  const QueryPlace odd(1);
  const Bf16* q = call.q + row * call.q_stride + even.head * kWidth + half * 256 + even.chunk * 8;
  uint32_t to = shared + half * 4 * kTileBytes;
#pragma unroll 1
  for (int32_t tile = 0; tile < 4; ++tile) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      const QueryPlace& place = i % 2 == 0 ? even : odd;
      copy_16(place.at(to, 0) + i / 2 * (8 * 128), q + i * (4 * kWidth));
    }
    to += kTileBytes;
    q += 64;
  }
  copy_arrive(query_full(shared));
}

// When it is there, by the warpgroup of the scores: what has to turn turns.
__device__ __forceinline__ void await_query(const AttentionCall& call, int32_t row, uint32_t shared,
                                            uint32_t parity) {
  constexpr int32_t kLast = kWidth / 64 - 1;
  Turn turn = {};
  if (call.turns != 0) {
    turn = turn_of(kLast * 64 + QueryPlace(0).chunk * 8, call.rotary,
                   call.cos + row * call.angle_stride, call.sin + row * call.angle_stride);
  }
  barrier_wait(query_full(shared), parity);
  if (call.turns == 0) return;
  if (turn.turns) {
#pragma unroll 1
    for (int32_t i = 0; i < 4; ++i) {
      const uint32_t at = QueryPlace(i).at(shared, kLast);
      store_shared(at, turn.forward(load_shared_16(at)));
    }
  }
  fence_async_proxy();
  named_sync(2, kGroup);
}

__device__ __forceinline__ void tell_probabilities(uint32_t shared, int32_t slot) {
  fence_async_proxy();
  __syncwarp();
  if ((threadIdx.x & 31) == 0) barrier_arrive(probability_barrier(shared, slot));
}

__device__ __forceinline__ void score_keys(const Work& work) {
  const uint32_t shared = work.shared;
  const int32_t thread = threadIdx.x & (kGroup - 1);
  const int32_t head = (thread >> 5) * 16 + ((thread & 31) >> 2);
  const float scale = kScoreScale;
  int32_t slot = 0;
  uint32_t parity = 0;
  int32_t row = static_cast<int32_t>(blockIdx.x);
  if (row >= work.call.row_count) return;
  uint32_t query_parity = 0;
  Geometry g = geometry_of(work.call.rows + row);
  for (;;) {
    const int32_t next_row = row + static_cast<int32_t>(gridDim.x);
    const bool more = next_row < work.call.row_count;
    await_query(work.call, row, shared, query_parity);
    query_parity ^= 1;
    Geometry next_g = g;
    if (more) next_g = geometry_of(work.call.rows + next_row);
    const auto query_read = [&] {
      __syncwarp();
      if ((thread & 31) == 0) barrier_arrive(query_empty(shared));
    };
    if (g.blocks == 0) query_read();
    Softmax upper, lower;
    Rescales rescales;
    for (int32_t block = 0; block < g.blocks; ++block) {
      barrier_wait(full_barrier(shared, slot), parity);
      fence_async_proxy();  // here, for the keys' writer would wait for its loads as well
      float s[32];
      const uint64_t q_operand = swizzled_descriptor(shared + kQAt);
      const uint64_t k_operand = swizzled_descriptor(shared + kKeysAt + slot * kKeysBytes);
      wgmma_fence();
#pragma unroll
      for (int32_t k = 0; k < kWidth / 16; ++k) {
        const uint32_t at = ((k / 4) * kTileBytes + (k % 4) * 32) >> 4;
        product_64x64x16(s, q_operand + at, k_operand + at, k != 0);
      }
      wgmma_commit();
      const bool first = block == 0;
      if (!first) {  // the sums of the block before, meanwhile
        upper.add(rescales.upper, block == 1);
        lower.add(rescales.lower, block == 1);
      }
      wgmma_wait<0>();
      hold_registers(s);
      if (block + 1 == g.blocks) query_read();
      const int32_t keys = g.keys_in(block);
      if (keys < kBlock) mask_scores(s, keys);
      rescales =
          move_stabilisers(upper.stabiliser, lower.stabiliser, Softmax::own_best<0>(s, scale),
                           Softmax::own_best<2>(s, scale), first);
      upper.exponentiate_all<0>(s, scale);
      lower.exponentiate_all<2>(s, scale);
      // The probabilities of the block before have been used.
      barrier_wait(empty_barrier(shared, slot ^ 1), slot == 1 ? parity : parity ^ 1);
      const uint32_t to = shared + kProbabilityAt + head * 128;
#pragma unroll
      for (int32_t i = 0; i < 8; ++i) {
        const uint32_t at = to + ((i ^ (head & 7)) * 16) + (thread & 3) * 4;
        store_shared(at, pack_bf16(s[4 * i], s[4 * i + 1]));
        store_shared(at + 8 * 128, pack_bf16(s[4 * i + 2], s[4 * i + 3]));
      }
      const uint32_t statistics = shared + slot * 256 + head * 4;
      if ((thread & 3) == 0) {
        store_shared(statistics + kRescaleAt, rescales.upper);
        store_shared(statistics + kRescaleAt + 32, rescales.lower);
      }
      if (block + 1 == g.blocks) {
        upper.add(rescales.upper, first);
        lower.add(rescales.lower, first);
        const float sum_upper = quad_sum(upper.sum);
        const float sum_lower = quad_sum(lower.sum);
        if ((thread & 3) == 0) {
          store_shared(statistics + kTopAt, upper.stabiliser.top);
          store_shared(statistics + kTopAt + 32, lower.stabiliser.top);
          store_shared(statistics + kSumAt, sum_upper);
          store_shared(statistics + kSumAt + 32, sum_lower);
        }
      }
      tell_probabilities(shared, slot);
      parity ^= slot;
      slot ^= 1;
    }
    if (!more) return;
    row = next_row;
    g = next_g;
  }
}

// --- values ------------------------------------------------------------------

__device__ __forceinline__ void sum_values(const Work& work, int32_t half) {
  constexpr int32_t kParts = 2;  // of 128 channels
  const uint32_t shared = work.shared;
  const int32_t thread = threadIdx.x & (kGroup - 1);
  const int32_t lane = thread & 31;
  const int32_t head = (thread >> 5) * 16 + (lane >> 2);
  const int32_t channel = half * 256;
  int32_t slot = 0;
  uint32_t parity = 0;
  int32_t row = static_cast<int32_t>(blockIdx.x);
  if (row >= work.call.row_count) return;
  bring_query(work.call, row, half, shared);
  uint32_t query_parity = 0;
  int32_t blocks = geometry_of(work.call.rows + row).blocks;
  for (;;) {
    const int32_t next_row = row + static_cast<int32_t>(gridDim.x);
    const bool more = next_row < work.call.row_count;
    int32_t next_blocks = 0;
    if (more) {
      next_blocks = geometry_of(work.call.rows + next_row).blocks;
      const Bf16* next_q =
          work.call.q + next_row * work.call.q_stride + half * (kHeads * kWidth / 2);
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) prefetch_l2(next_q + (thread + i * kGroup) * 64);
    }
    // The next row's q, when the scores have read this one's.
    const auto next_query = [&] {
      if (!more) return;
      barrier_wait(query_empty(shared), query_parity);
      query_parity ^= 1;
      bring_query(work.call, next_row, half, shared);
    };
    if (blocks == 0) next_query();
    if (lane == 0) {
      prefetch_l1(work.call.cos + row * work.call.angle_stride);
      prefetch_l1(work.call.sin + row * work.call.angle_stride);
    }
    float o[kParts][64];
    float unit_upper = 0.0F;
    float unit_lower = 0.0F;
    if (blocks == 0) {
#pragma unroll
      for (int32_t i = 0; i < kParts * 64; ++i) o[i / 64][i % 64] = 0.0F;
    }
    for (int32_t block = 0; block < blocks; ++block) {
      if (block + 1 == blocks) next_query();
      barrier_wait(probability_barrier(shared, slot), parity);
      const uint32_t statistics = shared + slot * 256 + head * 4;
      if (block != 0) {
        const float rescale_upper = load_shared_float(statistics + kRescaleAt);
        const float rescale_lower = load_shared_float(statistics + kRescaleAt + 32);
        if (__any_sync(0xFFFFFFFFU, rescale_upper != 1.0F || rescale_lower != 1.0F)) {
#pragma unroll
          for (int32_t i = 0; i < kParts * 16; ++i) {
            o[i / 16][4 * (i % 16)] *= rescale_upper;
            o[i / 16][4 * (i % 16) + 1] *= rescale_upper;
            o[i / 16][4 * (i % 16) + 2] *= rescale_lower;
            o[i / 16][4 * (i % 16) + 3] *= rescale_lower;
          }
        }
      }
      const uint64_t p_operand = swizzled_descriptor(shared + kProbabilityAt);
      const uint64_t v_operand = tiles_descriptor(
          shared + kKeysAt + slot * kKeysBytes + channel / 64 * kTileBytes, kTileBytes);
#pragma unroll
      for (int32_t n = 0; n < kParts; ++n) hold_registers(o[n]);
      wgmma_fence();
#pragma unroll
      for (int32_t k = 0; k < kBlock / 16; ++k) {
#pragma unroll
        for (int32_t n = 0; n < kParts; ++n) {
          product_64x128x16_keys(o[n], p_operand + k * 2,
                                 v_operand + (k * 2048 + n * 2 * kTileBytes) / 16,
                                 k != 0 || block != 0);
        }
      }
      wgmma_commit();
      if (block + 1 == blocks) {
        unit_upper = unit_of(
            load_shared_float(statistics + kSumAt),
            sink_of(load_shared_float(statistics + kTopAt), load_constant(work.call.sink + head)));
        unit_lower = unit_of(load_shared_float(statistics + kSumAt + 32),
                             sink_of(load_shared_float(statistics + kTopAt + 32),
                                     load_constant(work.call.sink + head + 8)));
      }
      wgmma_wait<0>();
#pragma unroll
      for (int32_t n = 0; n < kParts; ++n) hold_registers(o[n]);
      __syncwarp();
      if (lane == 0) barrier_arrive(empty_barrier(shared, slot));
      parity ^= slot;
      slot ^= 1;
    }
    Bf16* to = work.call.o + row * work.call.o_stride + head * kWidth + channel + (lane & 3) * 8;
    const float* cos = work.call.cos + row * work.call.angle_stride;
    const float* sin = work.call.sin + row * work.call.angle_stride;
#pragma unroll
    for (int32_t i = 0; i < kParts * 4; ++i) {  // 32 channels each
      uint32_t a[4], b[4];
#pragma unroll
      for (int32_t q = 0; q < 4; ++q) {
        const int32_t at = (i % 4 * 4 + q) * 4;
        a[q] = pack_bf16(o[i / 4][at] * unit_upper, o[i / 4][at + 1] * unit_upper);
        b[q] = pack_bf16(o[i / 4][at + 2] * unit_lower, o[i / 4][at + 3] * unit_lower);
      }
      const Turn turn = i >= kParts * 4 - 2
                            ? turn_of(channel + i * 32 + (lane & 3) * 8, work.call.rotary, cos, sin)
                            : Turn{};
      store_channels(a, to + i * 32, turn);
      store_channels(b, to + 8 * kWidth + i * 32, turn);
    }
    if (!more) return;
    row = next_row;
    blocks = next_blocks;
  }
}

constexpr int32_t kThreads = kProducers + 3 * kGroup;

__global__ void __launch_bounds__(kThreads, 1) attention_kernel(const AttentionCall call) {
  extern __shared__ uint8_t shared_bytes[];
  Work work{call, (shared_address(shared_bytes) + 1023U) & ~1023U};
  if (threadIdx.x == 0) {
    for (int32_t slot = 0; slot < 2; ++slot) {
      barrier_init(full_barrier(work.shared, slot), kProducers / 32);
      barrier_init(empty_barrier(work.shared, slot), 8);
      barrier_init(probability_barrier(work.shared, slot), kGroup / 32);
    }
    barrier_init(query_full(work.shared), 2 * kGroup);
    barrier_init(query_empty(work.shared), kGroup / 32);
    barrier_init_fence();
  }
  __syncthreads();
  await_earlier();
  // Of the 96 that each thread starts with: 2 x 48, 64 and 2 x 160 are five times 96. More than
  // that would wait for ever.
  const int32_t role = static_cast<int32_t>(threadIdx.x / kGroup) - kProducers / kGroup;
  if (role < 0) {
    registers_give<48>();
    produce_keys(call.rows + blockIdx.x, call.rows + call.row_count,
                 static_cast<int32_t>(gridDim.x),
                 {work.shared + kKeysAt, full_barrier(work.shared, 0),
                  empty_barrier(work.shared, 0), work.shared + kStagingAt});
  } else if (role == 0) {
    registers_give<64>();
    score_keys(work);
  } else {
    registers_take<160>();
    sum_values(work, role - 1);
  }
}

}  // namespace

bool attention_sm90_supports(const AttentionShape& shape, int32_t rotary) {
  return shape.heads == kAttentionHeads && shape.head_dim == kAttentionWidth &&
         shape.window <= kAttentionWindowMax && shape.selected_max <= kAttentionSelectedMax &&
         rotary <= 64 && rotary % 8 == 0;
}

void attention_sm90(const AttentionCall& call, int32_t multiprocessors, Stream stream) {
  if (call.row_count == 0) return;
  if (call.row_count <= attention_cluster_rows()) return attention_cluster(call, stream);
  // Two as long as all rows then run at once.
  if (call.row_count * 2 <= multiprocessors) return attention_pair(call, stream);
  const int32_t blocks = std::min(call.row_count, multiprocessors);
  launch_kernel(attention_kernel, {static_cast<uint32_t>(blocks), kThreads, kSharedBytes}, stream,
                call);
}

}  // namespace galley::kernels::cuda
