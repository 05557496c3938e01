// The rotation of one pair of channels, with the rounding of plain/rope.cc.
#pragma once

#include "kernels/cuda/row.cuh"

namespace galley::kernels::cuda {

// Both of a pair as bf16: the even channel in the low half.
__device__ __forceinline__ uint32_t turn(uint32_t pair, float cosine, float sine) {
  const float a = low_half(pair);
  const float b = high_half(pair);
  return pack_bf16(a * cosine - b * sine, a * sine + b * cosine);
}

// The angles of the pairs of a vector that turn (turn8), asked for ahead.
struct Turns {
  float cosine[4];
  float sine[4];
};
__device__ __forceinline__ Turns load_turns(int vector, int width, int rotary, const float* cosines,
                                            const float* sines) {
  const int first = vector * 8 - (width - rotary);
  Turns turns = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int angle = first / 2 + i;
    if (first + 8 > 0 && angle >= 0 && angle < rotary / 2) {
      turns.cosine[i] = cosines[angle];
      turns.sine[i] = sines[angle];
    }
  }
  return turns;
}

// Turns those pairs of vector `vector` (8 channels) that lie in the last `rotary` channels of a
// head `width` wide. Both are even, so a pair is never cut.
__device__ __forceinline__ uint4 turn8(uint4 raw, int vector, int width, int rotary,
                                       const Turns& turns) {
  const int first = vector * 8 - (width - rotary);  // of the turning channels
  if (first + 8 <= 0 || first >= rotary) return raw;
  uint32_t word[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int angle = first / 2 + i;
    if (angle >= 0 && angle < rotary / 2) {
      word[i] = turn(word[i], turns.cosine[i], turns.sine[i]);
    }
  }
  return {word[0], word[1], word[2], word[3]};
}
__device__ __forceinline__ uint4 turn8(uint4 raw, int vector, int width, int rotary,
                                       const float* cosines, const float* sines) {
  return turn8(raw, vector, width, rotary, load_turns(vector, width, rotary, cosines, sines));
}

}  // namespace galley::kernels::cuda
