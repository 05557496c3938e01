// What attention and indexer add to sm90.cuh: loads and stores, the packed bf16 product and the
// second kind of wgmma operand, one instruction each.
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90.cuh"

namespace galley::kernels::cuda {

__device__ __forceinline__ void store_shared(uint32_t at, uint4 value) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t at, uint2 value) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(at), "r"(value.x), "r"(value.y) : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t at, uint32_t value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(value) : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t at, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(value) : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t at, const uint8_t* value) {
  asm volatile("st.shared.b64 [%0], %1;" ::"r"(at), "l"(value) : "memory");
}
// Four 8 x 8 matrices of bf16: thread t holds two elements of row t / 4 of each, and says where row
// t % 8 of matrix t / 8 goes.
__device__ __forceinline__ void store_matrices(uint32_t at, uint32_t a, uint32_t b, uint32_t c,
                                               uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
}
// The same, each matrix turned: thread t holds two elements of column t / 4.
__device__ __forceinline__ void store_matrices_turned(uint32_t at, uint32_t a, uint32_t b,
                                                      uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}
// Four of them to where a wgmma or mma takes its first operand from; thread t says where row t % 8
// of matrix t / 8 lies.
__device__ __forceinline__ void load_matrices(uint32_t at, uint32_t (&x)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(at)
               : "memory");
}
__device__ __forceinline__ float load_shared_float(uint32_t at) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(at) : "memory");
  return value;
}
__device__ __forceinline__ uint4 load_shared_16(uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at)
               : "memory");
  return v;
}
__device__ __forceinline__ float2 load_shared_pair(uint32_t at) {
  float2 value;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(value.x), "=f"(value.y)
               : "r"(at)
               : "memory");
  return value;
}
__device__ __forceinline__ uint32_t load_shared_word(uint32_t at) {
  uint32_t value;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(at) : "memory");
  return value;
}
__device__ __forceinline__ uint32_t load_shared_two_bytes(uint32_t at) {
  uint32_t value;
  asm volatile("ld.shared.u16 %0, [%1];" : "=r"(value) : "r"(at) : "memory");
  return value;
}
__device__ __forceinline__ uint32_t load_shared_byte(uint32_t at) {
  uint32_t value;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(value) : "r"(at) : "memory");
  return value;
}
__device__ __forceinline__ const uint8_t* load_shared_pointer(uint32_t at) {
  uint64_t value;
  asm volatile("ld.shared.b64 %0, [%1];" : "=l"(value) : "r"(at) : "memory");
  return reinterpret_cast<const uint8_t*>(value);
}

// 16 bytes to shared memory behind this thread's back; copy_wait waits for all of its own.
__device__ __forceinline__ void copy_16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// A barrier's arrival when all copies of this thread so far are there.
__device__ __forceinline__ void copy_arrive(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}
// All but the last kPending groups of copies that this thread has committed are there.
template <int kPending>
__device__ __forceinline__ void copy_wait_but() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
__device__ __forceinline__ void copy_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }
__device__ __forceinline__ void prefetch_l2(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}
__device__ __forceinline__ void prefetch_l1(const void* p) {
  asm volatile("prefetch.global.L1 [%0];" ::"l"(p));
}

// Byte i of the result: by digit i of `choice`, of a's bytes (0 to 3) or b's (4 to 7); with 8
// added, eight times its sign.
__device__ __forceinline__ uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t choice) {
  uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(a), "r"(b), "r"(choice));
  return bytes;
}

// Two bf16 products, each rounded to nearest even; subnormals count.
__device__ __forceinline__ uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

// Keeps the compiler from moving its uses of accumulators across a wgmma's fence or wait.
template <int kCount>
__device__ __forceinline__ void hold_registers(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Whether the phase of a barrier with this parity has completed, without waiting for it.
__device__ __forceinline__ bool barrier_passed(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n.reg .pred done;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n}\n"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
// Where nothing has to be seen by the others: it need not wait for this thread's stores.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Where block `rank` of this cluster has what this one has at `address`.
__device__ __forceinline__ uint32_t remote_address(uint32_t address, int32_t rank) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
// `bytes` (a multiple of 16) at `address` to the same place of block `rank`, counted by its
// barrier.
__device__ __forceinline__ void bulk_copy_remote(uint32_t address, uint32_t bytes, uint32_t barrier,
                                                 int32_t rank) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(remote_address(address, rank)),
      "r"(address), "r"(bytes), "r"(remote_address(barrier, rank))
      : "memory");
}

// `bytes` (a multiple of 16) of this block's shared memory to global memory; the wait is this
// thread's for all of its own, whose bytes its later bulk loads see.
__device__ __forceinline__ void bulk_store(void* to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void bulk_store_wait() {
  asm volatile(
      "cp.async.bulk.commit_group;\n"
      "cp.async.bulk.wait_group 0;\n"
      "fence.proxy.async;" ::
          : "memory");
}

// 16 bytes to the other block's shared memory, counted by its barrier: both addresses are there
// (remote_address).
__device__ __forceinline__ void store_remote(uint32_t there, float a, float b, float c, float d,
                                             uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(there),
      "f"(a), "f"(b), "f"(c), "f"(d), "r"(barrier)
      : "memory");
}

// Rows of 16 summed columns: rows of 16 bytes for 8 columns, `bytes` of them, then the other 8. Not
// swizzled.
__device__ __forceinline__ uint64_t groups_descriptor(uint32_t address, uint32_t bytes) {
  return (static_cast<uint64_t>(address & 0x3FFFF) >> 4) |
         (static_cast<uint64_t>(bytes >> 4) << 16) | (uint64_t{128 >> 4} << 32);
}

// Tiles of 64 columns (rows of 128 swizzled bytes, 8 rows every 1,024 bytes) side by side, the next
// 64 columns `tile_bytes` further: an operand whose rows lie along the summed side.
__device__ __forceinline__ uint64_t tiles_descriptor(uint32_t address, uint32_t tile_bytes) {
  return (static_cast<uint64_t>(address & 0x3FFFF) >> 4) |
         (static_cast<uint64_t>(tile_bytes >> 4) << 16) | (uint64_t{64} << 32) |
         (uint64_t{1} << 62);
}

// Before a barrier: ordinary stores to shared memory become visible to the tensor cores.
__device__ __forceinline__ void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace galley::kernels::cuda
