// Whether a choice of entries, blocks or experts that differs from the
// reference's is a legitimate near-tie.
//
// Pure comparisons of lists; knows nothing of files or layers.
#pragma once

#include <cstdint>
#include <span>

namespace galley::verify {

struct ChoiceDifference {
  int64_t rows = 0;
  int64_t different = 0;     // entries in one choice and not in the other
  int64_t illegitimate = 0;  // of those, the ones no near-tie explains
  int64_t chosen = 0;        // entries of the reference's choice
  double overlap() const {
    return chosen == 0 ? 1.0
                       : 1.0 - 0.5 * static_cast<double>(different) / static_cast<double>(chosen);
  }
  void add(const ChoiceDifference& other);
};

// Entries: ascending; `scores` of the visible entries, as the reference has them (-inf where it
// sees none); `pool` one flag an entry or empty. An entry may differ only if its score is within
// 1 % of the row's largest |score| from the k-th, the smallest one the reference chose.
ChoiceDifference compare_selection(std::span<const int32_t> measured,
                                   std::span<const int32_t> expected, std::span<const float> scores,
                                   std::span<const uint8_t> pool);

// Pools: one flag a visible entry; blocks of `block_size`, judged by their best score in the same
// way. The last block is forced in.
ChoiceDifference compare_pools(std::span<const uint8_t> measured, std::span<const uint8_t> expected,
                               std::span<const float> scores, int32_t block_size);

}  // namespace galley::verify
