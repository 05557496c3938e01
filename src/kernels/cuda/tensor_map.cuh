// Matrices as the copy engine sees them: boxes of them go to shared memory, zeros where a box
// reaches past the matrix, pieces of 16 bytes exchanged as wgmma wants them where rows of the box
// have 64 or 128 bytes.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "base/check.h"

namespace galley::kernels::cuda {

// The driver's encoder, without linking against the driver: the program starts where there is none.
inline CUtensorMap matrix_map(const void* data, int64_t rows, int64_t columns, int64_t row_bytes,
                              int32_t element_bytes, int32_t box_rows, int32_t box_columns) {
  static const auto encode = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry,
                                                               12000, cudaEnableDefault, &found);
    CHECK(error == cudaSuccess && found == cudaDriverEntryPointSuccess);
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry);
  }();
  CUtensorMap map;
  const cuuint64_t extent[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t stride[1] = {static_cast<cuuint64_t>(row_bytes)};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(box_columns),
                             static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t step[2] = {1, 1};
  const int32_t box_row_bytes = box_columns * element_bytes;
  CHECK(box_row_bytes % 16 == 0);
  const CUresult result = encode(
      &map, element_bytes == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
      2, const_cast<void*>(data), extent, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
      box_row_bytes == 64    ? CU_TENSOR_MAP_SWIZZLE_64B
      : box_row_bytes == 128 ? CU_TENSOR_MAP_SWIZZLE_128B
                             : CU_TENSOR_MAP_SWIZZLE_NONE,
      CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CHECK(result == CUDA_SUCCESS);
  return map;
}

__device__ __forceinline__ void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// The box that begins at (row, column), counted by the barrier.
__device__ __forceinline__ void box_load(uint32_t destination, const CUtensorMap& map,
                                         int32_t column, int32_t row, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(destination),
      "l"(&map), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}
// The same for all blocks of the cluster whose bit is set, at the same place in each.
__device__ __forceinline__ void box_load_multicast(uint32_t destination, const CUtensorMap& map,
                                                   int32_t column, int32_t row, uint32_t barrier,
                                                   uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(destination),
      "l"(&map), "r"(column), "r"(row), "r"(barrier), "h"(blocks)
      : "memory");
}

// The box in shared memory to (row, column), what reaches past the matrix left out. Committed
// together; then a thread waits until all of its boxes were read, or are in memory.
__device__ __forceinline__ void box_store(const CUtensorMap& map, int32_t column, int32_t row,
                                          uint32_t source) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map),
      "r"(column), "r"(row), "r"(source)
      : "memory");
}
__device__ __forceinline__ void box_stores_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ __forceinline__ void box_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void box_stores_wait() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

}  // namespace galley::kernels::cuda
