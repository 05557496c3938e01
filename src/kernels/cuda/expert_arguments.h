// What the launches of a layer of experts hand to the grouped products (expert_layer.cu,
// expert_share.cu).
#pragma once

#include "kernels/cuda/expert_layer.h"
#include "kernels/cuda/expert_plan.h"
#include "kernels/cuda/grouped_product.h"
#include "kernels/cuda/weight_tiles.h"

namespace galley::kernels::cuda {

inline ProductArguments row_arguments(const FoldShape& shape, const uint8_t* weights,
                                      const QuantisedRows& x, int64_t outputs, Bf16* y) {
  ProductArguments args{};
  args.weights = weights;
  args.x = x.x8;
  args.x_scale = x.scale;
  args.x_rows = x.places;
  args.chunks = static_cast<int32_t>(shape.chunks());
  args.slots = static_cast<int32_t>(shape.slots());
  args.outputs = static_cast<int32_t>(outputs);
  args.y = y;
  args.y_stride = outputs;
  args.groups = 1;
  return args;
}

// Of the shared expert, `rows` of x.
inline ProductArguments shared_up_arguments(const ExpertShape& shape, const ExpertTiles& tiles,
                                            const QuantisedRows& x, int64_t rows, Bf16* inner) {
  ProductArguments args =
      row_arguments(shape.gate_up(), tiles.shared_gate_up, x, shape.inner, inner);
  args.rows = static_cast<int32_t>(rows);
  args.limit = shape.swiglu_limit;
  return args;
}
inline ProductArguments shared_down_arguments(const ExpertShape& shape, const ExpertTiles& tiles,
                                              const QuantisedRows& inner, int64_t rows, Bf16* y) {
  ProductArguments args = row_arguments(shape.down(), tiles.shared_down, inner, shape.hidden, y);
  args.rows = static_cast<int32_t>(rows);
  return args;
}

// Of the experts, rows in the places of a plan.
inline ProductArguments expert_up_arguments(const ExpertShape& shape, const ExpertTiles& tiles,
                                            const ExpertPlan& plan, const QuantisedRows& x,
                                            Bf16* inner) {
  ProductArguments args = row_arguments(shape.gate_up(), tiles.gate_up, x, shape.inner, inner);
  args.expert_bytes = folded_fp4_bytes(shape.gate_up());
  args.row_scale = tiles.gate_up_scale;
  args.experts = shape.experts;
  args.blocks = plan.blocks;
  args.totals = plan.totals;
  args.row_weight = plan.row_weight;
  args.limit = shape.swiglu_limit;
  return args;
}
inline ProductArguments expert_down_arguments(const ExpertShape& shape, const ExpertTiles& tiles,
                                              const ExpertPlan& plan, const QuantisedRows& inner,
                                              Bf16* y) {
  ProductArguments args = row_arguments(shape.down(), tiles.down, inner, shape.hidden, y);
  args.expert_bytes = folded_fp4_bytes(shape.down());
  args.row_scale = tiles.down_scale;
  args.experts = shape.experts;
  args.blocks = plan.blocks;
  args.totals = plan.totals;
  args.planned_early = true;  // before gate and up
  return args;
}

}  // namespace galley::kernels::cuda
