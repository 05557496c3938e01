// The few SM90 instructions that C++ has no words for: barriers in shared memory, bulk copies
// that complete on them, and the fences of wgmma.
//
// Only what the grouped product uses; each function is one instruction or one loop around one.
#pragma once

#include <cstdint>

namespace galley::kernels::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the copy engine and to the other blocks of a cluster.
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// The barrier at which a stage is handed back, once `loaded`, made of all that the warp loaded of
// the stage, is in registers. An arrival waits for no loads in front of it, nor does the copy
// engine, which is another proxy: where another kernel keeps the processor's load units busy, they
// may still be in the queue when the stage's next contents come (scales of a chunk too late, in 9
// of 10 runs beside a projection of hyper-connections on a second stream, in 11 of 24 products of
// experts). The bits are part of the address, those that `zero` has, which is 0, and the compiler
// does not know: half of the grid's size in z lies where an operation reads it at once; a block's
// own number is 30 cycles away, but needs no register meanwhile.
__device__ __forceinline__ uint32_t behind_loads(uint32_t barrier, uint32_t loaded,
                                                 uint32_t zero = gridDim.z >> 1) {
  return barrier + (loaded & zero);
}

// Arrives at the same barrier of block `rank` of this cluster.
__device__ __forceinline__ void barrier_arrive_remote(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}\n" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

// Blocks until the phase with this parity has completed.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra ready;\n"
      "bra again;\n"
      "ready:\n}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// The same, for threads whose wait may be long and whose work is not urgent.
__device__ __forceinline__ void barrier_wait_asleep(uint32_t barrier, uint32_t parity) {
  while (true) {
    uint32_t done;
    asm volatile(
        "{\n.reg .pred done;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
        "selp.u32 %0, 1, 0, done;\n}\n"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    if (done != 0) return;
    __nanosleep(64);
  }
}

// `bytes` (a multiple of 16) of global memory into shared memory, counted by the barrier.
__device__ __forceinline__ void bulk_load(uint32_t destination, const void* source, uint32_t bytes,
                                          uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(destination),
      "l"(source), "r"(bytes), "r"(barrier)
      : "memory");
}

// The same for all blocks of the cluster whose bit is set, at the same place in each.
__device__ __forceinline__ void bulk_load_multicast(uint32_t destination, const void* source,
                                                    uint32_t bytes, uint32_t barrier,
                                                    uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1], %2, [%3], %4;" ::"r"(destination),
      "l"(source), "r"(bytes), "r"(barrier), "h"(blocks)
      : "memory");
}

// Some warps of a block meet, or say that they were here.
__device__ __forceinline__ void named_sync(int32_t name, int32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_arrive(int32_t name, int32_t threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

__device__ __forceinline__ void cluster_sync() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// A warpgroup hands registers back, or takes what others handed back.
template <int kRegisters>
__device__ __forceinline__ void registers_give() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void registers_take() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// A value that is the same in the whole warp, told to the compiler: it then lives in a uniform
// register. wgmma takes its descriptors from there, and a move for each of them costs more than
// the product of few tokens.
__device__ __forceinline__ uint32_t warp_uniform(uint32_t value) {
  return __shfl_sync(0xffffffffU, value, 0);
}

// One lane of a whole warp. The compiler knows that it is one: a copy that it starts needs no loop
// over the lanes that may take part, and its operands stay in uniform registers.
__device__ __forceinline__ bool elected() {
  uint32_t mine;
  asm volatile(
      "{\n.reg .pred one;\n"
      "elect.sync _|one, 0xffffffff;\n"
      "selp.b32 %0, 1, 0, one;\n}\n"
      : "=r"(mine));
  return mine != 0;
}

// Rows of 128 bytes, 8 rows an atom of 1,024 bytes, 16-byte pieces exchanged by row mod 8.
// Addresses are multiples of 16 below 256 KB, so parts of an operand are reached by adding.
__device__ __forceinline__ uint64_t swizzled_descriptor(uint32_t address) {
  return (uint64_t{0x40000040} << 32) | (0x10000U + (address >> 4));
}
__device__ __forceinline__ uint64_t advance_descriptor(uint64_t descriptor, uint32_t bytes) {
  return (descriptor & 0xffffffff00000000ULL) | (static_cast<uint32_t>(descriptor) + bytes / 16);
}

}  // namespace galley::kernels::cuda
