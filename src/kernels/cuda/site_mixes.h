// The mixes of a hyper-connection site whose sums a launch has left (narrow_site.cu): only the next
// site reads them, so they are made on further blocks of a launch in between (site_mixes.cuh).
#pragma once

#include <cstdint>

#include "kernels/cuda/device.h"
#include "kernels/cuda/hyper_connections.h"
#include "kernels/ops.h"
#include "kernels/tensor.h"

namespace galley::kernels::cuda {

struct SiteMixes {
  const float* sums = nullptr;  // as hc_enter's workspace
  HcWeights weights = {};
  HcOptions options = {};
  HcMix mix = {};
  int64_t rows = 0;  // 0: none
  int64_t hidden = 0;
};

// In a launch of their own.
void site_mixes(Stream stream, const SiteMixes& mixes);

// Leaves a site and enters the next as hc_site does (hc_site.h), with the same bits, but for the
// mixes: those are still to be made from `sums`, of hc_enter_workspace_bytes().
bool narrow_site_supports(Rows<const Bf16> x);
void narrow_site(Stream stream, const HcLeave& leave, Rows<const Bf16> streams,
                 const HcWeights& weights, const HcOptions& options, Rows<const float> carried,
                 const Bf16* norm_weight, Rows<Bf16> x, float* sums);

}  // namespace galley::kernels::cuda
