// What the forms of sparse attention do with one head's scores and sums: probabilities, the sum of
// them, and channels on their way to the result. The same bits from all of them.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/attention_keys.cuh"

namespace galley::kernels::cuda {
namespace attention {

// Scores become logarithms to base 2: 512^-0.5 log2(e), and the unit of the keys.
constexpr float kScoreScale = 0.044194173824159216F * kLog2E * kKeyUnit;

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFU, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xFFFFFFFFU, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xFFFFFFFFU, x, 1);
  return x + __shfl_xor_sync(0xFFFFFFFFU, x, 2);
}
__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// Sums of a head's probabilities are formed in an order that any division of the keys into groups
// of 16 can keep: a group's four values of a thread, then the four threads of a quad; lane g of a
// quad adds up the g-th groups of all blocks. x: the groups' sums of this thread; returns the
// group's that is this lane's.
__device__ __forceinline__ float group_sum_of_lane(const float (&x)[4]) {
  const bool high = (threadIdx.x & 2) != 0;
  const bool odd = (threadIdx.x & 1) != 0;
  const float first = (high ? x[2] : x[0]) + __shfl_xor_sync(0xFFFFFFFFU, high ? x[0] : x[2], 2);
  const float second = (high ? x[3] : x[1]) + __shfl_xor_sync(0xFFFFFFFFU, high ? x[1] : x[3], 2);
  return (odd ? second : first) + __shfl_xor_sync(0xFFFFFFFFU, odd ? first : second, 1);
}
// The same sum of one group, in every lane.
__device__ __forceinline__ float group_sum(float x) {
  x += __shfl_xor_sync(0xFFFFFFFFU, x, 2);
  return x + __shfl_xor_sync(0xFFFFFFFFU, x, 1);
}

// Probabilities of this thread's four keys of a group, in place of their scores; their sum.
__device__ __forceinline__ float exponentiate(float& a, float& b, float& c, float& d, float scale,
                                              float top) {
  a = power_of_two(fmaf(a, scale, -top));
  b = power_of_two(fmaf(b, scale, -top));
  c = power_of_two(fmaf(c, scale, -top));
  d = power_of_two(fmaf(d, scale, -top));
  return (a + b) + (c + d);
}

// What is subtracted from a head's scores (log2), block after block. It only moves when the maximum
// grows by more than a factor 2^8: the values then rarely need rescaling, and probabilities up to
// 2^8 round alike.
struct Stabiliser {
  float top = kMaxStart;

  // best: the block's largest score. Returns what earlier sums are multiplied with.
  __device__ __forceinline__ float move(float best, bool first) {
    float rescale = 1.0F;
    if (first) {
      top = fmaxf(best, kMaxStart);
    } else if (best > top + 8.0F) {
      rescale = power_of_two(top - best);
      top = best;
    }
    return rescale;
  }
};

// The same for a thread's two heads, from the largest of the scores that the thread itself has.
// Lanes only look for a head's largest where one of the warp's moves, which is seldom: what they
// exchange waits behind the tensor cores' reads of shared memory.
struct Rescales {
  float upper = 1.0F;
  float lower = 1.0F;
};
__device__ __forceinline__ Rescales move_stabilisers(Stabiliser& upper, Stabiliser& lower,
                                                     float best_upper, float best_lower,
                                                     bool first) {
  Rescales rescales;
  const bool moves = best_upper > upper.top + 8.0F || best_lower > lower.top + 8.0F;
  if (first || __any_sync(0xFFFFFFFFU, moves)) {
    rescales.upper = upper.move(quad_max(best_upper), first);
    rescales.lower = lower.move(quad_max(best_lower), first);
  }
  return rescales;
}

// One head's softmax over the blocks.
struct Softmax {
  Stabiliser stabiliser;
  float sum = 0.0F;  // of the groups of this lane
  float sums[4];     // of this thread's probabilities of the last block, by group

  // The largest of them. s: this thread's 16 scores of the head at s[4 i + offset], in log2 units
  // after `scale`.
  template <int32_t kOffset>
  __device__ __forceinline__ static float own_best(const float (&s)[32], float scale) {
    float even_best = s[kOffset];
    float odd_best = s[kOffset + 1];
#pragma unroll
    for (int32_t i = 1; i < 8; ++i) {
      even_best = fmaxf(even_best, s[4 * i + kOffset]);
      odd_best = fmaxf(odd_best, s[4 * i + kOffset + 1]);
    }
    return fmaxf(even_best, odd_best) * scale;
  }
  // Their probabilities come into their place.
  template <int32_t kOffset>
  __device__ __forceinline__ void exponentiate_all(float (&s)[32], float scale) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      float* group = s + 8 * i + kOffset;
      sums[i] = exponentiate(group[0], group[1], group[4], group[5], scale, stabiliser.top);
    }
  }
  // Adds the last block's, when others no longer wait for its probabilities.
  __device__ __forceinline__ void add(float rescale, bool first) {
    const float group = group_sum_of_lane(sums);
    sum = first ? group : sum * rescale + group;
  }
};

// Probabilities of a block as this warp's sixteen heads have them, an operand of each 16 keys: to a
// swizzled tile.
__device__ __forceinline__ void store_probabilities(uint32_t tile, const uint32_t (&p)[4][4]) {
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t head = (threadIdx.x & (kGroup - 1)) / 32 * 16 + (lane & 15);
  const uint32_t at = tile + head * 128;
  const uint32_t piece = ((lane >> 4) ^ (lane & 7)) * 16;
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    store_matrices(at + (piece ^ (i * 32)), p[i][0], p[i][1], p[i][2], p[i][3]);
  }
}
__device__ __forceinline__ void store_probabilities(uint32_t tile, const float (&s)[32]) {
  uint32_t p[4][4];
#pragma unroll
  for (int32_t i = 0; i < 16; ++i) p[i / 4][i % 4] = pack_bf16(s[2 * i], s[2 * i + 1]);
  store_probabilities(tile, p);
}

// Scores of keys from the keys-th on are none.
__device__ __forceinline__ void mask_scores(float (&s)[32], int32_t keys) {
  const int32_t column = static_cast<int32_t>(threadIdx.x & 3) * 2;
#pragma unroll
  for (int32_t i = 0; i < 32; ++i) {
    if (i / 4 * 8 + column + i % 2 >= keys) s[i] = -INFINITY;
  }
}

// Four adjacent pairs of channels turn back by four angles.
struct Turn {
  bool turns;
  float4 cos;
  float4 sin;

  __device__ __forceinline__ static uint32_t turned(uint32_t pair, float c, float s) {
    const float a = __uint_as_float(pair << 16);
    const float b = __uint_as_float(pair & 0xFFFF0000U);
    return pack_bf16(fmaf(b, s, a * c), fmaf(b, c, -a * s));
  }
  // Forward, with the roundings of rope.cuh: what rope() makes of eight channels of a query.
  __device__ __forceinline__ static uint32_t forward(uint32_t pair, float c, float s) {
    const float a = __uint_as_float(pair << 16);
    const float b = __uint_as_float(pair & 0xFFFF0000U);
    return pack_bf16(a * c - b * s, a * s + b * c);
  }
  __device__ __forceinline__ uint4 forward(const uint4& x) const {
    return {forward(x.x, cos.x, sin.x), forward(x.y, cos.y, sin.y), forward(x.z, cos.z, sin.z),
            forward(x.w, cos.w, sin.w)};
  }
  __device__ __forceinline__ uint4 back(const uint4& x) const {
    return {turned(x.x, cos.x, sin.x), turned(x.y, cos.y, sin.y), turned(x.z, cos.z, sin.z),
            turned(x.w, cos.w, sin.w)};
  }
};

// What turns channels channel .. channel + 7 of a head.
__device__ __forceinline__ Turn turn_of(int32_t channel, int32_t rotary, const float* cos,
                                        const float* sin) {
  const int32_t at = channel - (kWidth - rotary);
  Turn turn = {};
  turn.turns = at >= 0 && at < rotary;
  if (turn.turns) {
    turn.cos = *reinterpret_cast<const float4*>(cos + at / 2);
    turn.sin = *reinterpret_cast<const float4*>(sin + at / 2);
  }
  return turn;
}

// Every thread of a quad holds two channels of four groups of 8; afterwards thread t holds group
// t. Rotary channels are turned back on the way to o.
__device__ __forceinline__ void store_channels(uint32_t (&x)[4], Bf16* to, const Turn& turn) {
  const bool odd = (threadIdx.x & 1) != 0;
  const bool high = (threadIdx.x & 2) != 0;
#pragma unroll
  for (int32_t i = 0; i < 4; i += 2) {
    const uint32_t other = __shfl_xor_sync(0xFFFFFFFFU, odd ? x[i] : x[i + 1], 1);
    x[i] = odd ? other : x[i];
    x[i + 1] = odd ? x[i + 1] : other;
  }
#pragma unroll
  for (int32_t i = 0; i < 2; ++i) {
    const uint32_t other = __shfl_xor_sync(0xFFFFFFFFU, high ? x[i] : x[i + 2], 2);
    x[i] = high ? other : x[i];
    x[i + 2] = high ? x[i + 2] : other;
  }
  if (turn.turns) {
    x[0] = Turn::turned(x[0], turn.cos.x, turn.sin.x);
    x[1] = Turn::turned(x[1], turn.cos.y, turn.sin.y);
    x[2] = Turn::turned(x[2], turn.cos.z, turn.sin.z);
    x[3] = Turn::turned(x[3], turn.cos.w, turn.sin.w);
  }
  *reinterpret_cast<uint4*>(to) = make_uint4(x[0], x[1], x[2], x[3]);
}

// What a head's sink adds to its sum, and what its values are multiplied with in the end.
__device__ __forceinline__ float sink_of(float top, float sink) {
  return exp2f(sink * kLog2E - top);
}
__device__ __forceinline__ float unit_of(float sum, float sink) { return kKeyUnit / (sum + sink); }

}  // namespace attention
}  // namespace galley::kernels::cuda
