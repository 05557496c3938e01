// Rows in Q8 as folded products read them, [chunks][places][128] codes and [chunks][places] scales.
//
// `places` is a multiple of 8 and at least the rows; what is behind the rows may be anything.
#pragma once

#include <cstdint>

#include "kernels/cuda/weight_tiles.h"

namespace galley::kernels::cuda {

struct InputTiles {
  uint8_t* codes = nullptr;
  float* scale = nullptr;
  int64_t places = 0;

  static int64_t places_of(int64_t rows) { return (rows + 7) / 8 * 8; }
  static int64_t bytes(int64_t rows, int64_t columns) {
    return places_of(rows) * tiled_chunks(columns) * (kChunk + int64_t{sizeof(float)});
  }
  // In room of bytes(rows, columns); the scales begin a multiple of 1,024 bytes further.
  static InputTiles in(uint8_t* room, int64_t rows, int64_t columns) {
    const int64_t places = places_of(rows);
    uint8_t* behind = room + places * tiled_chunks(columns) * kChunk;
    return {room, reinterpret_cast<float*>(behind), places};
  }
};

}  // namespace galley::kernels::cuda
