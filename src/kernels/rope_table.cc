#include "kernels/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace galley::kernels {
namespace {

// The (fractional) pair index that turns `beta` times within the original context.
double turning_pair(const RopeOptions& options, double beta) {
  return options.rotary *
         std::log(static_cast<double>(options.original_positions) /
                  (beta * 2.0 * std::numbers::pi)) /
         (2.0 * std::log(options.theta));
}

}  // namespace

RopeTable::RopeTable(const RopeOptions& options) {
  CHECK(options.rotary > 0 && options.rotary % 2 == 0);
  const int32_t pairs = options.rotary / 2;
  omega_.resize(static_cast<size_t>(pairs));
  for (int32_t u = 0; u < pairs; ++u) {
    const float exponent = static_cast<float>(2 * u) / static_cast<float>(options.rotary);
    // glibc's powf is correctly rounded here; a vector pow is not.
    omega_[u] = 1.0F / std::pow(static_cast<float>(options.theta), exponent);
  }
  if (options.original_positions <= 0) return;
  const double low = std::max(std::floor(turning_pair(options, options.beta_fast)), 0.0);
  const double high = std::min(std::ceil(turning_pair(options, options.beta_slow)),
                               static_cast<double>(options.rotary - 1));
  const auto span = static_cast<float>(std::max(high - low, 1e-3));
  for (int32_t u = 0; u < pairs; ++u) {
    const float ramp =
        std::clamp((static_cast<float>(u) - static_cast<float>(low)) / span, 0.0F, 1.0F);
    omega_[u] = omega_[u] / static_cast<float>(options.factor) * ramp + omega_[u] * (1.0F - ramp);
  }
}

void RopeTable::fill(std::span<const int64_t> positions, Rows<float> cos, Rows<float> sin) const {
  for (size_t r = 0; r < positions.size(); ++r) {
    for (size_t u = 0; u < omega_.size(); ++u) {
      const float angle = static_cast<float>(positions[r]) * omega_[u];
      cos.row(static_cast<int64_t>(r))[u] = std::cos(angle);
      sin.row(static_cast<int64_t>(r))[u] = std::sin(angle);
    }
  }
}

}  // namespace galley::kernels
