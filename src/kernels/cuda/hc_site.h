// Few rows leave one hyper-connection site and enter the next (hc_site.cu).
#pragma once

#include <cstdint>

#include "kernels/cuda/device.h"
#include "kernels/cuda/hyper_connections.h"
#include "kernels/ops.h"
#include "kernels/tensor.h"

namespace galley::kernels::cuda {

constexpr int64_t kSiteRowsMax = 8;

// The site that is left first: streams <- expand(y, streams, post, comb). No y: none is.
struct HcLeave {
  ExpertParts parts = {};  // with rows: y is their sum, and is written too
  Rows<Bf16> y = {};
  Rows<const float> post = {};
  Rows<const float> comb = {};
  Rows<Bf16> streams = {};
};

bool hc_site_supports(Rows<const Bf16> streams, const HcWeights& weights, const HcOptions& options,
                      const Bf16* norm_weight, Rows<const Bf16> x);

// hc_leave and hc_enter of the same streams; the workspace is hc_enter's.
void hc_site(Stream stream, const HcLeave& leave, Rows<const Bf16> streams,
             const HcWeights& weights, const HcOptions& options, Rows<const float> carried,
             const Bf16* norm_weight, HcMix mix, Rows<Bf16> x, void* workspace);

}  // namespace galley::kernels::cuda
