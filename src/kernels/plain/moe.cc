#include "kernels/plain/moe.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "kernels/number_formats.h"
#include "kernels/plain/dot.h"
#include "kernels/plain/linear.h"

namespace galley::kernels::plain {
namespace {

// A row of x and the weight its result gets.
struct Member {
  int64_t row;
  float weight;
};

// sums[row] += f32(w2 bf16(weight * swiglu(w1 x, w3 x))) for every member.
void add_expert(ThreadPool& pool, Rows<const Bf16> x, const ExpertWeights& expert, float limit,
                const std::vector<Member>& members, std::vector<float>& sums) {
  const auto count = static_cast<int64_t>(members.size());
  const int64_t hidden = x.cols;
  const int64_t inner = expert.w1.out;
  std::vector<Bf16> input(static_cast<size_t>(count * hidden));
  for (int64_t m = 0; m < count; ++m) {
    std::copy_n(x.row(members[m].row), hidden, input.data() + m * hidden);
  }
  std::vector<Bf16> gate(static_cast<size_t>(count * inner));
  std::vector<Bf16> up(static_cast<size_t>(count * inner));
  const Product in[2] = {{expert.w1, true, Rows<Bf16>(gate.data(), count, inner), {}},
                         {expert.w3, true, Rows<Bf16>(up.data(), count, inner), {}}};
  linear(pool, Rows<const Bf16>(input.data(), count, hidden), in);
  for (int64_t m = 0; m < count; ++m) {
    for (int64_t i = m * inner; i < (m + 1) * inner; ++i) {
      // The weight comes before w2: Q8 of w2's input sees it.
      gate[i] = to_bf16(members[m].weight * swiglu(to_f32(gate[i]), to_f32(up[i]), limit));
    }
  }
  std::vector<Bf16> output(static_cast<size_t>(count * hidden));
  const Product down = {expert.w2, true, Rows<Bf16>(output.data(), count, hidden), {}};
  linear(pool, Rows<const Bf16>(gate.data(), count, inner), {&down, 1});
  for (int64_t m = 0; m < count; ++m) {
    float* sum = sums.data() + members[m].row * hidden;
    for (int64_t i = 0; i < hidden; ++i) sum[i] += to_f32(output[m * hidden + i]);
  }
}

}  // namespace

float swiglu(float gate, float up, float limit) {
  const float a = std::min(gate, limit);  // upper side only
  const float b = std::clamp(up, -limit, limit);
  return a / (1.0F + exp_f32(-a)) * b;
}

void moe(ThreadPool& pool, Rows<const Bf16> x, const MoeWeights& weights,
         Rows<const int32_t> experts, Rows<const float> expert_weights, Rows<Bf16> y) {
  std::vector<std::vector<Member>> members_of(weights.experts.size());
  std::vector<Member> everyone;
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t k = 0; k < experts.cols; ++k) {
      const int32_t expert = experts.row(r)[k];
      CHECK(expert >= 0 && static_cast<size_t>(expert) < weights.experts.size());
      members_of[expert].push_back({r, expert_weights.row(r)[k]});
    }
    everyone.push_back({r, 1.0F});
  }
  std::vector<float> sums(static_cast<size_t>(x.rows * x.cols), 0.0F);
  for (size_t e = 0; e < members_of.size(); ++e) {
    if (members_of[e].empty()) continue;
    add_expert(pool, x, weights.experts[e], weights.swiglu_limit, members_of[e], sums);
  }
  if (weights.shared.w1.data != nullptr) {
    add_expert(pool, x, weights.shared, weights.swiglu_limit, everyone, sums);
  }
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t i = 0; i < x.cols; ++i) y.row(r)[i] = to_bf16(sums[r * x.cols + i]);
  }
}

}  // namespace galley::kernels::plain
