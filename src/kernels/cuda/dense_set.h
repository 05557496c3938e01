// Folded products of one call of Ops, gathered into sets (grouped_product.h).
#pragma once

#include <span>

#include "kernels/cuda/dense_turns.h"
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

// `tiles` are the Q8 of x, or nothing where the products make it.
inline void add_product(DenseSet& set, const InputTiles& tiles, Rows<const Bf16> x,
                        const Product& product) {
  set.form = result_form(product);
  set.common.x = tiles.codes;
  set.common.x_scale = tiles.scale;
  set.common.x_rows = tiles.places;
  if (tiles.codes == nullptr) set.raw = x;
  set.common.rows = static_cast<int32_t>(x.rows);
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

// Whether products of x, all of one call, make its Q8 themselves.
inline bool makes_rows(Rows<const Bf16> x, std::span<const Product> products) {
  DenseSet set;
  for (const Product& one : products) {
    if (!one.weight.folded || !has_room_for(set, one)) return false;
    add_product(set, {}, x, one);
  }
  return makes_rows(set);
}

}  // namespace galley::kernels::cuda
