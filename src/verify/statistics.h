// The numbers that golden comparisons are judged by: relative errors of rows,
// divergence of logits, medians and percentiles.
//
// Knows floats only, never where they came from. A NaN or an infinity that the
// expected values do not have always comes out as an infinite error, so that a
// comparison against a limit fails.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/tensor.h"

namespace galley::verify {

// `measured` against `expected`, both [rows, vocabulary] logits.
struct LogitComparison {
  int64_t rows = 0;
  double rel_rms = 0;  // RMS of the difference over the standard deviation of `expected`
  double mean_kl = 0;  // KL(expected || measured) in nats, mean over the rows
  double worst_row_kl = 0;
  int64_t flips = 0;  // rows whose argmax differs
  double flip_fraction = 0;
  double flip_gap = 0;  // the largest top-two gap of `expected` among the flipped rows
};
LogitComparison compare_logits(kernels::Rows<const float> measured,
                               kernels::Rows<const float> expected);

// Norm of the difference over the norm of `expected`. Two zero vectors: 0.
double relative_error(std::span<const float> measured, std::span<const float> expected);

// Of a row of several equal parts (residual streams), the largest relative_error of one part.
double worst_part_error(std::span<const float> measured, std::span<const float> expected,
                        int64_t parts);

// Linear interpolation between the two nearest ranks; `share` in [0, 1]. Empty: 0.
double quantile(std::vector<double> values, double share);
double largest(std::span<const double> values);
double share_above(std::span<const double> values, double bound);

}  // namespace galley::verify
