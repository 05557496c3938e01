// Launches that may begin before the kernel in front of them has ended, and what every kernel does
// so that its order holds all the same (programmatic dependent launch).
//
// launch_kernel() lets a kernel's blocks be placed as soon as all blocks of the one before it
// called await_earlier(), or ended: the time that a launch takes then passes while the earlier
// kernel works. await_earlier() lets its threads go on when that kernel has ended and its writes
// are seen. The order stays transitive, because every thread of every kernel calls it before it
// reads or writes what another kernel writes or reads: a kernel that ends has waited for the one
// before it. So a kernel may leave early only behind this call. What is constant while a model is
// loaded may be read before it; so may what the kernel in front does not write, since that one was
// let go on by the end of all others (attention's keys, while a product makes its queries),
// unless it lets the next one begin before its own wait (let_next_begin()). What is not constant
// must not come by the read-only path: global_loads.cuh.
//
// Copies and kernels that are launched elsewhere keep their full order with these, on both sides.
// Captured, an order of two kernels is a programmatic edge of the graph, any other a full one.
// GALLEY_CUDA_OVERLAP=0 launches everything in full order, for comparison.
#pragma once

#include <cuda_runtime.h>

#include <concepts>
#include <cstdlib>
#include <string_view>
#include <type_traits>

#include "kernels/cuda/device.h"

namespace galley::kernels::cuda {

// Waits for all earlier kernels, then lets the next one be placed. Not before: at most two kernels
// are then under way, and blocks that wait never take the room of blocks that work.
__device__ __forceinline__ void await_earlier() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Lets the next kernel be placed already, by one that has few blocks and may be behind another
// such: what the next one has to do before its own wait (weights to unpack) passes meanwhile. That
// one must not read before its wait what is older than this kernel: this one has not waited yet. It
// still waits for this one's end, which comes behind the end of all before.
__device__ __forceinline__ void let_next_begin() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

struct Extent : dim3 {
  Extent(dim3 all) : dim3(all) {}
  template <std::integral T>
  Extent(T x_in) : dim3(static_cast<uint32_t>(x_in)) {}
};

struct Grid {
  Grid(Extent blocks_in, Extent threads_in, size_t shared_bytes_in = 0, uint32_t cluster_in = 1)
      : blocks(blocks_in),
        threads(threads_in),
        shared_bytes(shared_bytes_in),
        cluster(cluster_in) {}

  dim3 blocks;
  dim3 threads;
  size_t shared_bytes;  // dynamic
  uint32_t cluster;     // blocks of x that run together
};

inline bool launches_overlap() {
  static const bool overlap = [] {
    const char* value = std::getenv("GALLEY_CUDA_OVERLAP");
    return value == nullptr || std::string_view(value) != "0";
  }();
  return overlap;
}

// kernel(arguments...) behind everything that the stream has. The kernel calls await_earlier().
template <class... P>
void launch_kernel(void (*kernel)(P...), const Grid& grid, Stream stream,
                   const std::type_identity_t<P>&... arguments) {
  constexpr size_t kSharedWithoutAsking = size_t{48} << 10;
  if (grid.shared_bytes > kSharedWithoutAsking) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(grid.shared_bytes));
  }
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config = {};
  config.gridDim = grid.blocks;
  config.blockDim = grid.threads;
  config.dynamicSmemBytes = grid.shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  if (launches_overlap()) {
    cudaLaunchAttribute& overlap = attributes[config.numAttrs++];
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
  }
  if (grid.cluster > 1) {
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = grid.cluster;
    cluster.val.clusterDim.y = 1;
    cluster.val.clusterDim.z = 1;
  }
  cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace galley::kernels::cuda
