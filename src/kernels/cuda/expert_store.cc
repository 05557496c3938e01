#include "kernels/cuda/expert_store.h"

#include <algorithm>
#include <utility>

namespace galley::kernels::cuda {
namespace {

// Widths of a release. Narrower layers have few products to average the rounding of, and nothing
// to gain: the general path is the specification up to the order of f32 sums.
constexpr int64_t kWidthMin = 1024;
constexpr int64_t kWidthUnit = 128;  // of a promoted sum

bool is_matrix(const WeightView& weight, WeightFormat format, int64_t out, int64_t in) {
  return weight.format == format && weight.out == out && weight.in == in;
}

bool is_expert(const ExpertWeights& expert, WeightFormat format, int64_t hidden, int64_t inner) {
  return is_matrix(expert.w1, format, inner, hidden) &&
         is_matrix(expert.w3, format, inner, hidden) && is_matrix(expert.w2, format, hidden, inner);
}

bool fits(const MoeWeights& weights) {
  if (weights.experts.empty()) return false;
  const int64_t hidden = weights.experts[0].w1.in;
  const int64_t inner = weights.experts[0].w1.out;
  return hidden >= kWidthMin && inner >= kWidthMin && hidden % kWidthUnit == 0 &&
         inner % kWidthUnit == 0 &&
         is_expert(weights.shared, WeightFormat::kFp8Tile32, hidden, inner) &&
         std::all_of(weights.experts.begin(), weights.experts.end(), [&](const auto& expert) {
           return is_expert(expert, WeightFormat::kFp4Row32, hidden, inner);
         });
}

RawWeight raw(const WeightView& weight) {
  return {static_cast<const uint8_t*>(weight.data), weight.scale};
}

}  // namespace

Result<void> ExpertStore::add(Stream stream, Memory& memory, const MoeWeights& weights,
                              int32_t top_k) {
  if (!fits(weights)) return {};
  const void* key = weights.experts[0].w1.data;
  if (layers_.contains(key)) return {};
  const ExpertShape shape{.experts = static_cast<int32_t>(weights.experts.size()),
                          .top_k = top_k,
                          .hidden = weights.experts[0].w1.in,
                          .inner = weights.experts[0].w1.out,
                          .swiglu_limit = weights.swiglu_limit};
  MemoryBlock block =
      TRY(MemoryBlock::create(memory, expert_tiles_bytes(shape), "experts in tile order"));
  MemoryBlock counter = TRY(MemoryBlock::create(memory, sizeof(int32_t), "a counter of scales"));
  int32_t misfits = 0;
  memory.write(counter.data(), &misfits, sizeof misfits);
  const ExpertTiles tiles = place_expert_tiles(shape, reinterpret_cast<uint8_t*>(block.data()));
  for (int32_t e = 0; e < shape.experts; ++e) {
    const ExpertWeights& expert = weights.experts[static_cast<size_t>(e)];
    fold_expert(stream, shape, raw(expert.w1), raw(expert.w3), raw(expert.w2), e, tiles,
                reinterpret_cast<int32_t*>(counter.data()));
  }
  fold_shared_expert(stream, shape, raw(weights.shared.w1), raw(weights.shared.w3),
                     raw(weights.shared.w2), tiles);
  TRY(check_launch("folding experts"));
  memory.read(&misfits, counter.data(), sizeof misfits);
  TRY(check_launch("folding experts"));
  if (misfits == 0) layers_.emplace(key, Layer{shape, tiles, std::move(block)});
  return {};
}

const ExpertStore::Layer* ExpertStore::find(const MoeWeights& weights) const {
  if (weights.experts.empty()) return nullptr;
  const auto found = layers_.find(weights.experts[0].w1.data);
  return found == layers_.end() ? nullptr : &found->second;
}

int64_t ExpertStore::workspace_bytes(int64_t rows) const {
  int64_t bytes = 0;
  for (const auto& [key, layer] : layers_) {
    bytes = std::max(bytes, expert_workspace_bytes(layer.shape, rows));
  }
  return bytes;
}

}  // namespace galley::kernels::cuda
