// Core attention of one query row (spec/model.md 4.6) in the reference's order
// and rounding: slots in blocks of 64, online softmax, bf16 probabilities.
#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace galley::kernels::plain {

// One head over `slot_count` slots of [width] keys that are also the values;
// present[slot] = 0 marks an empty slot, which still takes its place in a block.
void attend(const float* q, const float* keys, const uint8_t* present, int64_t slot_count,
            int64_t width, float sink, Bf16* o);

// All heads of one row: window slots oldest first, then empty ones up to W, then
// the selected entries. q and o [heads, head_dim]; o may be q.
void attention_row(const Bf16* q, const float* sink, const AttentionShape& shape,
                   const AttentionRow& row, Bf16* o);

}  // namespace galley::kernels::plain
