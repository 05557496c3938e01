// Dot products of a few rows of activations: weights are unpacked in registers, once for
// all rows. dot_avx512bf16.cc says when, and has the panels that serve many rows.
#pragma once

#include <cstdint>

#include "kernels/fast/dot.h"

namespace galley::kernels::GALLEY_ISA {

constexpr int64_t kFewRows = 8;
constexpr int kFewOutputs = 4;

// Rows of activations as bf16, and where their sums go.
struct RowsOfX {
  const uint16_t* const* x;
  float* sums;  // [row * stride + output]
  int64_t stride;
};

// Whether no scale of the outputs is 0 or 255, the two that are more than an exponent.
// Formats other than kFp4Row32 are always plain.
bool plain_scales(const WeightView& weight, int64_t begin, int64_t count);

// dot() of dot.h for at most kFewRows rows, any format but kF32, plain scales, and begin
// and count multiples of kFewOutputs.
void few_rows(const WeightView& weight, int64_t begin, int64_t count, const Operand* const* x,
              int64_t rows, float* sums, int64_t sum_stride, fast::Scratch& scratch);

}  // namespace galley::kernels::GALLEY_ISA
