#include "verify/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace galley::verify {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double finite_or_infinity(double value) { return std::isfinite(value) ? value : kInfinity; }

double log_sum_exp(std::span<const float> row) {
  const double top = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (const float value : row) sum += std::exp(value - top);
  return top + std::log(sum);
}

double row_divergence(std::span<const float> measured, std::span<const float> expected) {
  const double expected_total = log_sum_exp(expected);
  const double measured_total = log_sum_exp(measured);
  double divergence = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double log_p = expected[i] - expected_total;
    const double log_q = measured[i] - measured_total;
    divergence += std::exp(log_p) * (log_p - log_q);
  }
  // Rounding may leave a tiny negative sum.
  return finite_or_infinity(std::max(divergence, 0.0));
}

struct TopTwo {
  size_t first = 0;
  double gap = kInfinity;
};

TopTwo top_two(std::span<const float> row) {
  TopTwo top;
  for (size_t i = 1; i < row.size(); ++i) {
    if (row[i] > row[top.first]) top.first = i;
  }
  for (size_t i = 0; i < row.size(); ++i) {
    if (i != top.first) top.gap = std::min(top.gap, static_cast<double>(row[top.first]) - row[i]);
  }
  return top;
}

bool all_finite(std::span<const float> row) {
  return std::all_of(row.begin(), row.end(), [](float value) { return std::isfinite(value); });
}

}  // namespace

LogitComparison compare_logits(kernels::Rows<const float> measured,
                               kernels::Rows<const float> expected) {
  CHECK(measured.rows == expected.rows && measured.cols == expected.cols);
  LogitComparison result;
  result.rows = expected.rows;
  if (expected.rows == 0 || expected.cols == 0) return result;
  double squared_difference = 0;
  double sum = 0;
  double sum_of_squares = 0;
  for (int64_t r = 0; r < expected.rows; ++r) {
    const std::span<const float> m(measured.row(r), static_cast<size_t>(measured.cols));
    const std::span<const float> e(expected.row(r), static_cast<size_t>(expected.cols));
    for (size_t i = 0; i < e.size(); ++i) {
      const double difference = static_cast<double>(m[i]) - e[i];
      squared_difference += difference * difference;
      sum += e[i];
      sum_of_squares += static_cast<double>(e[i]) * e[i];
    }
    const bool usable = all_finite(m);
    const double divergence = usable ? row_divergence(m, e) : kInfinity;
    result.mean_kl += divergence;
    result.worst_row_kl = std::max(result.worst_row_kl, divergence);
    const TopTwo top = top_two(e);
    if (!usable || top_two(m).first != top.first) {
      ++result.flips;
      result.flip_gap = std::max(result.flip_gap, top.gap);
    }
  }
  const auto count = static_cast<double>(expected.rows * expected.cols);
  const double mean = sum / count;
  const double deviation = std::sqrt(std::max(sum_of_squares / count - mean * mean, 0.0));
  const double rms = std::sqrt(squared_difference / count);
  result.rel_rms = rms == 0 ? 0 : finite_or_infinity(rms / deviation);
  result.mean_kl /= static_cast<double>(expected.rows);
  result.flip_fraction = static_cast<double>(result.flips) / static_cast<double>(expected.rows);
  return result;
}

double relative_error(std::span<const float> measured, std::span<const float> expected) {
  CHECK(measured.size() == expected.size());
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double d = static_cast<double>(measured[i]) - expected[i];
    difference += d * d;
    norm += static_cast<double>(expected[i]) * expected[i];
  }
  if (difference == 0) return 0;
  return finite_or_infinity(std::sqrt(difference / norm));
}

double worst_part_error(std::span<const float> measured, std::span<const float> expected,
                        int64_t parts) {
  CHECK(parts > 0 && expected.size() % static_cast<size_t>(parts) == 0);
  const size_t width = expected.size() / static_cast<size_t>(parts);
  double worst = 0;
  for (size_t begin = 0; begin < expected.size(); begin += width) {
    worst = std::max(
        worst, relative_error(measured.subspan(begin, width), expected.subspan(begin, width)));
  }
  return worst;
}

double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double place = share * static_cast<double>(values.size() - 1);
  const auto low = static_cast<size_t>(place);
  const size_t high = std::min(low + 1, values.size() - 1);
  const double part = place - static_cast<double>(low);
  if (part == 0) return values[low];  // infinity * 0 would be NaN
  return values[low] + (values[high] - values[low]) * part;
}

double largest(std::span<const double> values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

double share_above(std::span<const double> values, double bound) {
  if (values.empty()) return 0;
  const auto above =
      std::count_if(values.begin(), values.end(), [bound](double v) { return v > bound; });
  return static_cast<double>(above) / static_cast<double>(values.size());
}

}  // namespace galley::verify
