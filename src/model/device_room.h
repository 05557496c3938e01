// Whether a model, its cache and a step's workspace fit into a device's memory, said before any of
// it is taken.
//
// Sizes come from the code that takes them: the walk of the weights, the cache's layout, and the
// workspace built over a memory that only counts.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "kernels/ops.h"
#include "model/kv_layout.h"
#include "model/model.h"
#include "model/step.h"

namespace galley::model {

struct CacheCounts {
  int32_t page_count = 0;
  int32_t slot_count = 0;
};

struct DeviceNeeds {
  int64_t weights = 0;
  int64_t page = 0;  // bytes of one
  int64_t slot = 0;
  int64_t workspace = 0;
  CacheCounts counts;
  int32_t page_tokens = 0;

  int64_t total() const {
    return weights + page * counts.page_count + slot * counts.slot_count + workspace;
  }
};

Result<DeviceNeeds> device_needs(const Model& model, const KvOptions& kv, CacheCounts counts,
                                 const StepOptions& step, kernels::Ops& ops);

// kExhausted in one line: what is needed, what is free, and what would fit.
Result<void> check_device_room(const DeviceNeeds& needs, int64_t free_bytes);

}  // namespace galley::model
