// The tensor cores' product of a warp: 16 x 8 exact sums of 32 integers of 8 bits each.
#pragma once

#include <cstdint>

namespace galley::kernels::cuda {

// c + a b: bytes of a without a sign, those of b with one, operands in the order of the
// instruction.
__device__ __forceinline__ void multiply_add_int8(uint32_t (&d)[4], const uint32_t (&a)[4],
                                                  uint32_t b0, uint32_t b1,
                                                  const uint32_t (&c)[4]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};\n"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]),
        "r"(c[2]), "r"(c[3]));
}

}  // namespace galley::kernels::cuda
