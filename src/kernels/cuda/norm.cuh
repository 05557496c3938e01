// RMS norm of one row by the threads that norm.cu gives its width: one order of summation.
#pragma once

#include "kernels/cuda/row.cuh"

namespace galley::kernels::cuda {

constexpr int kNormVectors = 4;  // a thread's share of a row

// Rows of at most this width are one warp's.
constexpr int64_t kWarpNormWidthMax = 8 * kNormVectors * kWarp;

// By `threads` threads, `thread` of which is this one; sum(x) adds up over them.
template <bool kWhole, class Sum>
__device__ __forceinline__ void norm_row(const Bf16* x, int64_t width, const Bf16* weight,
                                         float eps, Bf16* y, int thread, int threads,
                                         const Sum& sum) {
  uint4 raw[kNormVectors];
#pragma unroll
  for (int i = 0; i < kNormVectors; ++i) raw[i] = load8<kWhole>(x, thread + i * threads, width);
  float squares = 0.0F;
#pragma unroll
  for (int i = 0; i < kNormVectors; ++i) squares += square_sum(widen8(raw[i]));
  const float inverse = inverse_rms(sum(squares), width, eps);
#pragma unroll
  for (int i = 0; i < kNormVectors; ++i) {
    const int64_t vector = thread + i * threads;
    store8<kWhole>(y, vector, width, normed(raw[i], inverse, load8<kWhole>(weight, vector, width)));
  }
}

}  // namespace galley::kernels::cuda
