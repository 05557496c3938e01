// Hyper-connections of one row (spec/model.md 3): the coefficients of a site,
// collapse of the streams to one vector, expand back.
#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace galley::kernels::plain {

// mixes [(2 + n) n] = (F v) * nu of one row, all in f32 (3.2).
void hc_project(const Bf16* streams, int64_t width, const float* fn, const HcOptions& options,
                float* mixes);

// From mixes to pre [n], post [n] and the Sinkhorn matrix comb [n, n] (3.2).
void hc_coefficients(const float* mixes, const float* base, const float* scale,
                     const HcOptions& options, float* pre, float* post, float* comb);

// x [hidden] = bf16(sum_j pi_j S_j); streams [n, hidden] (3.3).
void collapse(const Bf16* streams, const float* pi, int64_t hidden, int32_t stream_count, Bf16* x);

// streams [n, hidden] <- post_j y + sum_i C[i][j] S_i, in place (3.3).
void expand(const Bf16* y, const float* post, const float* comb, int64_t hidden,
            int32_t stream_count, Bf16* streams);

}  // namespace galley::kernels::plain
