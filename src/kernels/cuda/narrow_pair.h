// Two products behind each other of few narrow rows, in one launch (narrow_pair.cu).
#pragma once

#include <cstdint>

#include "kernels/cuda/device.h"
#include "kernels/cuda/launch.h"

namespace galley::kernels::cuda {

// y of `inner` is x of `outer`. Copies touch none of the rows that are read or written.
struct NarrowPair {
  RowProduct inner;
  RowProduct outer;
  const RowCopy* copies = nullptr;
  int64_t copy_count = 0;
};

// Whether it may be the first, and whether they are a pair.
bool begins_narrow_pair(const RowProduct& inner);
bool is_narrow_pair(const NarrowPair& pair);
void launch_narrow_pair(const NarrowPair& pair, Stream stream);

}  // namespace galley::kernels::cuda
