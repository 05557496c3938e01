// Folded products of one call of Ops, gathered into sets (grouped_product.h).
#pragma once

#include "kernels/cuda/grouped_product.h"
#include "kernels/cuda/input_tiles.h"
#include "kernels/cuda/weight_tiles.h"
#include "kernels/ops.h"

namespace galley::kernels::cuda {

inline ResultForm result_form(const Product& product) {
  return product.y_f32.data != nullptr ? ResultForm::kF32 : ResultForm::kBf16;
}

// Whether one more fits, of the same input.
inline bool has_room_for(const DenseSet& set, const Product& product) {
  return set.count < DenseSet::kMax && (set.count == 0 || set.form == result_form(product));
}

inline void add_product(DenseSet& set, const InputTiles& x, int64_t rows, const Product& product) {
  set.form = result_form(product);
  set.common.x = x.codes;
  set.common.x_scale = x.scale;
  set.common.x_rows = x.places;
  set.common.rows = static_cast<int32_t>(rows);
  set.common.experts = 1;
  set.common.chunks = static_cast<int32_t>(tiled_chunks(product.weight.in));
  DensePart& part = set.parts[set.count++];
  part.weights = static_cast<const uint8_t*>(product.weight.data);
  if (set.form == ResultForm::kF32) {
    part.y = product.y_f32.data;
    part.y_stride = product.y_f32.stride;
  } else {
    part.y = product.y.data;
    part.y_stride = product.y.stride;
  }
  part.slots = static_cast<int32_t>(tiled_slots(product.weight.out));
  part.outputs = static_cast<int32_t>(product.weight.out);
}

}  // namespace galley::kernels::cuda
