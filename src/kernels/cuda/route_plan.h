// The way from a site's rows to their experts, and to the plan of these and the codes' places where
// one is wanted, in one launch (route_plan.cu).
#pragma once

#include <cstdint>

#include "kernels/cuda/device.h"
#include "kernels/cuda/expert_plan.h"
#include "kernels/cuda/route.h"
#include "kernels/ops.h"
#include "kernels/tensor.h"

namespace galley::kernels::cuda {

constexpr int64_t kRoutedRowsMax = 32;

// What blocks tell each other through. All bytes are 0xFF before the first launch; launches that
// share a room come one behind the other.
int64_t route_plan_room_bytes();

struct RoutePlan {
  RoutePlan() = default;
  RoutePlan(Rows<const Bf16> x_in, const WeightView& gate_in, const float* const* biases,
            const RouterOptions& options_in, Rows<int32_t> experts_in, Rows<float> weights_in,
            float* margin_in, void* workspace_in, void* room_in)
      : x(x_in),
        gate(static_cast<const Bf16*>(gate_in.data), gate_in.out, gate_in.in),
        bias_of_row(biases),
        options(options_in),
        experts(experts_in),
        weights(weights_in),
        margin(margin_in),
        room(room_in),
        workspace(workspace_in) {}

  Rows<const Bf16> x;
  Rows<const Bf16> gate;
  const float* const* bias_of_row = nullptr;  // device array of device pointers
  RouterOptions options = {};
  Rows<int32_t> experts;
  Rows<float> weights;
  float* margin = nullptr;  // [R], or null
  void* room = nullptr;
  void* workspace = nullptr;  // of a launch of route() instead
  // What the plan is of: the same experts and weights, or others of as many rows. Without places
  // none is made.
  const int32_t* plan_experts = nullptr;
  const float* plan_weights = nullptr;
  int32_t plan_expert_count = 0;
  int32_t block_tokens = 0;
  ExpertPlan plan = {};
  QuantisedRows from = {};
  QuantisedRows to = {};
  int32_t chunks = 0;
};

// Of what a route tells, and of the layer whose plan it is.
bool route_plan_supports(const RoutePlan& r);
bool route_plan_takes(int64_t experts, int64_t chunks, int32_t block_tokens);
void route_and_plan(Stream stream, const RoutePlan& r);
// The route by launches of its own.
void route_alone(Stream stream, const RoutePlan& r);

}  // namespace galley::kernels::cuda
