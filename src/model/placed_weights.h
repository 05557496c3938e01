// The model's weights where the kernels read them: the checkpoint's mapping
// itself on the host, one copy in a device's memory otherwise.
//
// Engram tables stay in the mapping unless they are small: a step gathers their
// rows. A tensor that several layers share is copied once. What the kernels want
// in their own order (kernels/weight_folds.h) is folded on the way and takes the
// place of what is stored; a weight that does not fold stays as stored.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "kernels/memory.h"
#include "kernels/ops.h"
#include "model/model.h"
#include "model/weight_upload.h"
#include "model/weights.h"

namespace galley::model {

// Tables up to this size are copied too.
constexpr int64_t kPlacedTableBytesMax = int64_t{256} << 20;

// Of each layer's experts those that are placed; none: all.
struct PlacedExperts {
  int32_t first = 0;
  int32_t count = 0;
};

// The most that create() takes of the kernels' memory: nothing on the host.
int64_t placed_bytes(const Model& model, kernels::Ops& ops, PlacedExperts experts);

class PlacedWeights {
 public:
  // `model` and `ops` outlive the result.
  static Result<PlacedWeights> create(const Model& model, kernels::Ops& ops, PlacedExperts experts,
                                      const UploadProgress& progress = {});

  const ModelWeights& get() const { return *weights_; }
  // Values that folding moved, each within the bound of its format; blocks that were left as
  // stored because it would have moved them further.
  int64_t rounded() const { return rounded_; }
  int64_t misfits() const { return misfits_; }

 private:
  PlacedWeights() = default;

  const ModelWeights* weights_ = nullptr;
  std::unique_ptr<ModelWeights> copy_;
  kernels::MemoryBlock block_;
  std::vector<kernels::MemoryBlock> folded_;
  int64_t rounded_ = 0;
  int64_t misfits_ = 0;
};

}  // namespace galley::model
