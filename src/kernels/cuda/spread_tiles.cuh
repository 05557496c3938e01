// Rows in Q8 tiles, as who made them left them in their order, to the places of their choices.
//
// Floor: each code read once and written for every choice. A thread has 16 bytes of a row's 128;
// the eight of a row write whole lines.
#pragma once

#include <cstdint>

#include "kernels/cuda/expert_plan.h"
#include "kernels/cuda/weight_tiles.h"

namespace galley::kernels::cuda {

struct SpreadTask {
  QuantisedRows from;
  int64_t rows = 0;
  int32_t top_k = 0;
  QuantisedRows to;
};

struct SpreadPiece {
  uint4 codes;
  float scale;
};

constexpr int32_t kRowPieces = kChunk / 16;

// Piece item % 8 of row item / 8, as it is stored; nothing behind the last row.
__device__ __forceinline__ SpreadPiece load_piece(const SpreadTask& task, int64_t chunk,
                                                  int64_t item) {
  const int64_t row = item / kRowPieces;
  if (row >= task.rows) return {};
  const int64_t from = chunk * task.from.places + row;
  return {*reinterpret_cast<const uint4*>(task.from.x8 + from * kChunk + item % kRowPieces * 16),
          task.from.scale[from]};
}

// To the places of its row's choices, place_of[row * top_k + choice]; below 0 there is none.
__device__ __forceinline__ void spread_piece(const SpreadTask& task, int64_t chunk, int64_t item,
                                             const int32_t* place_of, const SpreadPiece& piece) {
  const int64_t row = item / kRowPieces;
  if (row >= task.rows) return;
  const auto which = static_cast<int32_t>(item % kRowPieces) ^ static_cast<int32_t>(row & 7);
  for (int32_t k = 0; k < task.top_k; ++k) {
    const int32_t place = place_of[row * task.top_k + k];
    if (place < 0) continue;
    const int64_t to = chunk * task.to.places + place;
    *reinterpret_cast<uint4*>(task.to.x8 + to * kChunk + (which ^ (place & 7)) * 16) = piece.codes;
    if (which == 0) task.to.scale[to] = piece.scale;
  }
}

}  // namespace galley::kernels::cuda
