// wgmma of e4m3 operands for the token counts that the grouped product uses, as plain functions.
//
// A is 64 weight rows x 32 of K, from registers (unpacked fp4) or through a shared-memory
// descriptor (fp8); B is N tokens x 32 of K through a descriptor; D is f32 in registers.
// One thread's D: element 4 j + {0, 1} is row g, columns 8 j + 2 t + {0, 1}; element 4 j + {2, 3}
// the same columns of row g + 8; its A registers: row g or g + 8 (odd registers), K 4 t..4 t + 3,
// plus 16 for registers 2 and 3. g = lane / 4 and t = lane % 4 inside the warp's 16 rows.
#pragma once

#include <cstdint>

#include "kernels/cuda/wgmma_registers.cuh"

namespace galley::kernels::cuda {

template <int kTokens, bool kFromRegisters>
struct Wgmma;

// Both forms for kTokens = tokens and N accumulators, N = tokens / 2. What follows the
// accumulators in the operand lists has the numbers n = N to n5 = N + 5.
#define GALLEY_WGMMA_E4M3(tokens, n, n1, n2, n3, n4, n5)                                           \
  template <>                                                                                      \
  struct Wgmma<tokens, true> {                                                                     \
    static __device__ __forceinline__ void run(float (&d)[n], const uint32_t (&a)[4], uint64_t b,  \
                                               bool add) {                                         \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #n5                                        \
                   ", 0;\n"                                                                        \
                   "wgmma.mma_async.sync.aligned.m64n" #tokens                                     \
                   "k32.f32.e4m3.e4m3 {" GALLEY_NAMES_##n "}, {%" #n ", %" #n1 ", %" #n2 ", %" #n3 \
                                                          "}, %" #n4 ", p, 1, 1;\n}\n"             \
                   : GALLEY_SUMS_##n(d)                                                            \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add)));           \
    }                                                                                              \
  };                                                                                               \
  template <>                                                                                      \
  struct Wgmma<tokens, false> {                                                                    \
    static __device__ __forceinline__ void run(float (&d)[n], uint64_t a, uint64_t b, bool add) {  \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #n2                                        \
                   ", 0;\n"                                                                        \
                   "wgmma.mma_async.sync.aligned.m64n" #tokens                                     \
                   "k32.f32.e4m3.e4m3 {" GALLEY_NAMES_##n "}, %" #n ", %" #n1 ", p, 1, 1;\n}\n"    \
                   : GALLEY_SUMS_##n(d)                                                            \
                   : "l"(a), "l"(b), "r"(int(add)));                                               \
    }                                                                                              \
  }

GALLEY_WGMMA_E4M3(8, 4, 5, 6, 7, 8, 9);
GALLEY_WGMMA_E4M3(16, 8, 9, 10, 11, 12, 13);
GALLEY_WGMMA_E4M3(32, 16, 17, 18, 19, 20, 21);
GALLEY_WGMMA_E4M3(40, 20, 21, 22, 23, 24, 25);
GALLEY_WGMMA_E4M3(48, 24, 25, 26, 27, 28, 29);
GALLEY_WGMMA_E4M3(56, 28, 29, 30, 31, 32, 33);
GALLEY_WGMMA_E4M3(64, 32, 33, 34, 35, 36, 37);
GALLEY_WGMMA_E4M3(72, 36, 37, 38, 39, 40, 41);
GALLEY_WGMMA_E4M3(80, 40, 41, 42, 43, 44, 45);
GALLEY_WGMMA_E4M3(96, 48, 49, 50, 51, 52, 53);
GALLEY_WGMMA_E4M3(128, 64, 65, 66, 67, 68, 69);
GALLEY_WGMMA_E4M3(160, 80, 81, 82, 83, 84, 85);
GALLEY_WGMMA_E4M3(192, 96, 97, 98, 99, 100, 101);

#undef GALLEY_WGMMA_E4M3

}  // namespace galley::kernels::cuda
