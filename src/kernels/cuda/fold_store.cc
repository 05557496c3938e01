#include "kernels/cuda/fold_store.h"

#include <algorithm>
#include <array>
#include <utility>

namespace galley::kernels::cuda {
namespace {

constexpr int64_t kWidthMin = 1024;   // of a sum
constexpr int64_t kWidthUnit = 128;   // of a promoted sum
constexpr int64_t kOutputsMin = 512;  // the narrowest projection of a release
constexpr int64_t kOutputsUnit = 32;

bool is_matrix(const WeightView& weight, WeightFormat format, int64_t out, int64_t in) {
  return !weight.folded && weight.format == format && weight.out == out && weight.in == in;
}

bool is_expert(const ExpertWeights& expert, WeightFormat format, int64_t hidden, int64_t inner) {
  return is_matrix(expert.w1, format, inner, hidden) &&
         is_matrix(expert.w3, format, inner, hidden) && is_matrix(expert.w2, format, hidden, inner);
}

RawWeight raw_weight(const WeightView& weight) {
  return {static_cast<const uint8_t*>(weight.data), weight.scale};
}

FoldShape matrix_shape(const WeightView& weight) {
  return {.rows = weight.out, .in = weight.in, .paired = false};
}

}  // namespace

int64_t FoldStore::matrix_bytes(const WeightView& weight) const {
  const bool fits = !weight.folded && weight.format == WeightFormat::kFp8Tile32 &&
                    weight.in >= kWidthMin && weight.in % kWidthUnit == 0 &&
                    weight.out >= kOutputsMin && weight.out % kOutputsUnit == 0;
  return fits ? folded_fp8_bytes(matrix_shape(weight)) : 0;
}

int64_t FoldStore::experts_bytes(const MoeWeights& layer) const {
  if (layer.experts.empty()) return 0;
  const int64_t hidden = layer.experts[0].w1.in;
  const int64_t inner = layer.experts[0].w1.out;
  const bool fits =
      std::ssize(layer.experts) <= kExpertsMax && hidden >= kWidthMin && inner >= kWidthMin &&
      hidden % kWidthUnit == 0 && inner % kWidthUnit == 0 &&
      is_expert(layer.shared, WeightFormat::kFp8Tile32, hidden, inner) &&
      std::all_of(layer.experts.begin(), layer.experts.end(), [&](const auto& expert) {
        return is_expert(expert, WeightFormat::kFp4Row32, hidden, inner);
      });
  return fits ? expert_tiles_bytes(shape_of(layer, 1)) : 0;
}

ExpertShape FoldStore::shape_of(const MoeWeights& layer, int32_t top_k) {
  return {.experts = static_cast<int32_t>(layer.experts.size()),
          .top_k = top_k,
          .hidden = layer.experts[0].w1.in,
          .inner = layer.experts[0].w1.out,
          .swiglu_limit = layer.swiglu_limit};
}

ExpertTiles FoldStore::tiles_of(const MoeWeights& layer, const ExpertShape& shape) {
  // Only read by kernels; the carver makes addresses of it.
  auto* data = const_cast<uint8_t*>(static_cast<const uint8_t*>(layer.experts[0].w1.data));
  return place_expert_tiles(shape, data);
}

FoldCounters FoldStore::counters() {
  if (counts_.bytes() == 0 && !failure_) {
    auto made = MemoryBlock::create(memory_, 2 * sizeof(int32_t), "counters of a fold");
    if (made) {
      counts_ = *std::move(made);
      const std::array<int32_t, 2> zero = {0, 0};
      memory_.write(counts_.data(), zero.data(), sizeof zero);
    } else {
      failure_ = made.error();
    }
  }
  auto* first = reinterpret_cast<int32_t*>(counts_.data());
  return {.misfits = first, .rounded = first == nullptr ? nullptr : first + 1};
}

void FoldStore::fold_matrix(const WeightView& raw, void* to) {
  const FoldCounters counts = counters();
  if (failure_) return;
  fold_fp8(stream_, raw_weight(raw), {}, matrix_shape(raw), static_cast<uint8_t*>(to), counts);
}

void FoldStore::fold_expert(const MoeWeights& layer, int32_t expert, const ExpertWeights& raw,
                            void* to) {
  const FoldCounters counts = counters();
  if (failure_) return;
  const ExpertShape shape = shape_of(layer, 1);
  const ExpertTiles tiles = place_expert_tiles(shape, static_cast<uint8_t*>(to));
  if (expert == shape.experts) {
    fold_shared_expert(stream_, shape, raw_weight(raw.w1), raw_weight(raw.w3), raw_weight(raw.w2),
                       tiles, counts);
  } else {
    fold_expert_tiles(stream_, shape, raw_weight(raw.w1), raw_weight(raw.w3), raw_weight(raw.w2),
                      expert, tiles, counts.misfits);
  }
}

Result<FoldCounts> FoldStore::take_counts() {
  if (failure_) return *failure_;
  if (counts_.bytes() == 0) return FoldCounts{};
  std::array<int32_t, 2> counts = {0, 0};
  memory_.read(counts.data(), counts_.data(), sizeof counts);
  TRY(check_launch("folding weights"));
  const std::array<int32_t, 2> zero = {0, 0};
  memory_.write(counts_.data(), zero.data(), sizeof zero);
  return FoldCounts{.misfits = counts[0], .rounded = counts[1]};
}

}  // namespace galley::kernels::cuda
