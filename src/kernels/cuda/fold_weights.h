// Quantised weights, as the checkpoint has them, into the grouped product's own order
// (weight_tiles.h). Once, when a model is placed on the device.
#pragma once

#include <cstdint>

#include "kernels/cuda/device.h"

namespace galley::kernels::cuda {

// One matrix [rows, in] in device memory. Paired folds take two of the same shape.
struct RawWeight {
  const uint8_t* codes = nullptr;  // fp4: [rows, in / 2]; fp8: [rows, in]
  const uint8_t* scale = nullptr;  // UE8M0; fp4: [rows, ceil(in / 32)]; fp8: [ceil(rows / 32), ..]
};

struct FoldShape {
  int64_t rows = 0;  // of each matrix
  int64_t in = 0;    // fp4: a multiple of 32
  bool paired = false;

  int64_t slots() const;
  int64_t chunks() const;
};

int64_t folded_fp4_bytes(const FoldShape& shape);
int64_t folded_fp8_bytes(const FoldShape& shape);

// tiles: folded_fp4_bytes; row_scale: shape.slots(). *misfits (device) grows by the blocks whose
// scale is out of the reach of their row's base: with any of them the tiles are not the matrix,
// and the caller takes another path.
void fold_fp4(Stream stream, const RawWeight& first, const RawWeight& second,
              const FoldShape& shape, uint8_t* tiles, float* row_scale, int32_t* misfits);

// Device counters of fp8 folds.
struct FoldCounters {
  int32_t* misfits = nullptr;  // tiles of 32 x 128 whose values would move too far
  int32_t* rounded = nullptr;  // codes that moved, of the others
};

// tiles: folded_fp8_bytes. As above, with any misfit the tiles are not the matrix.
void fold_fp8(Stream stream, const RawWeight& first, const RawWeight& second,
              const FoldShape& shape, uint8_t* tiles, const FoldCounters& counters);

}  // namespace galley::kernels::cuda
