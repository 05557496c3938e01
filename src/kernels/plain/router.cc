#include "kernels/plain/router.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "kernels/plain/dot.h"

namespace galley::kernels::plain {
namespace {

// Linear above 20, where exp would only lose bits.
float softplus(float x) {
  if (x > 20.0F) return x;
  return static_cast<float>(std::log1p(static_cast<double>(exp_f32(x))));
}

}  // namespace

float route_row(const float* logits, const float* bias, int32_t expert_count,
                const RouterOptions& options, int32_t* experts, float* weights) {
  CHECK(options.top_k <= expert_count);
  std::vector<float> p(static_cast<size_t>(expert_count));
  std::vector<float> biased(static_cast<size_t>(expert_count));
  for (int32_t e = 0; e < expert_count; ++e) {
    p[e] = std::sqrt(softplus(logits[e] / options.gate_temperature));
    biased[e] = p[e] + bias[e];
    // NaN has no order; it must not break the sort.
    if (std::isnan(biased[e])) biased[e] = -std::numeric_limits<float>::infinity();
  }
  std::vector<int32_t> order(static_cast<size_t>(expert_count));
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return biased[a] != biased[b] ? biased[a] > biased[b] : a < b;
  });
  const float margin = options.top_k < expert_count
                           ? biased[order[options.top_k - 1]] - biased[order[options.top_k]]
                           : std::numeric_limits<float>::infinity();
  float sum = 0.0F;  // best first, as the reference adds them
  for (int32_t i = 0; i < options.top_k; ++i) sum += p[order[i]];
  std::sort(order.begin(), order.begin() + options.top_k);
  for (int32_t i = 0; i < options.top_k; ++i) {
    experts[i] = order[i];
    weights[i] = p[order[i]] / (sum + 1e-20F) * options.scale;
  }
  return margin;
}

}  // namespace galley::kernels::plain
