// What the two kernels of the indexer share: the scores' (index_scores_sm90.cu) and the
// selection's (index_select_sm90.cu).
#pragma once

#include <cstdint>

#include "kernels/cuda/index_select_sm90.h"

namespace galley::kernels::cuda {

// Of one launch.
constexpr int32_t kIndexRowsMax = 1024;

// Of how many neighbouring scores the largest is kept beside them, where a row has more entries
// than are looked at one by one.
constexpr int32_t kIndexGroup = 64;
constexpr int32_t kDirectEntries = 32768;

// Where a call's intermediate results lie in its scratch.
struct IndexScratch {
  float* scores;        // [rows][stride]
  uint32_t* largest;    // [rows][stride / kIndexGroup], sortable
  float* block_scores;  // [rows][stride / 8], or null
  int64_t stride;
};

struct IndexParameters {
  IndexCall call;
  IndexScratch scratch;
  float factor;  // of head weights
};

// Larger float, larger integer; -0 equals 0, NaN is smallest.
__device__ __forceinline__ uint32_t sortable(float score) {
  const float plus = score + 0.0F;
  const uint32_t bits = __float_as_uint(plus);
  const uint32_t ordered = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  return plus != plus ? 0 : ordered;
}

// Entries that a row may choose from.
__device__ __forceinline__ int32_t eligible_of(const IndexRow& row) {
  if (row.pool == nullptr) return static_cast<int32_t>(row.visible);
  const int32_t blocks = *row.pool_count;
  if (blocks == 0) return 0;
  const int32_t last = row.pool[blocks - 1] * kIndexPoolBlock;
  return (blocks - 1) * kIndexPoolBlock +
         min(kIndexPoolBlock, static_cast<int32_t>(row.visible) - last);
}
__device__ __forceinline__ int32_t blocks_of(int32_t entries) {
  return (entries + kIndexPoolBlock - 1) / kIndexPoolBlock;
}

// What of a row must be scored: nothing where every entry fits into the selection.
__device__ __forceinline__ int32_t scored_of(const IndexRow& row, const IndexShape& shape) {
  const int32_t eligible = eligible_of(row);
  if (eligible > shape.top_k || row.scores != nullptr) return eligible;
  if (row.built_pool != nullptr && blocks_of(eligible) > shape.pool_blocks) return eligible;
  return 0;
}

// Enqueues the scores of p.call's rows and those of their blocks.
void launch_index_scores(const IndexParameters& p, int32_t multiprocessors, Stream stream);

}  // namespace galley::kernels::cuda
