// Where a kernel is in its ring of stages in shared memory.
#pragma once

#include <cstdint>

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

}  // namespace galley::kernels::cuda
