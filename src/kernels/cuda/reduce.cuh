// Sums over a block in one order: each thread's own terms in steps of the block,
// then lanes by halves, then warps in order. The order depends on the width and
// the block size alone.
#pragma once

#include "kernels/cuda/row.cuh"

namespace galley::kernels::cuda {

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFU, value, offset));
  }
  return value;
}

// All threads get the sum. Every thread of a block of kThreads calls it.
template <int kThreads>
__device__ __forceinline__ float block_sum(float value) {
  __shared__ float parts[kThreads / 32];
  value = warp_sum(value);
  __syncthreads();  // parts may still be read from the sum before
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0.0F;
#pragma unroll
  for (int warp = 0; warp < kThreads / 32; ++warp) sum += parts[warp];
  return sum;
}

}  // namespace galley::kernels::cuda
