// Choice of experts (spec/model.md 5). The logits are bf16 dots (dot.h); scores and
// the choice are f32, ties to the lower expert. Floor: bytes of the gate at one row.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "kernels/fast/isa_class.h"
#include "kernels/fast/simd.h"

namespace galley::kernels::GALLEY_ISA {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Linear above 20, where exp would only lose bits.
GALLEY_INLINE VecF softplus(VecF x) {
  const VecF limit = set(20.0F);
  const VecF curve = hn::Log1p(kF32, exp(hn::Min(limit, x)));  // Min hands on NaN
  return hn::IfThenElse(hn::Gt(x, limit), x, curve);
}

// logits [experts] become the scores p; `biased` is scratch of the same length.
float choose(float* p, const float* bias, int64_t experts, const RouterOptions& options,
             float* biased, int32_t* chosen, float* weights) {
  const VecF temperature = set(options.gate_temperature);
  const VecF lowest = set(-kInfinity);
  for_lanes(experts, [&](int64_t i, int64_t n) {
    const VecF score = hn::Sqrt(softplus(hn::Div(load(p + i, n), temperature)));
    const VecF sum = hn::Add(score, load(bias + i, n));
    store(score, p + i, n);
    store(hn::IfThenElse(hn::Ne(sum, sum), lowest, sum), biased + i, n);  // NaN has no order
  });
  // top_k is small: insert each expert that beats the worst of the best so far. Entry
  // top_k is the first one not chosen.
  const int64_t keep = std::min<int64_t>(options.top_k + 1, experts);
  int32_t best[65];
  int64_t count = 0;
  for (int64_t e = 0; e < experts; ++e) {
    if (count == keep && !(biased[e] > biased[best[count - 1]])) continue;
    int64_t at = count < keep ? count++ : count - 1;
    while (at > 0 && biased[e] > biased[best[at - 1]]) {
      best[at] = best[at - 1];
      --at;
    }
    best[at] = static_cast<int32_t>(e);
  }
  const float margin = options.top_k < experts
                           ? biased[best[options.top_k - 1]] - biased[best[options.top_k]]
                           : kInfinity;
  float sum = 0.0F;
  for (int32_t i = 1; i < options.top_k; ++i) {  // ascending experts
    const int32_t expert = best[i];
    int32_t at = i;
    for (; at > 0 && best[at - 1] > expert; --at) best[at] = best[at - 1];
    best[at] = expert;
  }
  for (int32_t i = 0; i < options.top_k; ++i) sum += p[best[i]];
  for (int32_t i = 0; i < options.top_k; ++i) {
    chosen[i] = best[i];
    weights[i] = p[best[i]] / (sum + 1e-20F) * options.scale;
  }
  return margin;
}

}  // namespace

void FastOps::route(Rows<const Bf16> x, const WeightView& gate,
                    std::span<const float* const> bias_of_row, const RouterOptions& options,
                    Rows<int32_t> experts, Rows<float> weights, float* margin) {
  CHECK(options.top_k >= 1 && options.top_k <= 64 && options.top_k <= gate.out);
  const float* const* bias = bias_of_row.data();
  float* logits = scratch_[0].get<float>(kScores, x.rows * gate.out);
  const Product product = {gate, false, {}, Rows<float>(logits, x.rows, gate.out)};
  linear(x, std::span<const Product>(&product, 1));
  for_rows(x.rows, gate.out * 4 + 100, [&](int64_t begin, int64_t count, int thread) {
    float* biased = scratch_[thread].get<float>(kSums, gate.out);
    for (int64_t r = begin; r < begin + count; ++r) {
      const float row_margin = choose(logits + r * gate.out, bias[r], gate.out, options, biased,
                                      experts.row(r), weights.row(r));
      if (margin != nullptr) margin[r] = row_margin;
    }
  });
}

}  // namespace galley::kernels::GALLEY_ISA
