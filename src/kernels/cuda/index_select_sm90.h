// The indexer at the released shape on SM90: scores of 32 or 64 index heads x 128 over packed
// keys, candidate pool and exact top-k (ops.h, Ops::index_select).
//
// Knows neither pages nor sequences beyond the row descriptors. Other shapes go to the
// general kernel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device.h"
#include "kernels/ops.h"

namespace galley::kernels::cuda {

inline constexpr int32_t kIndexWidth = 128;
inline constexpr int32_t kIndexPoolBlock = 8;

// Everything points to device memory. Records start at multiples of 16 bytes wherever the record
// number is a multiple of 8.
struct IndexCall {
  const Bf16* queries = nullptr;  // [rows, heads x 128] as index_queries leaves them
  int64_t query_stride = 0;
  const Bf16* head_weights = nullptr;  // [rows, heads]
  int64_t weight_stride = 0;
  IndexShape shape;
  const IndexRow* rows = nullptr;  // [row_count], its pointers too are device pointers
  int32_t row_count = 0;
  // At least the entries that any row chooses from: visible ones, or those of its pool.
  int64_t entries_max = 0;
  bool builds_pool = false;  // some row has built_pool
  void* scratch = nullptr;
  size_t scratch_bytes = 0;

  // Of so many rows; the rest is still to be set.
  static IndexCall of(Rows<const Bf16> queries, Rows<const Bf16> head_weights,
                      const IndexShape& shape, const IndexRow* device_rows) {
    IndexCall call;
    call.queries = queries.data;
    call.query_stride = queries.stride;
    call.head_weights = head_weights.data;
    call.weight_stride = head_weights.stride;
    call.shape = shape;
    call.rows = device_rows;
    call.row_count = static_cast<int32_t>(queries.rows);
    return call;
  }
};

// records_per_page must be a multiple of 8; IndexRow::scores together with a pool is not served.
bool index_select_sm90_supports(const IndexShape& shape, int32_t records_per_page);

// Scratch for `rows` rows at once; index_select_sm90 takes as many rows at a time as fit.
size_t index_scratch_bytes(int64_t rows, int64_t entries_max, bool builds_pool);

// `multiprocessors` only places work: results do not depend on it. The caller checks errors
// (check_launch).
void index_select_sm90(const IndexCall& call, int32_t multiprocessors, Stream stream);

}  // namespace galley::kernels::cuda
