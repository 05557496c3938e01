// The experts' SwiGLU and their sum (spec/model.md 5).
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/ops.h"

namespace galley::kernels::plain {

// silu(min(gate, limit)) * clamp(up, +-limit), in f32.
float swiglu(float gate, float up, float limit);

// y = bf16(chosen experts ascending, then the shared expert).
void moe(ThreadPool& pool, Rows<const Bf16> x, const MoeWeights& weights,
         Rows<const int32_t> experts, Rows<const float> expert_weights, Rows<Bf16> y);

}  // namespace galley::kernels::plain
