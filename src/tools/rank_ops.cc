#include "tools/rank_ops.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "base/check.h"

namespace galley::tools {
namespace {

constexpr int64_t kCopyBytes = 2048;

}  // namespace

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

void RankOps::route(kernels::Rows<const kernels::Bf16> x, const kernels::WeightView& gate,
                    std::span<const float* const> bias_of_row,
                    const kernels::RouterOptions& options, kernels::Rows<int32_t> experts,
                    kernels::Rows<float> weights, float* margin) {
  inner().route(x, gate, bias_of_row, options, experts, weights, margin);
  CHECK(experts.stride == experts.cols && weights.stride == weights.cols);
  const int64_t bytes = experts.rows * experts.cols * int64_t{sizeof(int32_t)};
  CHECK(bytes <= choices_.bytes());
  if (bytes == 0) return;
  // In pieces, since a device copies each by one block.
  copies_.clear();
  const auto add = [this](std::byte* from, void* to, int64_t count) {
    for (int64_t at = 0; at < count; at += kCopyBytes) {
      copies_.push_back(
          {from + at, static_cast<std::byte*>(to) + at, std::min(kCopyBytes, count - at)});
    }
  };
  add(choices_.data(), experts.data, bytes);
  add(weights_.data(), weights.data, bytes);
  inner().copy(copies_);
}

}  // namespace galley::tools
