// wgmma of bf16 operands for the token counts of the wide product, as plain functions.
//
// A is 64 outputs x 16 of K, from registers or through a shared-memory descriptor; B is N tokens x
// 16 of K through a descriptor, both with K along their rows; D is f32 in registers. One thread's
// D: element 4 j + {0, 1} is row g, columns 8 j + 2 q + {0, 1}; element 4 j + {2, 3} the same
// columns of row g + 8. Its A registers, in order: rows g and g + 8 at K 2 q and 2 q + 1, then both
// at K 2 q + 8 and 2 q + 9. g = lane / 4 and q = lane % 4 inside the warp's 16 rows.
#pragma once

#include <cstdint>

#include "kernels/cuda/wgmma_registers.cuh"

namespace galley::kernels::cuda {

template <int kTokens>
struct WgmmaBf16;

// For kTokens = tokens and N accumulators, N = tokens / 2. What follows the accumulators in the
// operand lists has the numbers n = N to n5 = N + 5.
#define GALLEY_WGMMA_BF16(tokens, n, n1, n2, n3, n4, n5)                                           \
  template <>                                                                                      \
  struct WgmmaBf16<tokens> {                                                                       \
    static __device__ __forceinline__ void run(float (&d)[n], const uint32_t (&a)[4], uint64_t b,  \
                                               bool add) {                                         \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #n5                                        \
                   ", 0;\n"                                                                        \
                   "wgmma.mma_async.sync.aligned.m64n" #tokens                                     \
                   "k16.f32.bf16.bf16 {" GALLEY_NAMES_##n "}, {%" #n ", %" #n1 ", %" #n2 ", %" #n3 \
                                                          "}, %" #n4 ", p, 1, 1, 0;\n}\n"          \
                   : GALLEY_SUMS_##n(d)                                                            \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add)));           \
    }                                                                                              \
    static __device__ __forceinline__ void run(float (&d)[n], uint64_t a, uint64_t b, bool add) {  \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #n2                                        \
                   ", 0;\n"                                                                        \
                   "wgmma.mma_async.sync.aligned.m64n" #tokens                                     \
                   "k16.f32.bf16.bf16 {" GALLEY_NAMES_##n "}, %" #n ", %" #n1                      \
                                                          ", p, 1, 1, 0, 0;\n}\n"                  \
                   : GALLEY_SUMS_##n(d)                                                            \
                   : "l"(a), "l"(b), "r"(int(add)));                                               \
    }                                                                                              \
  }

GALLEY_WGMMA_BF16(8, 4, 5, 6, 7, 8, 9);
GALLEY_WGMMA_BF16(32, 16, 17, 18, 19, 20, 21);
GALLEY_WGMMA_BF16(48, 24, 25, 26, 27, 28, 29);
GALLEY_WGMMA_BF16(64, 32, 33, 34, 35, 36, 37);
GALLEY_WGMMA_BF16(80, 40, 41, 42, 43, 44, 45);
GALLEY_WGMMA_BF16(96, 48, 49, 50, 51, 52, 53);
GALLEY_WGMMA_BF16(128, 64, 65, 66, 67, 68, 69);
GALLEY_WGMMA_BF16(160, 80, 81, 82, 83, 84, 85);
GALLEY_WGMMA_BF16(192, 96, 97, 98, 99, 100, 101);
GALLEY_WGMMA_BF16(256, 128, 129, 130, 131, 132, 133);

#undef GALLEY_WGMMA_BF16

}  // namespace galley::kernels::cuda
