// The router: logits of all experts, the best of them and their weights (spec/model.md 5).
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/ops.h"
#include "kernels/tensor.h"

namespace galley::kernels::cuda {

constexpr int64_t kRoutedExpertsMax = 1024;
constexpr int32_t kRoutedTopKMax = 32;

int64_t route_workspace_bytes(int64_t rows, int64_t hidden, int64_t experts);

// gate [experts, hidden] as bf16. bias_of_row: device array of device pointers. margin [R] or null.
void route(Stream stream, Rows<const Bf16> x, const Bf16* gate, int64_t expert_count,
           const float* const* bias_of_row, const RouterOptions& options, Rows<int32_t> experts,
           Rows<float> weights, float* margin, void* workspace);

}  // namespace galley::kernels::cuda
