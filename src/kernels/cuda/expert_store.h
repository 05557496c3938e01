// The folded experts of every layer, made once when a model is placed on the device.
//
// Says for which layers the fast kernels stand: fp4 experts of one shape, as wide as a release's,
// whose scales all fit their row's base, and an fp8 shared expert. Others keep the path for every
// shape.
#pragma once

#include <cstdint>
#include <map>

#include "base/result.h"
#include "kernels/cuda/expert_layer.h"
#include "kernels/memory.h"
#include "kernels/ops.h"

namespace galley::kernels::cuda {

class ExpertStore {
 public:
  struct Layer {
    ExpertShape shape;
    ExpertTiles tiles;
    MemoryBlock memory;
  };

  // Weights in device memory; waits for the fold. A layer that does not fit is no error.
  Result<void> add(Stream stream, Memory& memory, const MoeWeights& weights, int32_t top_k);

  // Null: the layer was not added, or does not fit.
  const Layer* find(const MoeWeights& weights) const;

  // Working memory that run_experts of any layer needs for so many rows.
  int64_t workspace_bytes(int64_t rows) const;

 private:
  // By the first expert's codes: a layer's weights do not move.
  std::map<const void*, Layer> layers_;
};

}  // namespace galley::kernels::cuda
