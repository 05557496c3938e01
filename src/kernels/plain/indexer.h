// Index scores, candidate pool and selection of one query row (spec/model.md
// 4.5), scores rounded to bf16 as the reference rounds them.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/ops.h"

namespace galley::kernels::plain {

// Scores of entries [0, visible). query [heads, head_dim], head_weights [heads] unscaled.
std::vector<float> index_scores(const Bf16* query, const Bf16* head_weights,
                                const IndexShape& shape, const IndexRow& row);

// The best `block_count` blocks by their best entry, ascending; the block of the
// last visible entry is always among them.
std::vector<int32_t> best_blocks(const std::vector<float>& scores, int32_t block_size,
                                 int32_t block_count);

// The best min(top_k, eligible) entries, ascending; `pool` restricts to its blocks.
// Ties: the lower index wins.
std::vector<int32_t> best_entries(const std::vector<float>& scores, const IndexShape& shape,
                                  const IndexRow& row);

void index_select_row(const Bf16* query, const Bf16* head_weights, const IndexShape& shape,
                      const IndexRow& row);

}  // namespace galley::kernels::plain
