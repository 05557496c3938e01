// Sums of products and exp in f32, rounding where the reference's run rounded.
//
// Every order of a sum is right (spec/model.md 0); but one bf16 ulp before a
// quantiser grows through the layers, so plain/ adds in the order in which the
// golden vectors were made: matrix products as one fused chain for each block of
// K, sums over a vector in 4 x 8 lanes. Layers then agree to the bit.
#pragma once

#include <cstdint>

namespace galley::kernels::plain {

// Terms of K in one chain: what the f32 and bf16 products of the reference's run block by.
inline constexpr int64_t kChainTerms = 256;
// Block-scaled products add a partial sum for each 32 inputs (0.2). Scales are powers of two, so
// dequantised operands give the bits of scaling each partial sum.
inline constexpr int64_t kScaledTerms = 32;

// The sum of a_i b_i as a matrix product adds it.
float dot(const float* a, const float* b, int64_t count);

// kColumns such products at once: sums[o] of x [count] and column o of w [count, kColumns], in
// chains of `chain_terms`. Each sum has the bits of its own chain.
inline constexpr int64_t kColumns = 16;
void dot_columns(const float* x, const float* w, int64_t count, int64_t chain_terms, float* sums);

// The sum of a_i b_i as elementwise product and reduction add it: norms, gates.
float sum_of_products(const float* a, const float* b, int64_t count);

// e^x to one ulp, rounding mostly like the vector library inside the reference's sigmoid, SiLU,
// softmax and softplus. Where it takes e^x alone (attention, Sinkhorn) the C library's is nearer.
float exp_f32(float x);

}  // namespace galley::kernels::plain
