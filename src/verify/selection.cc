#include "verify/selection.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/check.h"

namespace galley::verify {

namespace {

constexpr double kNearTie = 0.01;  // of the row's largest |score|
constexpr float kNoScore = -std::numeric_limits<float>::infinity();

float largest_magnitude(std::span<const float> scores) {
  float largest = 0;
  for (const float score : scores) {
    if (std::isfinite(score)) largest = std::max(largest, std::fabs(score));
  }
  return largest;
}

}  // namespace

void ChoiceDifference::add(const ChoiceDifference& other) {
  rows += other.rows;
  different += other.different;
  illegitimate += other.illegitimate;
  chosen += other.chosen;
}

ChoiceDifference compare_selection(std::span<const int32_t> measured,
                                   std::span<const int32_t> expected, std::span<const float> scores,
                                   std::span<const uint8_t> pool) {
  ChoiceDifference result;
  result.rows = 1;
  result.chosen = static_cast<int64_t>(expected.size());
  const auto score = [&](int32_t entry) {
    const auto at = static_cast<size_t>(entry);
    if (entry < 0 || at >= scores.size()) return kNoScore;
    if (!pool.empty() && (at >= pool.size() || pool[at] == 0)) return kNoScore;
    return scores[at];
  };
  float kth = std::numeric_limits<float>::infinity();
  for (const int32_t entry : expected) kth = std::min(kth, score(entry));
  std::vector<int32_t> differing;
  std::set_symmetric_difference(measured.begin(), measured.end(), expected.begin(), expected.end(),
                                std::back_inserter(differing));
  const double allowed = kNearTie * largest_magnitude(scores);
  result.different = static_cast<int64_t>(differing.size());
  for (const int32_t entry : differing) {
    // An infinite distance or a NaN is never legitimate.
    if (!(std::fabs(static_cast<double>(score(entry)) - kth) <= allowed)) ++result.illegitimate;
  }
  // A flip exchanges entries: their number is the same on both sides.
  if (measured.size() != expected.size() && result.illegitimate == 0) ++result.illegitimate;
  return result;
}

ChoiceDifference compare_pools(std::span<const uint8_t> measured, std::span<const uint8_t> expected,
                               std::span<const float> scores, int32_t block_size) {
  CHECK(measured.size() == expected.size() && expected.size() == scores.size() && block_size > 0);
  ChoiceDifference result;
  result.rows = 1;
  const size_t size = static_cast<size_t>(block_size);
  const size_t blocks = (scores.size() + size - 1) / size;
  std::vector<float> best(blocks, kNoScore);
  for (size_t i = 0; i < scores.size(); ++i) best[i / size] = std::max(best[i / size], scores[i]);
  float kth = std::numeric_limits<float>::infinity();
  for (size_t b = 0; b < blocks; ++b) {
    if (expected[b * size] == 0) continue;
    ++result.chosen;
    if (b + 1 < blocks) kth = std::min(kth, best[b]);  // the last one is in whatever its score
  }
  const double allowed = kNearTie * largest_magnitude(scores);
  int64_t measured_blocks = 0;
  for (size_t b = 0; b < blocks; ++b) {
    measured_blocks += measured[b * size] != 0;
    // Whole blocks are in or out, in both.
    bool torn = false;
    for (size_t i = b * size; i < std::min((b + 1) * size, scores.size()); ++i) {
      torn |= measured[i] != measured[b * size];
    }
    if (!torn && (measured[b * size] != 0) == (expected[b * size] != 0)) continue;
    ++result.different;
    const bool near = std::fabs(static_cast<double>(best[b]) - kth) <= allowed;
    if (torn || b + 1 == blocks || !near) ++result.illegitimate;
  }
  if (measured_blocks != result.chosen && result.illegitimate == 0) ++result.illegitimate;
  return result;
}

}  // namespace galley::verify
