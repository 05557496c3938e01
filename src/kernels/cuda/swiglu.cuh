// SwiGLU of one channel (spec/model.md 5), in f32 until its one rounding to bf16.
#pragma once

#include "kernels/cuda/numbers.cuh"

namespace galley::kernels::cuda {

__device__ __forceinline__ float swiglu(Bf16 gate, Bf16 up, float factor, float limit) {
  const float g = widen(gate);
  const float a = limit < g ? limit : g;
  const float b = clamp_to(widen(up), limit);
  return round_bf16(factor * (a / (1.0F + expf(-a)) * b));
}

}  // namespace galley::kernels::cuda
