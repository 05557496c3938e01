// A ring of stages in shared memory: its barriers, and where a kernel is in it.
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90.cuh"

namespace galley::kernels::cuda {

// A stage of the ring: where it begins, and its barriers' place among those of its kind.
struct RingPlace {
  uint32_t bytes = 0;
  uint32_t barrier = 0;
  uint32_t parity = 0;

  template <class Form>
  __device__ __forceinline__ void advance() {
    bytes += Form::kStageBytes;
    barrier += 8;
    if (barrier == Form::kStages * 8) {
      bytes = 0;
      barrier = 0;
      parity ^= 1;
    }
  }
};

// By a whole warp that has read what it wants of a stage, behind those loads: `loaded` has bits of
// all of them. Such loads return in order, but compilers choose that order: with bits of the last
// one as written, products beside a busy kernel were still wrong. Which lane says so is not asked
// of the thread's number, which compilers read again for every stage (30 cycles) where registers
// are few.
__device__ __forceinline__ void release_stage(uint32_t empty, uint32_t loaded) {
  __syncwarp();
  if (elected()) barrier_arrive(behind_loads(empty, loaded));
}

// Bits that all of these are part of.
template <int kCount>
__device__ __forceinline__ uint32_t bits_of(const float2 (&values)[kCount]) {
  uint32_t bits = 0;
#pragma unroll
  for (const float2& value : values) bits |= __float_as_uint(value.x);
  return bits;
}

// By one thread, in front of barrier_init_fence(): two barriers a stage, which is full when `fills`
// arrived at the one, and may be filled again when `releases` arrived at the other.
template <class Form>
__device__ __forceinline__ void make_ring(uint32_t full, uint32_t empty, uint32_t fills,
                                          uint32_t releases) {
  for (int32_t stage = 0; stage < Form::kStages; ++stage) {
    barrier_init(full + stage * 8, fills);
    barrier_init(empty + stage * 8, releases);
  }
}

}  // namespace galley::kernels::cuda
