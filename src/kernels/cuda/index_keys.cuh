// Products of index keys and queries in integers (index_scores_sm90.cu): a warp's 32 packed keys
// become bytes, 8 heads at a time are multiplied with them.
//
// An fp4 code is 2^-1 x {0, 1, 2, 3, 4, 6, 8, 12} with a sign. At the largest scale of its key it
// is an integer of 8 bits as long as its group's scale lies at most 2^3 below; 128 is added, and
// taken off again with the sum's beginning. Queries are prepared likewise, with a sign. A product
// of 128 channels has at most 21 bits, so it is exact.
#pragma once

#include <cstdint>

#include "kernels/cuda/index_sm90.cuh"
#include "kernels/cuda/mma_int8.cuh"
#include "kernels/cuda/sm90_memory.cuh"

namespace galley::kernels::cuda {

constexpr uint32_t kIndexRecordBytes = index_record_bytes(kIndexWidth);
// Sums begin as the float 1.5, whose last bits then count them.
constexpr uint32_t kSumBase = 0x3FC00000;
constexpr uint32_t kZeroCodes = 0x80808080;  // four channels' zeros

__device__ __forceinline__ float4 load_shared_floats(uint32_t at) {
  const uint4 v = load_shared_16(at);
  return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z),
                     __uint_as_float(v.w));
}
// At least 0: what the addition's saturation does, as long as the sum is below 1.
__device__ __forceinline__ float add_not_negative(float a, float b) {
  float sum;
  asm("add.rn.sat.f32 %0, %1, %2;" : "=f"(sum) : "f"(a), "f"(b));
  return sum;
}
// a 2 + b in the pipe that has room; `two` is no constant, or it would become an addition.
__device__ __forceinline__ uint32_t twice_and(uint32_t a, uint32_t two, uint32_t b) {
  uint32_t sum;
  asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(two), "r"(b));
  return sum;
}

// Four bytes of low and high by the nibbles of `which`: 3 bits say which, the last one takes the
// byte's sign for all of it.
__device__ __forceinline__ uint32_t pick_bytes(uint32_t low, uint32_t high, uint32_t which) {
  uint32_t picked;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(picked) : "r"(low), "r"(high), "r"(which));
  return picked;
}

// a / 2^16 in the pipe of the products of integers: 0 a's lower half + 1 its upper half.
__device__ __forceinline__ uint32_t upper_half(uint32_t a) {
  uint32_t half;
  asm("dp2a.lo.u32.u32 %0, %1, %2, %3;" : "=r"(half) : "r"(a), "r"(0x0100), "r"(0));
  return half;
}

// 32 keys as the operand of the products: thread t has of keys t / 4 + 8 i the channels of group
// t % 4, as integers 2^3 times their fp4 codes, plus 128, at the largest scale of each key.
struct Keys {
  uint32_t codes[2][4][4];  // [16 keys][8 channels]
  uint32_t largest[2];      // scales' bits of keys t / 4 and t / 4 + 8 of these 16, 16 bits each
  uint32_t kept[2];         // what the scale of this thread's group lies below, where not folded
  bool uneven;              // some is

  // Made of all codes: it is there when they are.
  __device__ __forceinline__ uint32_t loaded() const {
    uint32_t all = 0;
#pragma unroll
    for (int32_t t = 0; t < 2; ++t) {
#pragma unroll
      for (int32_t s = 0; s < 4; ++s) {
        all |= (codes[t][s][0] | codes[t][s][1]) | (codes[t][s][2] | codes[t][s][3]);
      }
    }
    return all;
  }
};

// The same as they lie in memory.
struct PackedKeys {
  uint32_t words[2][2][4];
  uint32_t below[2];  // what the scale of this thread's group lies below, to be folded

  __device__ __forceinline__ void load(uint32_t record, int32_t quad, Keys& keys) {
#pragma unroll
    for (int32_t t = 0; t < 2; ++t) {
      const uint32_t upper = record + t * 16 * kIndexRecordBytes;
      const uint32_t lower = upper + 8 * kIndexRecordBytes;
      const uint32_t own = load_shared_byte(upper + 64 + quad) | load_shared_byte(lower + 64 + quad)
                                                                     << 16;
#pragma unroll
      for (int32_t s = 0; s < 4; ++s) {
        words[t][0][s] = load_shared_word(upper + quad * 16 + s * 4);
        words[t][1][s] = load_shared_word(lower + quad * 16 + s * 4);
      }
      uint32_t largest = __vmaxu2(own, __shfl_xor_sync(0xFFFFFFFFU, own, 1));
      largest = __vmaxu2(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, 2));
      keys.largest[t] = largest;
      keys.kept[t] = 0;
      below[t] = largest - own;
    }
    constexpr uint32_t kTooFar = 0xFFFCFFFC;
    keys.uneven = __any_sync(0xFFFFFFFFU, ((below[0] | below[1]) & kTooFar) != 0);
    if (!keys.uneven) return;
      // Unless groups of nothing but zeros are.
#pragma unroll
    for (int32_t t = 0; t < 2; ++t) {
#pragma unroll
      for (int32_t k = 0; k < 2; ++k) {
        const uint32_t any = words[t][k][0] | words[t][k][1] | words[t][k][2] | words[t][k][3];
        if ((any & 0x77777777U) == 0) below[t] &= k == 0 ? 0xFFFF0000U : 0xFFFFU;
      }
    }
    keys.uneven = __any_sync(0xFFFFFFFFU, ((below[0] | below[1]) & kTooFar) != 0);
    if (!keys.uneven) return;
#pragma unroll
    for (int32_t t = 0; t < 2; ++t) {
      keys.kept[t] = below[t];
      below[t] = 0;
    }
  }

  // Keys lane / 4 + 8 k of the t-th 16.
  __device__ __forceinline__ void unpack(int32_t t, int32_t k, uint32_t two, Keys& keys) const {
    const uint32_t by = k == 0 ? below[t] & 3 : below[t] >> 16;
    const uint32_t low = 0x18100800U >> by;   // 2^3 x {0, 1, 2, 3}
    const uint32_t high = 0x60403020U >> by;  // 2^3 x {4, 6, 8, 12}
    const uint32_t minus_low = kZeroCodes - low;
    const uint32_t minus_high = kZeroCodes - high;
#pragma unroll
    for (int32_t s = 0; s < 4; ++s) {
      // A selector's sign bit takes the byte's sign everywhere, which is 0: codes below zero
      // become 0, and twice that plus (128 - magnitude) is 128 + value.
      const uint32_t word = words[t][k][s];
      const uint32_t magnitude = word & 0x77777777U;
      keys.codes[t][s][k] =
          twice_and(pick_bytes(low, high, word), two, pick_bytes(minus_low, minus_high, magnitude));
      keys.codes[t][s][k + 2] = twice_and(pick_bytes(low, high, word >> 16), two,
                                          pick_bytes(minus_low, minus_high, magnitude >> 16));
    }
  }
};

// What a thread has of 8 heads' queries: group lane % 4 of head lane / 4.
__device__ __forceinline__ void load_query(uint32_t at, uint32_t (&b)[8]) {
  const uint32_t mine = at + (threadIdx.x & 31) * 16;
  const uint4 first = load_shared_16(mine);
  const uint4 second = load_shared_16(mine + 512);
  b[0] = first.x, b[1] = first.y, b[2] = first.z, b[3] = first.w;
  b[4] = second.x, b[5] = second.y, b[6] = second.z, b[7] = second.w;
}

// Products of 8 heads with 2 x 16 keys, 0 where they are negative.
__device__ __forceinline__ void products(const Keys& keys, const uint32_t (&b)[8], float4 terms,
                                         float (&dots)[2][4]) {
  constexpr uint32_t kBase[4] = {kSumBase, kSumBase, kSumBase, kSumBase};
  uint32_t d[2][4];
#pragma unroll
  for (int32_t t = 0; t < 2; ++t) multiply_add_int8(d[t], keys.codes[t][0], b[0], b[1], kBase);
#pragma unroll
  for (int32_t s = 1; s < 4; ++s) {
#pragma unroll
    for (int32_t t = 0; t < 2; ++t) {
      multiply_add_int8(d[t], keys.codes[t][s], b[2 * s], b[2 * s + 1], d[t]);
    }
  }
#pragma unroll
  for (int32_t t = 0; t < 2; ++t) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      dots[t][i] = add_not_negative(__uint_as_float(d[t][i]), i % 2 == 0 ? terms.z : terms.w);
    }
  }
}

// What codes without their sign become at a scale 2^below below the largest: bytes of codes 0 to 3
// and 4 to 7, and 128 minus these.
__device__ __forceinline__ uint4 code_table(int32_t below) {
  const uint32_t low = 0x18100800U >> below;   // 2^3 x {0, 1, 2, 3}
  const uint32_t high = 0x60403020U >> below;  // 2^3 x {4, 6, 8, 12}
  return make_uint4(low, high, kZeroCodes - low, kZeroCodes - high);
}

// Scales of 64 keys, of which each thread has one group of keys lane / 4 + 8 i.
struct TileScales {
  uint32_t largest[4];  // scales' bits of keys lane / 4 and that + 8 of 16, 16 bits each
  uint32_t below[4];    // what the scale of this thread's group lies below

  // False where all groups can be folded.
  __device__ __forceinline__ bool load(uint32_t record, int32_t quad) {
    uint32_t own[4];
#pragma unroll
    for (int32_t t = 0; t < 4; ++t) {
      const uint32_t at = record + t * 16 * kIndexRecordBytes + 64 + quad;
      own[t] = load_shared_byte(at) | load_shared_byte(at + 8 * kIndexRecordBytes) << 16;
    }
    uint32_t all = 0;
#pragma unroll
    for (int32_t t = 0; t < 4; ++t) {
      largest[t] = __vmaxu2(own[t], __shfl_xor_sync(0xFFFFFFFFU, own[t], 1));
      largest[t] = __vmaxu2(largest[t], __shfl_xor_sync(0xFFFFFFFFU, largest[t], 2));
      below[t] = (largest[t] - own[t]) * 16;  // bytes of a table
      all |= below[t];
    }
    return __any_sync(0xFFFFFFFFU, (all & 0xFFC0FFC0) != 0);
  }
};

// Codes of 16 keys.
__device__ __forceinline__ void unpack_even(uint32_t record, int32_t quad, uint32_t below,
                                            uint32_t tables, uint32_t two,
                                            uint32_t (&codes)[4][4]) {
  uint32_t words[2][4];
#pragma unroll
  for (int32_t k = 0; k < 2; ++k) {
#pragma unroll
    for (int32_t s = 0; s < 4; ++s) {
      words[k][s] = load_shared_word(record + k * 8 * kIndexRecordBytes + quad * 16 + s * 4);
    }
  }
#pragma unroll
  for (int32_t k = 0; k < 2; ++k) {
    const uint4 table = load_shared_16(tables + (k == 0 ? below & 0xFF : below >> 16));
#pragma unroll
    for (int32_t s = 0; s < 4; ++s) {
      const uint32_t word = words[k][s];
      const uint32_t magnitude = word & 0x77777777U;
      codes[s][k] = twice_and(pick_bytes(table.x, table.y, word), two,
                              pick_bytes(table.z, table.w, magnitude));
      codes[s][k + 2] = twice_and(pick_bytes(table.x, table.y, upper_half(word)), two,
                                  pick_bytes(table.z, table.w, upper_half(magnitude)));
    }
  }
}

// Adds what 8 heads make of 64 keys, 16 at a time, to sums [upper 8, lower 8] of each 16.
__device__ __forceinline__ void even_products(const uint32_t (&codes)[4][4][4],
                                              const uint32_t (&query)[8], float4 terms,
                                              float (&sums)[4][2]) {
  constexpr uint32_t kBase[4] = {kSumBase, kSumBase, kSumBase, kSumBase};
  uint32_t d[4][4];
#pragma unroll
  for (int32_t t = 0; t < 4; ++t) {
    multiply_add_int8(d[t], codes[t][0], query[0], query[1], kBase);
  }
#pragma unroll
  for (int32_t s = 1; s < 4; ++s) {
#pragma unroll
    for (int32_t t = 0; t < 4; ++t) {
      multiply_add_int8(d[t], codes[t][s], query[2 * s], query[2 * s + 1], d[t]);
    }
  }
#pragma unroll
  for (int32_t t = 0; t < 4; ++t) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      const float dot = add_not_negative(__uint_as_float(d[t][i]), i % 2 == 0 ? terms.z : terms.w);
      sums[t][i / 2] = fmaf(dot, i % 2 == 0 ? terms.x : terms.y, sums[t][i / 2]);
    }
  }
}

// Adds what 32 heads make of 16 keys to sums [upper 8, lower 8].
__device__ __forceinline__ void lone_products(const uint32_t (&codes)[4][4],
                                              const uint32_t (&query)[4][8],
                                              const float4 (&terms)[4], float (&sums)[2]) {
  constexpr uint32_t kBase[4] = {kSumBase, kSumBase, kSumBase, kSumBase};
  uint32_t d[4][4];
#pragma unroll
  for (int32_t j = 0; j < 4; ++j) {
    multiply_add_int8(d[j], codes[0], query[j][0], query[j][1], kBase);
  }
#pragma unroll
  for (int32_t s = 1; s < 4; ++s) {
#pragma unroll
    for (int32_t j = 0; j < 4; ++j) {
      multiply_add_int8(d[j], codes[s], query[j][2 * s], query[j][2 * s + 1], d[j]);
    }
  }
#pragma unroll
  for (int32_t j = 0; j < 4; ++j) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      const float dot =
          add_not_negative(__uint_as_float(d[j][i]), i % 2 == 0 ? terms[j].z : terms[j].w);
      sums[i / 2] = fmaf(dot, i % 2 == 0 ? terms[j].x : terms[j].y, sums[i / 2]);
    }
  }
}

// The same where a group of a key or a query keeps its own factor: group by group. A key has the
// bits of the short way where nothing is kept.
__device__ __forceinline__ void uneven_products(const Keys& keys, const uint32_t (&b)[8],
                                                uint32_t residual, int32_t heads, float4 terms,
                                                float (&dots)[2][4]) {
  const int32_t lane = threadIdx.x & 31;
  const int32_t quad = lane & 3;
#pragma unroll 1
  for (int32_t g = 0; g < 4; ++g) {
    const float2 own = load_shared_pair(residual + (g * heads + quad * 2) * 4);
#pragma unroll
    for (int32_t t = 0; t < 2; ++t) {
      uint32_t sums[4] = {kSumBase, kSumBase, kSumBase, kSumBase};
#pragma unroll
      for (int32_t s = 0; s < 4; ++s) {
        uint32_t a[4];
#pragma unroll
        for (int32_t i = 0; i < 4; ++i) a[i] = quad == g ? keys.codes[t][s][i] : kZeroCodes;
        multiply_add_int8(sums, a, b[2 * s], b[2 * s + 1], sums);
      }
      const uint32_t below = __shfl_sync(0xFFFFFFFFU, keys.kept[t], (lane & 28) | g);
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) {
        const uint32_t far = i / 2 == 0 ? below & 0xFFFF : below >> 16;
        const float scale = far > 126 ? 0.0F : __uint_as_float((127 - far) << 23);
        const float dot = (__uint_as_float(sums[i]) + (i % 2 == 0 ? terms.z : terms.w)) *
                          (i % 2 == 0 ? own.x : own.y);
        dots[t][i] = g == 0 ? dot * scale : fmaf(dot, scale, dots[t][i]);
      }
    }
  }
#pragma unroll
  for (int32_t t = 0; t < 2; ++t) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) dots[t][i] = fmaxf(dots[t][i], 0.0F);
  }
}

// sums [16 keys][upper 8, lower 8] of these heads, in their order.
__device__ __forceinline__ void add_heads(const float (&dots)[2][4], float4 terms,
                                          float (&sums)[2][2]) {
#pragma unroll
  for (int32_t t = 0; t < 2; ++t) {
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      sums[t][i / 2] = fmaf(dots[t][i], i % 2 == 0 ? terms.x : terms.y, sums[t][i / 2]);
    }
  }
}

}  // namespace galley::kernels::cuda
