// Few rows leave one hyper-connection site and enter the next (hc_site.cu).
#pragma once

#include <cstdint>

#include "kernels/cuda/device.h"
#include "kernels/cuda/hyper_connections.h"
#include "kernels/ops.h"
#include "kernels/tensor.h"

namespace galley::kernels::cuda {

// Whether the rows are whole, as hc_site reads them, and so few that all are in work at a time.
bool hc_site_supports(const HcLeave& leave, Rows<const Bf16> streams, const HcWeights& weights,
                      const HcOptions& options, Rows<const float> carried, const Bf16* norm_weight,
                      Rows<const Bf16> x);

// hc_leave and hc_enter of the same streams in one launch, with x in Q8 if `tiles` has codes.
void hc_site(Stream stream, const HcLeave& leave, Rows<const Bf16> streams,
             const HcWeights& weights, const HcOptions& options, Rows<const float> carried,
             const Bf16* norm_weight, HcMix mix, Rows<Bf16> x, const InputTiles& tiles);

// The same in two launches: x and its Q8, which is what a step waits for (hc_site_x.cu), and the
// mixes, for which the streams must stay as the first launch left them.
bool hc_site_splits(const HcLeave& leave, Rows<const Bf16> streams, const HcWeights& weights,
                    const HcOptions& options, Rows<const float> carried, const Bf16* norm_weight,
                    Rows<const Bf16> x);
void hc_site_x(Stream stream, const HcLeave& leave, Rows<const Bf16> streams,
               const HcOptions& options, Rows<const float> carried, const Bf16* norm_weight,
               Rows<Bf16> x, const InputTiles& tiles);
struct LateMixes {  // without streams: none
  Rows<const Bf16> streams = {};
  HcWeights weights = {};
  HcOptions options = {};
  HcMix mix = {};
};
void hc_site_mixes(Stream stream, const LateMixes& site);

}  // namespace galley::kernels::cuda
