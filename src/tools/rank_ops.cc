#include "tools/rank_ops.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "base/check.h"

namespace galley::tools {
Result<std::unique_ptr<RankOps>> RankOps::create(kernels::Ops& inner, int32_t experts,
                                                 int32_t top_k, int64_t rows_max) {
  CHECK(top_k <= experts);
  std::mt19937 random(11);
  std::vector<int32_t> all(static_cast<size_t>(experts));
  std::iota(all.begin(), all.end(), 0);
  std::vector<int32_t> choices;
  for (int64_t row = 0; row < rows_max; ++row) {
    std::ranges::shuffle(all, random);
    std::vector<int32_t> chosen(all.begin(), all.begin() + top_k);
    std::ranges::sort(chosen);
    choices.insert(choices.end(), chosen.begin(), chosen.end());
  }
  const std::vector<float> weights(choices.size(), 1.5F / static_cast<float>(top_k));
  const auto bytes = static_cast<int64_t>(choices.size() * sizeof(int32_t));
  std::unique_ptr<RankOps> ops(new RankOps(inner));
  kernels::Memory& memory = inner.memory();
  ops->choices_ = TRY(kernels::MemoryBlock::create(memory, bytes, "drawn experts"));
  ops->weights_ = TRY(kernels::MemoryBlock::create(memory, bytes, "weights of drawn experts"));
  memory.write(ops->choices_.data(), choices.data(), bytes);
  memory.write(ops->weights_.data(), weights.data(), bytes);
  return ops;
}

void RankOps::moe(kernels::Rows<const kernels::Bf16> x, const kernels::MoeWeights& weights,
                  kernels::Rows<const int32_t> experts, kernels::Rows<const float> expert_weights,
                  kernels::Rows<kernels::Bf16> y) {
  CHECK(experts.rows * experts.cols * int64_t{sizeof(int32_t)} <= choices_.bytes());
  inner().moe(
      x, weights, {reinterpret_cast<const int32_t*>(choices_.data()), experts.rows, experts.cols},
      {reinterpret_cast<const float*>(weights_.data()), expert_weights.rows, expert_weights.cols},
      y);
}

}  // namespace galley::tools
