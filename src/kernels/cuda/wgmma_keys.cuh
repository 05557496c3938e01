// The bf16 products (wgmma) of sparse attention: scores, 64 heads x 64, 80 or 48 keys, and values,
// 64 heads x 128 channels. d [64, N] f32 becomes a [64, 16] b [16, N], plus d if `add`.
//
// Accumulators: thread t of warp w (of 4) holds rows 16 w + t/4 and + 8; of every 8
// columns it holds 2 (t % 4) and the next. d[4 i + 0..1]: the first row's of the
// i-th 8 columns, d[4 i + 2..3]: the second row's.
#pragma once

#include <cstdint>

#include "kernels/cuda/wgmma_registers.cuh"

namespace galley::kernels::cuda {

// bf16; both operands in shared memory, rows along the summed side.
__device__ __forceinline__ void product_64x64x16(float (&d)[32], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{" GALLEY_NAMES_32
      "}, "
      "%32, %33, p, 1, 1, 0, 0;\n"
      "}\n"
      : GALLEY_SUMS_32(d)
      : "l"(a), "l"(b), "r"(static_cast<int32_t>(add)));
}

// The same with `a` in registers (load_matrices): shared memory is then read half as much.
__device__ __forceinline__ void product_64x64x16(float (&d)[32], const uint32_t (&a)[4], uint64_t b,
                                                 bool add) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{" GALLEY_NAMES_32
      "}, "
      "{%32, %33, %34, %35}, %36, p, 1, 1, 0;\n"
      "}\n"
      : GALLEY_SUMS_32(d)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int32_t>(add)));
}

// The same for 80 keys or 48: the sums of 64 keys have the bits they have there.
__device__ __forceinline__ void product_scores_16(float (&d)[40], uint64_t a, uint64_t b,
                                                  bool add) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %42, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n80k16.f32.bf16.bf16 "
      "{" GALLEY_NAMES_40
      "}, "
      "%40, %41, p, 1, 1, 0, 0;\n"
      "}\n"
      : GALLEY_SUMS_40(d)
      : "l"(a), "l"(b), "r"(static_cast<int32_t>(add)));
}
__device__ __forceinline__ void product_scores_16(float (&d)[24], uint64_t a, uint64_t b,
                                                  bool add) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %26, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 "
      "{" GALLEY_NAMES_24
      "}, "
      "%24, %25, p, 1, 1, 0, 0;\n"
      "}\n"
      : GALLEY_SUMS_24(d)
      : "l"(a), "l"(b), "r"(static_cast<int32_t>(add)));
}

// 64 channels of 16 keys, along which they lie, by 64 heads or 32.
__device__ __forceinline__ void product_keys_16(float (&d)[32], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{" GALLEY_NAMES_32
      "}, "
      "%32, %33, p, 1, 1, 1, 0;\n"
      "}\n"
      : GALLEY_SUMS_32(d)
      : "l"(a), "l"(b), "r"(static_cast<int32_t>(add)));
}
__device__ __forceinline__ void product_keys_16(float (&d)[16], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{" GALLEY_NAMES_16
      "}, "
      "%16, %17, p, 1, 1, 1, 0;\n"
      "}\n"
      : GALLEY_SUMS_16(d)
      : "l"(a), "l"(b), "r"(static_cast<int32_t>(add)));
}

// b's rows along its N columns: the keys' tile read as values.
__device__ __forceinline__ void product_64x128x16_keys(float (&d)[64], uint64_t a, uint64_t b,
                                                       bool add) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{" GALLEY_NAMES_64
      "}, "
      "%64, %65, p, 1, 1, 0, 1;\n"
      "}\n"
      : GALLEY_SUMS_64(d)
      : "l"(a), "l"(b), "r"(static_cast<int32_t>(add)));
}
__device__ __forceinline__ void product_64x128x16_keys(float (&d)[64], const uint32_t (&a)[4],
                                                       uint64_t b, bool add) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{" GALLEY_NAMES_64
      "}, "
      "{%64, %65, %66, %67}, %68, p, 1, 1, 1;\n"
      "}\n"
      : GALLEY_SUMS_64(d)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int32_t>(add)));
}

}  // namespace galley::kernels::cuda
