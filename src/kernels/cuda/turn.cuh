// Who runs the body of a kernel: a kernel of its own, or a chain of operations (chain.cuh). A body
// asks for what is constant, calls await() before it touches what an earlier operation writes, and
// meets its block in sync(). Each may be called any number of times, await() also in divergent
// code.
#pragma once

#include "kernels/cuda/ordered_launch.cuh"

namespace galley::kernels::cuda {

struct OwnTurn {
  __device__ __forceinline__ void await() { await_earlier(); }
  __device__ __forceinline__ void sync() { __syncthreads(); }
};

}  // namespace galley::kernels::cuda
