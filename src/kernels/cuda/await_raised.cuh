// Waiting in a kernel for what another card or the host raises.
#pragma once

#include <cstdint>

namespace galley::kernels::cuda {

constexpr uint64_t kPatienceNs = 60'000'000'000;  // for whoever computes what is waited for

__device__ __forceinline__ uint64_t nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

// Until *raised is at least `wanted`; what was written before it was raised is then seen by the
// calling thread. Nanoseconds waited. Who does not come is an error of this device: the program
// ends.
__device__ __forceinline__ uint64_t await_raised(const uint64_t* raised, uint64_t wanted) {
  const uint64_t begin = nanoseconds();
  while (true) {
    uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(raised) : "memory");
    const uint64_t now = nanoseconds();
    if (value >= wanted) return now - begin;
    if (now - begin > kPatienceNs) __trap();
  }
}

}  // namespace galley::kernels::cuda
