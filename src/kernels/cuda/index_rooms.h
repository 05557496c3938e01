// Working memory of an index's scores: rows beyond kScoreBytesMax go in turns.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/cuda/index_select_sm90.h"
#include "kernels/ops.h"

namespace galley::kernels::cuda {

inline constexpr int64_t kScoreBytesMax = int64_t{256} << 20;

// Of index_select_sm90.
inline int64_t index_room_bytes(int64_t rows, int64_t entries, bool builds_pool) {
  return std::max(static_cast<int64_t>(index_scratch_bytes(1, entries, builds_pool)),
                  std::min(static_cast<int64_t>(index_scratch_bytes(rows, entries, builds_pool)),
                           kScoreBytesMax));
}

// What rows ask for, all together.
struct IndexWants {
  int64_t entries = 1;  // of the longest, `most` at least
  bool builds_pool = false;
  bool reads_pool = true;
  bool wants_scores = false;

  static IndexWants of(std::span<const IndexRow> rows, int64_t most) {
    IndexWants wants{.entries = std::max<int64_t>(1, most)};
    for (const IndexRow& row : rows) {
      wants.entries = std::max(wants.entries, row.visible);
      wants.builds_pool |= row.built_pool != nullptr;
      wants.reads_pool &= row.pool != nullptr;
      wants.wants_scores |= row.scores != nullptr;
    }
    return wants;
  }
};

// Of launch_index_select, f32 scores of `rows_at_once` rows each.
struct ScoreRooms {
  int64_t rows_at_once = 0;
  int64_t blocks = 0;  // of candidates, a row
  int64_t score_bytes = 0;
  int64_t block_bytes = 0;

  static ScoreRooms of(const IndexShape& shape, int64_t rows, int64_t entries) {
    ScoreRooms rooms;
    rooms.blocks = entries / std::max(1, shape.pool_block_size) + 1;
    rooms.rows_at_once = std::clamp<int64_t>(
        kScoreBytesMax / (entries * static_cast<int64_t>(sizeof(float))), 1, rows);
    rooms.score_bytes = rooms.rows_at_once * entries * static_cast<int64_t>(sizeof(float));
    rooms.block_bytes = rooms.rows_at_once * rooms.blocks * static_cast<int64_t>(sizeof(float));
    return rooms;
  }
};

}  // namespace galley::kernels::cuda
