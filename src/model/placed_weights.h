// The model's weights where the kernels read them: the checkpoint's mapping
// itself on the host, one copy in a device's memory otherwise.
//
// Engram tables stay in the mapping unless they are small: a step gathers their
// rows. A tensor that several layers share is copied once.
#pragma once

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "kernels/memory.h"
#include "model/model.h"
#include "model/weight_upload.h"
#include "model/weights.h"

namespace galley::model {

// Tables up to this size are copied too.
constexpr int64_t kPlacedTableBytesMax = int64_t{256} << 20;

// What create() takes of `memory`: nothing on the host.
int64_t placed_bytes(const Model& model, const kernels::Memory& memory);

class PlacedWeights {
 public:
  // `model` and `memory` outlive the result.
  static Result<PlacedWeights> create(const Model& model, kernels::Memory& memory,
                                      const UploadProgress& progress = {});

  const ModelWeights& get() const { return *weights_; }
  int64_t bytes() const { return block_.bytes(); }

 private:
  PlacedWeights() = default;

  const ModelWeights* weights_ = nullptr;
  std::unique_ptr<ModelWeights> copy_;
  kernels::MemoryBlock block_;
};

}  // namespace galley::model
