// Which experts a row takes and with what weight (spec/model.md 5).
#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace galley::kernels::plain {

// logits [expert_count] = gate x in f32; experts and weights [top_k], experts ascending.
// Returns the margin: biased score of the last chosen minus that of the first not
// chosen, +infinity if all are chosen.
float route_row(const float* logits, const float* bias, int32_t expert_count,
                const RouterOptions& options, int32_t* experts, float* weights);

}  // namespace galley::kernels::plain
