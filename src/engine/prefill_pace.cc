#include "engine/prefill_pace.h"

#include <algorithm>
#include <cmath>

namespace galley::engine {
namespace {

// A step weighs half after 35 more: a few chunks of a long prompt, under a second.
constexpr double kFade = 0.98;
// One step that the machine held up is not what steps cost.
constexpr double kOutlier = 8;

}  // namespace

void PrefillPace::note(double rows, int32_t decode_rows, double seconds) {
  if (decode_rows == 0) return;
  if (decode_step_ > 0) {
    seconds = std::min(seconds, kOutlier * (decode_step_ + rows * prefill_row_));
  }
  count_ = kFade * count_ + 1;
  rows_sum_ = kFade * rows_sum_ + rows;
  time_sum_ = kFade * time_sum_ + seconds;
  rows_squared_ = kFade * rows_squared_ + rows * rows;
  rows_time_ = kFade * rows_time_ + rows * seconds;
  // Only steps of different sizes tell the two apart; otherwise the last slope holds.
  const double spread = rows_squared_ - rows_sum_ * rows_sum_ / count_;
  if (spread > 1) {
    prefill_row_ = std::max(0.0, (rows_time_ - rows_sum_ * time_sum_ / count_) / spread);
  }
  const double alone = (time_sum_ - prefill_row_ * rows_sum_) / count_;
  if (alone > 0) decode_step_ = alone;
  if (prefill_row_ <= 0 || decode_step_ <= 0) return;
  const double affordable = (options_.stretch_max - 1) * decode_step_ / prefill_row_;
  rows_ = static_cast<int32_t>(std::clamp(std::floor(affordable),
                                          static_cast<double>(options_.rows_min),
                                          static_cast<double>(options_.rows_max)));
}

}  // namespace galley::engine
