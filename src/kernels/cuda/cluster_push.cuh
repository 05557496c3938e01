// What the blocks of a cluster put into each other's shared memory, a thread at a time, and the
// barrier around it.
//
// The barrier's halves are for threads of a warp that may come one by one; sm90_memory.cuh has
// those for whole warps.
#pragma once

#include "kernels/cuda/row.cuh"
#include "kernels/cuda/sm90.cuh"

namespace galley::kernels::cuda {

__device__ __forceinline__ void cluster_arrive_apart() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait_apart() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// The same place in the shared memory of a block of the cluster.
__device__ __forceinline__ uint32_t place_in_block(const void* place, uint32_t block) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(there)
               : "r"(shared_address(place)), "r"(block));
  return there;
}

__device__ __forceinline__ void push(float* place, uint32_t block, float value) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(place_in_block(place, block)), "f"(value)
               : "memory");
}
__device__ __forceinline__ void push(uint4* place, uint32_t block, uint4 value) {
  asm volatile(
      "st.shared::cluster.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(place_in_block(place, block)),
      "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
      : "memory");
}
__device__ __forceinline__ void push(Bf16* place, uint32_t block, Bf16 value) {
  asm volatile("st.shared::cluster.b16 [%0], %1;" ::"r"(place_in_block(place, block)),
               "h"(value.bits)
               : "memory");
}

}  // namespace galley::kernels::cuda
