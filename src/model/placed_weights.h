// The model's weights where the kernels read them: the checkpoint's mapping
// itself on the host, one copy in a device's memory otherwise.
//
// Engram tables stay in the mapping unless they are small: a step gathers their
// rows. The copy goes through the memory's own staging; only pages of the mapping
// that are read become resident.
#pragma once

#include <cstdint>
#include <functional>

#include "base/result.h"
#include "kernels/memory.h"
#include "model/model.h"
#include "model/weights.h"

namespace galley::model {

// Tables up to this size are copied too.
constexpr int64_t kPlacedTableBytesMax = int64_t{256} << 20;

// Bytes copied so far and in all.
using PlacedProgress = std::function<void(int64_t done, int64_t total)>;

class PlacedWeights {
 public:
  // `model` and `memory` outlive the result.
  static Result<PlacedWeights> create(const Model& model, kernels::Memory& memory,
                                      const PlacedProgress& progress = {});

  const ModelWeights& get() const { return *weights_; }
  int64_t bytes() const { return block_.bytes(); }

 private:
  PlacedWeights() = default;

  const ModelWeights* weights_ = nullptr;
  std::unique_ptr<ModelWeights> copy_;
  kernels::MemoryBlock block_;
};

}  // namespace galley::model
