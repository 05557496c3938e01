// Dot products of packed activations with stored weights: what every matrix
// product of fast/ is made of. dot_avx512bf16.cc and dot_avx2.cc define it.
//
// Order of a sum: K is cut into chunks of 128. Inside a chunk each lane chains its
// own products from zero; the chunk's lanes, times the weight's power-of-two scale
// (one scale a lane by construction), are added to the running lanes; at the end
// lanes fold by halves. That order depends on (format, K) alone: the kernels that
// read weights in place for a few rows and those that unpack a panel for many
// rows run the same instructions on the same lanes, so they give the same bits.
//
// Scales stay outside the bf16 operands: codes are exact in bf16 whatever the
// scale, and a scale near the ends of UE8M0 acts as an f32 product would.
#pragma once

#include <cstdint>

#include "kernels/fast/scratch.h"
#include "kernels/tensor.h"

#ifndef GALLEY_ISA
#error "files of kernels/fast are compiled once per instruction set, with GALLEY_ISA set"
#endif

namespace galley::kernels::GALLEY_ISA {

#if defined(__AVX512BF16__)
using Operand = uint16_t;  // bf16
#else
using Operand = float;
#endif

constexpr int64_t kChunk = 128;

// How an operand's channels are permuted inside a chunk, so that they meet the
// weights in the order in which those unpack.
enum class Layout : uint8_t { kNatural, kFp8, kFp4 };

inline Layout layout_of(WeightFormat format) {
#if defined(__AVX512BF16__)
  if (format == WeightFormat::kFp8Tile32) return Layout::kFp8;
  if (format == WeightFormat::kFp4Row32) return Layout::kFp4;
#else
  (void)format;
#endif
  return Layout::kNatural;
}

// Elements of the operand of a row of k channels.
constexpr int64_t operand_size(int64_t k) { return (k + kChunk - 1) / kChunk * kChunk; }

// One row of k bf16 channels to operand[operand_size(k)], zero-padded; through Q8
// first if `quantise`.
void pack_operand(const Bf16* x, int64_t k, bool quantise, Layout layout, Operand* operand);

// sums[r * sum_stride + o] = weight row (begin + o) . x[r], for o < count, r < rows.
// x: operands in layout_of(weight.format). For kFp8Tile32 any begin will do, but
// multiples of 32 are fastest. Uses scratch slots kDotPanel and kDotScale.
void dot(const WeightView& weight, int64_t begin, int64_t count, const Operand* const* x,
         int64_t rows, float* sums, int64_t sum_stride, fast::Scratch& scratch);

// --- pieces of attention; widths are multiples of 32 ------------------------

// Key rows lie key_stride apart: a little more than their width, so that a column of
// them does not fall into a few cache sets.
constexpr int64_t key_stride(int64_t width) { return width + 32; }

// scores[a * stride + j] = q[a] . key[j] for a < heads, j < key_count; q [heads, width].
void attention_scores(const Operand* q, int64_t heads, const Operand* keys, int64_t key_count,
                      int64_t width, float* scores, int64_t stride);

// out[a * width + i] = sum over j of p[a * p_stride + j] value[j][i], two keys at a time in
// order; key_count is even, p and value beyond the real keys are zero.
void attention_values(const Operand* p, int64_t p_stride, int64_t heads, const Operand* values,
                      int64_t key_count, int64_t width, float* out);

// --- a piece of the indexer ----------------------------------------------------

// Entries scored at once.
constexpr int64_t kIndexBlock = 16;

// Queries that score the same entries together share the unpacking of their keys.
constexpr int64_t kIndexRows = 8;

struct IndexQuery {
  const Operand* q;  // [heads, width]
  const float* w;    // [heads]
  float* scores;     // [kIndexBlock], out
};

// scores[j] = sum over heads of w[a] relu(q[a] . key j) for kIndexBlock records (Q4e8
// codes, then scales). Channels in order, heads in order, one lane a key.
void index_scores(const uint8_t* const* records, const IndexQuery* queries, int64_t query_count,
                  int64_t heads, int64_t width);
constexpr int64_t kIndexWidthMax = 512;

// Scratch slots that dot.h's functions use; callers take the others.
constexpr int kDotPanel = 0;
constexpr int kDotScale = 1;

}  // namespace galley::kernels::GALLEY_ISA
