// The launches that every shape can take: copies, products, experts, indexer and
// attention. Faster ones for the released shapes have headers of their own.
//
// Plain functions that enqueue on a stream and return: no allocation, no
// synchronisation, launch shapes that depend on row counts and model shapes
// alone, so that a step can be captured into a graph. One order of summation an
// operation: a row's bits do not depend on the rows beside it. The caller checks
// errors (check_launch) and owns all memory.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/device.h"
#include "kernels/cuda/site_mixes.h"
#include "kernels/ops.h"
#include "kernels/tensor.h"

namespace galley::kernels::cuda {

// --- rows (rows.cu) -----------------------------------------------------------
void launch_copy(const RowCopy* copies, int64_t count, Stream stream);

// --- products (linear.cu) -----------------------------------------------------
// to [rows, padded] packed: the input of a product, quantised by Q8 or as it is, zeros from
// x.cols on.
void launch_pack_input(Rows<const Bf16> x, bool quantise, Rows<Bf16> to, Stream stream);

// Whether rows of x can be read in place: whole vectors of 16 bytes.
bool is_packed_input(Rows<const Bf16> x);
// Columns of a room for packed rows.
constexpr int64_t whole_vectors(int64_t columns) { return (columns + 15) / 16 * 16; }

struct RowProduct {
  Rows<const Bf16> x = {};  // is_packed_input
  WeightView weight = {};
  int32_t groups = 1;  // block-diagonal: output o reads part o / (out / groups) of x
  Rows<Bf16> y = {};
  Rows<float> y_f32 = {};
  bool quantise = false;  // Q8 of x first; only in a ProductSet

  static RowProduct of(Rows<const Bf16> x, const Product& product) {
    return {.x = x,
            .weight = product.weight,
            .y = product.y,
            .y_f32 = product.y_f32,
            .quantise = product.quantise_input};
  }
};
void launch_product(const RowProduct& product, Stream stream);

// Whether it is computed by wide_product.cu: weights whose strips of 64 outputs fill the chip.
// Fixed by the weight and its groups. launch_product sends it there; a ProductSet does not take it.
bool takes_wide(const RowProduct& product);
void launch_wide_product(const RowProduct& product, Stream stream);

// Whether the product is computed in strips of outputs, by the tensor cores.
bool takes_strips(const RowProduct& product);

// Whether it is computed by narrow_product.cu, whose sums have parts: few outputs, long sums. A
// ProductSet of such products (of one input, nothing on the side) is launch_narrow's alone.
bool takes_narrow(const RowProduct& product);

// Ops::window_keys of few rows.
struct WindowKeys {
  Rows<const Bf16> x = {};
  const Bf16* norm_weight = nullptr;
  float eps = 0.0F;
  RopeAngles angles = {};
  Rows<uint8_t> records = {};
};

// few_rows.cu: products of few rows in one launch, none of which reads what another writes. The
// sums are those of launch_product, to the bit.
struct ProductSet {
  static constexpr int32_t kMax = 6;
  static constexpr int64_t kRowsMax = 256;
  // Wider inputs are quantised once, by a launch of their own, and not by every strip.
  static constexpr int64_t kQuantisedWidthMax = 1024;

  RowProduct products[kMax];  // takes_few_rows, all of as many rows
  int32_t count = 0;
  // If set, the one input x of all products is RMS of these rows first (norms_along).
  const Bf16* norm_weight = nullptr;
  float norm_eps = 0.0F;
  // What is done on the side, if anything.
  WindowKeys window_keys = {};  // rides_along
  const RowCopy* copies = nullptr;
  int64_t copy_count = 0;
  SiteMixes mixes = {};
};
// Up to 8 rows of any product in strips; up to kRowsMax of one whose weights are small enough to be
// read again by every 8 rows.
bool takes_few_rows(const RowProduct& product);
bool rides_along(const WindowKeys& keys);
bool norms_along(Rows<const Bf16> x, const Bf16* norm_weight);
// Products of the norm of x, those of them that fit.
ProductSet normed_products(Rows<const Bf16> x, const Bf16* norm_weight, float eps,
                           std::span<const Product> products);
void launch_few_rows(const ProductSet& set, Stream stream);
void launch_narrow(const ProductSet& set, Stream stream);

// --- experts (moe.cu) ---------------------------------------------------------
// Which (row, choice) pairs go to which expert: pairs in order of expert, then of row.
struct PairPlan {
  int32_t* pair = nullptr;         // [rows * top_k] pair number row * top_k + choice, sorted
  int32_t* begin = nullptr;        // [experts + 1] first sorted place of each expert
  int32_t* tile_expert = nullptr;  // [tiles_max]
  int32_t* tile_begin = nullptr;   // [tiles_max] sorted place; tiles end with their expert
  int32_t* tile_count = nullptr;   // [1]

  // In a room of pair_plan_bytes().
  static PairPlan in(void* room, int64_t pairs, int32_t experts, int32_t tile_rows);
};
int64_t expert_tiles_max(int64_t pairs, int32_t experts, int32_t tile_rows);
// Of its five lists.
int64_t pair_plan_bytes(int64_t pairs, int32_t experts, int32_t tile_rows);
int32_t expert_tile_rows(int64_t pairs, int32_t experts);
void launch_expert_plan(Rows<const int32_t> experts, int32_t expert_count, int32_t tile_rows,
                        const PairPlan& plan, Stream stream);

// y[pair] = W[expert of pair] x[pair / rows_per_x] for every pair, bf16.
struct ExpertProduct {
  Rows<const Bf16> x;
  int32_t pairs_per_x = 1;             // x row = pair / pairs_per_x
  const WeightView* weight = nullptr;  // [experts], device memory, all of one shape and format
  WeightView shape;                    // of each
  int32_t experts = 0;
  int64_t pairs = 0;
  int32_t tile_rows = 0;
  PairPlan plan;
  Rows<Bf16> y;
};
void launch_expert_product(const ExpertProduct& product, Stream stream);

// to = Q8(bf16(weight * swiglu(gate, up))); weight null = 1. to may be gate.
void launch_swiglu(Rows<const Bf16> gate, Rows<const Bf16> up, const float* weight, float limit,
                   Rows<Bf16> to, Stream stream);
// y[r] = bf16(sum over choices of pair rows, then shared[r]).
void launch_combine(Rows<const Bf16> pairs, int32_t top_k, Rows<const Bf16> shared, Rows<Bf16> y,
                    Stream stream);

// --- indexer (indexer.cu) -------------------------------------------------------
// scores: [rows, entries_max] working memory, block_scores [rows, entries_max / block + 1].
void launch_index_select(Rows<const Bf16> queries, Rows<const Bf16> head_weights,
                         const IndexShape& shape, const IndexRow* rows, float* scores,
                         int64_t entries_max, float* block_scores, int64_t blocks_max,
                         Stream stream);

// --- attention (attention.cu) ---------------------------------------------------
// `turns`: q is not yet rotated (Ops::rope).
// Whether heads are narrow ones (attention_narrow.cuh), by the shape alone.
bool narrow_attention_supports(Rows<const Bf16> q, const AttentionShape& shape, Rows<const Bf16> o);
void launch_attention(Rows<const Bf16> q, bool turns, const float* sink,
                      const AttentionShape& shape, const RopeAngles& angles,
                      const AttentionRow* rows, Rows<Bf16> o, Stream stream);

}  // namespace galley::kernels::cuda
