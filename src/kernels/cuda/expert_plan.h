// Which rows go to which expert, and the rows on their way there and back.
#pragma once

#include <cstdint>

#include "kernels/cuda/carver.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/grouped_product.h"
#include "kernels/cuda/weight_tiles.h"
#include "kernels/tensor.h"

namespace galley::kernels::cuda {

// Working memory of a plan, in device memory. An expert's rows are neighbours and begin at a
// multiple of 8 (the swizzle's period); what lies between two experts is never written.
struct ExpertPlan {
  int32_t* place = nullptr;      // [rows * top_k] where each choice went
  float* row_weight = nullptr;   // [places + 256]
  TokenBlock* blocks = nullptr;  // [blocks_max]
  PlanTotals* totals = nullptr;
};

// Experts that a plan may have: a thread of a block each.
constexpr int32_t kExpertsMax = 1024;
// Places that `choices` rows of `experts` experts may take, gaps included.
constexpr int64_t plan_places(int64_t choices, int64_t experts) {
  return (choices + 7) / 8 * 8 + 8 * (experts + 1);
}
// Rows of each block but the last one of an expert that has `count`: block_tokens, or, where blocks
// are large, as few blocks as can be, alike but for a multiple of 8, or of a unit: a small block
// costs nearly as much as one twice its size.
GALLEY_HOST_DEVICE constexpr int32_t rows_of_block(int32_t count, int32_t block_tokens) {
  if (block_tokens < kPairStripsBlock) return block_tokens;
  if (count <= block_tokens) return block_tokens;
  if (block_tokens == kRowTilesBlock) {
    const int32_t units = (count + kRowTilesUnit - 1) / kRowTilesUnit;
    const int32_t parts = (units + kRowTilesUnits - 1) / kRowTilesUnits;
    return (units + parts - 1) / parts * kRowTilesUnit;
  }
  const int32_t parts = (count + block_tokens - 1) / block_tokens;
  return ((count + parts - 1) / parts + 7) / 8 * 8;
}
// Blocks of at most `tokens` rows.
constexpr int64_t plan_blocks(int64_t choices, int64_t experts, int64_t tokens) {
  return choices / tokens + (choices < experts ? choices : experts);
}

// experts, weights: [rows, top_k] in device memory, rows * top_k = choices. Experts outside
// [0, expert_count) are left out (another rank's); their place is -1.
void plan_experts(Stream stream, const int32_t* experts, const float* weights, int64_t choices,
                  int32_t expert_count, int32_t block_tokens, const ExpertPlan& plan);

// Rows in Q8 tiles: codes [chunks][places][128], scales [chunks][places]. `places` is a multiple
// of 8. Without x8 nothing is wanted.
struct QuantisedRows {
  uint8_t* x8 = nullptr;
  float* scale = nullptr;
  int64_t places = 0;
};
inline QuantisedRows carve_rows(int64_t places, int64_t chunks, Carver& carver) {
  QuantisedRows rows;
  rows.x8 = carver.take<uint8_t>(places * chunks * kChunk);
  rows.scale = carver.take<float>(places * chunks);
  rows.places = places;
  return rows;
}
// x [rows, columns] to `choices`, each row to the places of its top_k choices, and in its order to
// `rows`.
void quantise_choices(Stream stream, Rows<const Bf16> x, const int32_t* place, int32_t top_k,
                      const QuantisedRows& choices, const QuantisedRows& rows = {});
// A plan, and rows in Q8 (in their order) to the places of their choices: one launch of few
// choices.
void plan_and_spread(Stream stream, const int32_t* experts, const float* weights, int64_t rows,
                     int32_t top_k, int32_t expert_count, int32_t block_tokens,
                     const ExpertPlan& plan, const QuantisedRows& from, const QuantisedRows& to,
                     int32_t chunks);
// The second half of that, of any number of choices: row r's codes to place[r * top_k..].
void spread_rows(Stream stream, const QuantisedRows& from, int64_t rows, int32_t top_k,
                 const int32_t* place, const QuantisedRows& to, int32_t chunks);
// Rows of x that are in their places already (`choices` of them), and all of y in order.
void quantise_places(Stream stream, Rows<const Bf16> x, const int32_t* place, int64_t choices,
                     const QuantisedRows& x_to, Rows<const Bf16> y, const QuantisedRows& y_to);
// Row source[p] of x to place p, of all that a plan uses. What lies between two experts may be any
// number: such a row is copied, or none.
void quantise_sources(Stream stream, Rows<const Bf16> x, const int32_t* source,
                      const PlanTotals* totals, const QuantisedRows& to);
// All rows of x, in order. `places` >= x.rows.
void quantise_rows(Stream stream, Rows<const Bf16> x, int64_t places, uint8_t* x8, float* x_scale);
// The same and, on further blocks, copies that have nothing to do with it.
void quantise_rows_and_copy(Stream stream, Rows<const Bf16> x, int64_t places, uint8_t* x8,
                            float* x_scale, const RowCopy* copies, int64_t count);

// y[r] = bf16(sum of f32(expert_rows[place]) in the order of the choices, then f32(shared[r])).
void combine_experts(Stream stream, Rows<const Bf16> expert_rows, const int32_t* place,
                     int32_t top_k, Rows<const Bf16> shared, Rows<Bf16> y);

}  // namespace galley::kernels::cuda
