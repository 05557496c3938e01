// Launches of the product kernels: grid, cluster and shared memory of each form.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/grouped_product.h"
#include "kernels/cuda/ordered_launch.cuh"

namespace galley::kernels::cuda {

// What a kernel may use, asked once: blocks that are resident together.
struct LaunchLimits {
  int32_t blocks = 0;

  template <class Kernel>
  static LaunchLimits of(Kernel kernel, int32_t threads, int32_t shared_bytes, int32_t cluster) {
    int32_t device = 0;
    int32_t multiprocessors = 1;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    LaunchLimits limits{multiprocessors};
    if (cluster > 1) {
      cudaLaunchAttribute attribute;
      cudaLaunchConfig_t config = configuration(nullptr, multiprocessors / cluster * cluster,
                                                threads, shared_bytes, cluster, &attribute);
      int32_t clusters = 0;
      cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
      limits.blocks =
          (clusters < multiprocessors / cluster ? clusters : multiprocessors / cluster) * cluster;
    }
    return limits;
  }

  static cudaLaunchConfig_t configuration(Stream stream, int32_t blocks, int32_t threads,
                                          int32_t shared_bytes, int32_t cluster,
                                          cudaLaunchAttribute* attribute) {
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<uint32_t>(blocks));
    config.blockDim = dim3(static_cast<uint32_t>(threads));
    config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
    config.stream = stream;
    attribute->id = cudaLaunchAttributeClusterDimension;
    attribute->val.clusterDim.x = static_cast<uint32_t>(cluster);
    attribute->val.clusterDim.y = 1;
    attribute->val.clusterDim.z = 1;
    config.attrs = attribute;
    config.numAttrs = cluster > 1 ? 1 : 0;
    return config;
  }
};

template <class Kernel>
void launch_blocks(Kernel kernel, Stream stream, int32_t blocks, int32_t threads,
                   int32_t shared_bytes, int32_t cluster, const ProductArguments& args) {
  if (blocks == 0) return;
  launch_kernel(
      kernel, {blocks, threads, static_cast<size_t>(shared_bytes), static_cast<uint32_t>(cluster)},
      stream, args);
}

}  // namespace galley::kernels::cuda
