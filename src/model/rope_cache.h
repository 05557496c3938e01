// cos and sin of the positions that steps ask for, kept: a row of the released model is 128 sines,
// and a step of 16k rows would otherwise spend 30 ms on them while a device waits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/memory.h"
#include "kernels/rope_table.h"

namespace galley::model {

class RopeCache {
 public:
  // Positions below this are kept: 32 MiB of a table with 64 turning channels. Memory is taken as
  // positions are first seen.
  static constexpr int64_t kPositionsMax = 128 << 10;

  // For positions below `positions_max`; later ones are computed every time.
  RopeCache(const kernels::RopeOptions& options, int64_t positions_max);

  // The bits of RopeTable::fill. Rows of cos and sin [positions, rotary / 2].
  void fill(std::span<const int64_t> positions, kernels::Rows<float> cos, kernels::Rows<float> sin);

 private:
  float* row(int64_t position) const {
    return reinterpret_cast<float*>(rows_.data()) + position * 2 * pairs_;
  }

  kernels::RopeTable table_;
  int64_t pairs_;
  kernels::MemoryBlock rows_;   // [positions, 2, pairs], mapped but not touched
  std::vector<bool> is_known_;  // [positions]; empty without memory for the rows
};

}  // namespace galley::model
