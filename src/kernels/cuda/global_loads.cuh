// Loads of global memory, by who may write it.
//
// What nobody writes while steps run, weights, may come by the read-only path: load_constant() and
// its kin, __ldg, `const T* __restrict__`. What an earlier kernel wrote must not. Blocks of an
// overlapping launch (ordered_launch.cuh) are placed while that kernel still works, the wait then
// makes its writes seen by plain loads alone, and a line of the read-only path stays what it was:
// on an H200, experts chosen in the layer before, in five runs of six of four sequences or more.
// So what was written is read plainly, behind await_earlier(), or by load_written().
//
// The one file of this folder with such loads (tests/tidy.py).
#pragma once

#include <cstdint>
#include <cstring>

namespace galley::kernels::cuda {

template <class T>
__device__ __forceinline__ T load_constant(const T* at) {
  return __ldg(at);
}
// The same, and it stays where it is written.
__device__ __forceinline__ uint32_t load_constant_word(const void* at) {
  uint32_t v;
  asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(v) : "l"(at));
  return v;
}
// Of constants that nobody reads again.
__device__ __forceinline__ uint4 load_once(const void* at) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at));
  return v;
}

// What a kernel wrote that has ended: past the L1, so also in front of await_earlier() if that
// kernel is not the one right before. Loads are issued in the order in which they are written.
template <class T>
__device__ __forceinline__ T load_written(const T* at) {
  T value;
  if constexpr (sizeof(T) == 16) {
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at));
    memcpy(&value, &v, sizeof(T));
  } else if constexpr (sizeof(T) == 4) {
    uint32_t v;
    asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(v) : "l"(at));
    memcpy(&value, &v, sizeof(T));
  } else if constexpr (sizeof(T) == 2) {
    uint16_t v;
    asm volatile("ld.relaxed.gpu.global.b16 %0, [%1];" : "=h"(v) : "l"(at));
    memcpy(&value, &v, sizeof(T));
  } else {
    static_assert(sizeof(T) == 1);
    uint32_t v;
    asm volatile("ld.relaxed.gpu.global.u8 %0, [%1];" : "=r"(v) : "l"(at));
    const auto byte = static_cast<uint8_t>(v);
    memcpy(&value, &byte, sizeof(T));
  }
  return value;
}

}  // namespace galley::kernels::cuda
