// Which weights the SM90 kernels want folded, and the folds (kernels/weight_folds.h).
//
// fp8 matrices and experts as wide as a release's: narrower ones have few products to average the
// rounding of, and nothing to gain; the general path is the specification up to the order of f32
// sums.
#pragma once

#include <cstdint>
#include <optional>

#include "base/result.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/expert_layer.h"
#include "kernels/memory.h"
#include "kernels/ops.h"
#include "kernels/weight_folds.h"

namespace galley::kernels::cuda {

class FoldStore final : public WeightFolds {
 public:
  // Both outlive it.
  FoldStore(Memory& memory, Stream stream) : memory_(memory), stream_(stream) {}

  int64_t matrix_bytes(const WeightView& weight) const override;
  int64_t experts_bytes(const MoeWeights& layer) const override;
  void fold_matrix(const WeightView& raw, void* to) override;
  void fold_expert(const MoeWeights& layer, int32_t expert, const ExpertWeights& raw,
                   void* to) override;
  Result<FoldCounts> take_counts() override;

  // Of a layer whose experts are folded.
  static ExpertShape shape_of(const MoeWeights& layer, int32_t top_k);
  static ExpertTiles tiles_of(const MoeWeights& layer, const ExpertShape& shape);

 private:
  // Device counters, made with the first fold; null after a failure, which take_counts() tells.
  FoldCounters counters();

  Memory& memory_;
  Stream stream_;
  MemoryBlock counts_;
  std::optional<Error> failure_;
};

}  // namespace galley::kernels::cuda
