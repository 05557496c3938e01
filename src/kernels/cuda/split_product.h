// Products of many rows with narrow bf16 weights whose sums have parts: the gate (route.cu), and
// what narrow_product.cu has.
#pragma once

#include <cstdint>

#include "kernels/cuda/device.h"
#include "kernels/cuda/launch.h"
#include "kernels/tensor.h"

namespace galley::kernels::cuda {

// Whether split_products takes it; fewer rows want the parts of a sum in several blocks or warps.
bool split_product_supports(const RowProduct& product);

// All products of a set, of one input x. K in parts of `split` (a multiple of 64) that are summed
// from zero, and added in order; apart: by who reads them, sum p of row r being y_f32's row
// r * parts + p.
void split_products(Stream stream, const ProductSet& set, int64_t split, bool apart = false);

}  // namespace galley::kernels::cuda
