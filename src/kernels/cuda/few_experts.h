// Experts of few narrow rows: a decode step of a small model, where only launches count.
#pragma once

#include <cstdint>

#include "kernels/cuda/device.h"
#include "kernels/cuda/expert_tables.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/site_mixes.h"
#include "kernels/ops.h"
#include "kernels/tensor.h"

namespace galley::kernels::cuda {

constexpr int64_t kFewExpertRowsMax = ProductSet::kRowsMax;
constexpr int64_t kFewExpertChoicesMax = 8;

struct FewExperts {
  Rows<const Bf16> x;
  Rows<const int32_t> experts = {};       // [rows, top_k]
  const float* expert_weights = nullptr;  // [rows * top_k]
  // [expert_count], device memory, all of one shape
  int32_t expert_count = 0;
  const WeightView* gate = nullptr;
  const WeightView* up = nullptr;
  const WeightView* down = nullptr;
  WeightView shared_gate = {};
  WeightView shared_up = {};
  WeightView shared_down = {};
  float limit = 0.0F;
  // Rows of the pairs (row, choice) in order, then those of the shared expert.
  Rows<Bf16> inner = {};
  Rows<Bf16> out = {};
  SiteMixes mixes = {};  // made beside gate and up
};

// All but inner and out.
FewExperts few_experts_of(Rows<const Bf16> x, const MoeWeights& weights, const ExpertTable& table,
                          Rows<const int32_t> experts, Rows<const float> expert_weights);
bool few_experts_support(Rows<const Bf16> x, const MoeWeights& weights, int64_t choices);

// Two launches: inner, then out.
void launch_few_experts(const FewExperts& experts, Stream stream);

}  // namespace galley::kernels::cuda
