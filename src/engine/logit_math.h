// The passes over a row of logits that a sampler makes, vectorised.
//
// Sums run in fixed lanes, so every instruction set gives the same bits.
#pragma once

#include <cstdint>
#include <span>

namespace galley::engine {

// Logits per block: the unit of the sampler's two-level search.
constexpr int64_t kLogitBlock = 64;

constexpr int64_t logit_block_count(int64_t count) {
  return (count + kLogitBlock - 1) / kLogitBlock;
}

struct LogitPeak {
  float value;  // the largest, -inf for an empty or wholly masked row
  bool valid;   // no NaN among them, and the largest is finite
};

// Also fills block_max, one a block.
LogitPeak find_peak(std::span<const float> logits, std::span<float> block_max);

// The weight of a logit is exp((logit - peak) * scale), 0 below exp(-87) and for -inf.
// Fills block_sum and returns the sum of all. Weights are not stored: rows are long, and
// the few blocks whose weights matter are cheaper to compute again.
double sum_exponentials(std::span<const float> logits, float peak, float scale,
                        std::span<float> block_sum);

// The weights of one block, 0 past the end of the row.
void block_exponentials(std::span<const float> logits, int64_t block, float peak, float scale,
                        std::span<float, kLogitBlock> weights);

}  // namespace galley::engine
