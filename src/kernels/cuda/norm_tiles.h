// RMS norm of rows that only folded products read: their Q8 at once, the normed rows nowhere.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/cuda/input_tiles.h"
#include "kernels/cuda/launch.h"
#include "kernels/tensor.h"

namespace galley::kernels::cuda {

struct NormTiles {
  Rows<const Bf16> x;
  const Bf16* weight = nullptr;
  float eps = 0.0F;
  InputTiles tiles;
  WindowKeys keys;  // made on the side, if any (keys_beside_norm)
};

bool norm_tiles_supports(Rows<const Bf16> x, const Bf16* weight);
bool keys_beside_norm(const WindowKeys& keys);

// The bits of rms_norm and quantise_rows, and of window_keys.
void norm_tiles(Stream stream, const NormTiles& norm);

}  // namespace galley::kernels::cuda
