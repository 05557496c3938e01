// The routed experts' products of up to 8 rows: a launch each, without a plan.
#pragma once

#include <cstdint>

#include "kernels/cuda/device.h"
#include "kernels/cuda/fold_weights.h"
#include "kernels/cuda/grouped_product.h"
#include "kernels/tensor.h"

namespace galley::kernels::cuda {

constexpr int64_t kExpertFewRows = 8;

// fp4 weights of all experts times the inputs of `rows` rows. Result c of y is choice c's, with the
// bits of every other form; a factor in row_weight is choice c's too.
struct ExpertRowsArguments : ProductArguments {
  const int32_t* chosen = nullptr;  // [rows, top_k], in a row different ones
  int32_t top_k = 0;
  // Instead of x and x_scale, tiles of rows that all choices of a row share: `columns` values for
  // each choice, which are quantised on the way. They come from the launch before or one further
  // back; the choices must be older than that one, and are read while it runs.
  const Bf16* values = nullptr;
  int64_t columns = 0;
};

// Whether expert_rows_product takes so many rows of such matrices.
bool takes_expert_rows(const FoldShape& shape, int64_t rows, int64_t top_k);
void expert_rows_product(Stream stream, ResultForm form, const ExpertRowsArguments& args);

}  // namespace galley::kernels::cuda
