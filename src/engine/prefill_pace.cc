#include "engine/prefill_pace.h"

#include <algorithm>
#include <cmath>

namespace galley::engine {
namespace {

// Below this share of the rows allowed, what a step's prompt rows cost is hardly more than what
// one step differs from the next.
constexpr double kLightShare = 0.5;
// d is no longer theirs when so many more or fewer decode, or when there was no light step for so
// long (their contexts grow): it then follows from the steps there are, and b stays.
constexpr double kOthersShare = 0.25;
constexpr int32_t kLightMissed = 48;

}  // namespace

void PrefillPace::Recent::add(double value) {
  values_[added_++ % kCount] = value;
  std::array<double, kCount> sorted = values_;
  const auto end = sorted.begin() + static_cast<std::ptrdiff_t>(std::min(added_, kCount));
  const auto middle = sorted.begin() + (end - sorted.begin()) / 2;
  std::nth_element(sorted.begin(), middle, end);
  median_ = *middle;
}

void PrefillPace::note(double rows, int32_t decode_rows, double seconds) {
  if (decode_rows == 0) return;
  const bool light = rows < kLightShare * rows_;
  const bool others = std::abs(decode_rows - decode_rows_) > kOthersShare * decode_rows_;
  since_light_ = light ? 0 : since_light_ + 1;
  if (light || since_light_ > kLightMissed || (others && prefill_row() > 0)) {
    if (others) decode_step_ = {};
    decode_rows_ = decode_rows;
    decode_step_.add(std::max(0.0, seconds - prefill_row() * rows));
  } else if (decode_step() > 0) {
    prefill_row_.add(std::max(0.0, (seconds - decode_step()) / rows));
  }
  if (decode_step() <= 0 || prefill_row() <= 0) return;
  const double affordable = (options_.stretch_max - 1) * decode_step() / prefill_row();
  rows_ = static_cast<int32_t>(std::clamp(std::floor(affordable),
                                          static_cast<double>(options_.rows_min),
                                          static_cast<double>(options_.rows_max)));
}

}  // namespace galley::engine
