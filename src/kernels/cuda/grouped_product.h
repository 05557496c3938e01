// Products of fp8 activations with fp4 or fp8 weights, many experts in one launch.
#pragma once

#include <cstdint>

#include "kernels/cuda/device.h"
#include "kernels/ops.h"

namespace galley::kernels::cuda {

enum class ResultForm : uint8_t {
  kF32,     // f32 rows
  kBf16,    // bf16 rows
  kSwiGlu,  // weights are paired slots; bf16(row weight * swiglu(gate, up))
};

// Rows [row, row + rows) of x, all of one expert; row is a multiple of 8.
struct TokenBlock {
  int32_t expert;
  int32_t row;
  int32_t rows;
  int32_t spare;
};

// Of a plan, in device memory.
struct PlanTotals {
  int32_t blocks;
  int32_t places;  // that it uses, gaps included
  int32_t drawn;   // tiles that were asked for in the launch under way; 0 between two launches
};

struct ProductArguments {
  const uint8_t* weights;  // tiles of expert 0 (weight_tiles.h)
  int64_t expert_bytes;    // from one expert's tiles to the next
  const float* row_scale;  // fp4: [experts, slots], in slot order
  const uint8_t* x;        // [chunks][x_rows][128] E4M3, pieces swizzled by row mod 8
  const float* x_scale;    // [chunks][x_rows]
  int64_t x_rows;
  const TokenBlock* blocks;  // or null: rows 0..`rows` of expert 0
  PlanTotals* totals;        // with blocks
  bool planned_early;        // they are older than the launch before this one
  int32_t rows;
  int32_t experts;  // that blocks may name
  int32_t chunks;
  int32_t groups;   // the sum's parts, each summed from zero, then added in order
  int32_t slots;    // multiple of 256
  int32_t outputs;  // columns of y
  void* y;
  int64_t y_stride;
  const float* row_weight;  // kSwiGlu, or null: a factor for each row; 256 more are readable
  float limit;
};

// fp4 weights of many experts. Every form sums in the same order, so the choice changes no bit:
// blocks of at most `block_tokens` rows, a value that expert_block_tokens returned; 8 only where no
// more rows than that are planned at all.
void expert_product(Stream stream, ResultForm form, int32_t block_tokens,
                    const ProductArguments& args);
// Rows of a block for so many choices of so many experts.
constexpr int32_t kPairStripsBlock = 128;
// The most where they are many: whole units but for an expert's last one.
constexpr int32_t kRowTilesUnit = 64;
constexpr int32_t kRowTilesUnits = 4;
constexpr int32_t kRowTilesBlock = kRowTilesUnit * kRowTilesUnits;
int32_t expert_block_tokens(int64_t choices, int32_t experts);

// fp8 weights of one matrix, args.rows rows in order; sets args.groups itself.
void dense_product(Stream stream, ResultForm form, ProductArguments args);

// One matrix of several that share an input.
struct DensePart {
  const uint8_t* weights;
  void* y;
  int64_t y_stride;
  int32_t slots;
  int32_t outputs;
};

// Matrices of one input, none of which reads what another one writes: one launch for few rows, if
// their sums have as many parts, and copies that have nothing to do with them on further blocks.
struct DenseSet {
  static constexpr int32_t kMax = 4;

  ResultForm form = ResultForm::kBf16;
  ProductArguments common = {};  // x, rows and chunks; the rest is each part's
  DensePart parts[kMax] = {};
  int32_t count = 0;
  const RowCopy* copies = nullptr;  // only where dense_takes_copies
  int64_t copy_count = 0;
  // The input where nobody made its Q8 (makes_rows): the products make it, and common.x is not
  // there.
  Rows<const Bf16> raw = {};
};
bool dense_takes_copies(int64_t rows);
void dense_products(Stream stream, const DenseSet& set);

// Parts of a dense sum: fixed by the matrix, so that few and many rows agree.
int32_t dense_sum_groups(int64_t slots, int64_t chunks);

}  // namespace galley::kernels::cuda
