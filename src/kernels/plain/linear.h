// Matrix products with weights of every stored format (spec/model.md 0.2).
#pragma once

#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/ops.h"

namespace galley::kernels::plain {

// Row `out` of the matrix as f32; exact for every format. row [in].
void read_weight_row(const WeightView& weight, int64_t out, float* row);

// Widens x to f32; with `quantise` through Q8 first. Result [rows, cols].
std::vector<float> widen(Rows<const Bf16> x, bool quantise);

// All products of one input.
void linear(ThreadPool& pool, Rows<const Bf16> x, std::span<const Product> products);

// Block-diagonal: group g maps x's g-th part through rows [g out, (g + 1) out).
void grouped_linear(ThreadPool& pool, Rows<const Bf16> x, const WeightView& weight, int32_t groups,
                    Rows<Bf16> y);

}  // namespace galley::kernels::plain
