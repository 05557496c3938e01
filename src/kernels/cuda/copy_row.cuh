// One copy of bytes within device memory, by a block or a warp.
#pragma once

#include "kernels/ops.h"

namespace galley::kernels::cuda {

// By kThreads, this one being number `thread`. Steps of 16, 4 or 2 bytes where both ends allow,
// else single bytes.
template <int kThreads>
__device__ __forceinline__ void copy_row(const RowCopy& one, uint32_t thread = threadIdx.x) {
  const auto from = reinterpret_cast<uintptr_t>(one.from);
  const auto to = reinterpret_cast<uintptr_t>(one.to);
  int64_t done = 0;
  if (((from | to) & 15U) == 0) {
    const int64_t vectors = one.bytes / 16;
    for (int64_t i = thread; i < vectors; i += kThreads) {
      static_cast<uint4*>(one.to)[i] = static_cast<const uint4*>(one.from)[i];
    }
    done = vectors * 16;
  } else if (((from | to) & 3U) == 0) {
    const int64_t words = one.bytes / 4;
    for (int64_t i = thread; i < words; i += kThreads) {
      static_cast<uint32_t*>(one.to)[i] = static_cast<const uint32_t*>(one.from)[i];
    }
    done = words * 4;
  } else if (((from | to) & 1U) == 0) {
    const int64_t halves = one.bytes / 2;
    for (int64_t i = thread; i < halves; i += kThreads) {
      static_cast<uint16_t*>(one.to)[i] = static_cast<const uint16_t*>(one.from)[i];
    }
    done = halves * 2;
  }
  for (int64_t i = done + thread; i < one.bytes; i += kThreads) {
    static_cast<uint8_t*>(one.to)[i] = static_cast<const uint8_t*>(one.from)[i];
  }
}

}  // namespace galley::kernels::cuda
