// Packing of input rows, and the size of a weight, for the operations that multiply.
#pragma once

#include "kernels/fast/isa_class.h"

namespace galley::kernels::GALLEY_ISA {

inline int64_t weight_bytes(const WeightView& weight) {
  switch (weight.format) {
    case WeightFormat::kFp4Row32:
      return weight.out * weight.in / 2;
    case WeightFormat::kFp8Tile32:
      return weight.out * weight.in;
    case WeightFormat::kBf16:
      return weight.out * weight.in * 2;
    case WeightFormat::kF32:
      break;
  }
  return weight.out * weight.in * 4;
}

template <class Run>
const Operand* const* FastOps::pack_rows(Rows<const Bf16> x, bool quantise, Layout layout, int slot,
                                         const Operand** pointers, fast::Scratch& scratch,
                                         Run&& run) {
  const int64_t size = operand_size(x.cols);
  if constexpr (sizeof(Operand) == sizeof(Bf16)) {
    if (!quantise && layout == Layout::kNatural && x.cols == size) {  // operands already
      for (int64_t r = 0; r < x.rows; ++r) pointers[r] = reinterpret_cast<const Operand*>(x.row(r));
      return pointers;
    }
  }
  Operand* operands = scratch.get<Operand>(slot, x.rows * size);
  run(x.rows, x.cols / 2 + 100, [&](int64_t begin, int64_t count, int) {
    for (int64_t r = begin; r < begin + count; ++r) {
      pack_operand(x.row(r), x.cols, quantise, layout, operands + r * size);
    }
  });
  for (int64_t r = 0; r < x.rows; ++r) pointers[r] = operands + r * size;
  return pointers;
}

}  // namespace galley::kernels::GALLEY_ISA
