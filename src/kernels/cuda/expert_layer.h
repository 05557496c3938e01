// One layer of experts on SM90: weights folded into tiles, and the launches that make
// y = bf16(sum of the chosen experts ascending, then the shared one) (spec/model.md 5).
//
// Knows nothing of the model or of who routes. All memory is device memory and the caller's.
#pragma once

#include <cstdint>

#include "kernels/cuda/device.h"
#include "kernels/cuda/expert_plan.h"
#include "kernels/cuda/fold_weights.h"
#include "kernels/cuda/hyper_connections.h"
#include "kernels/cuda/input_tiles.h"
#include "kernels/cuda/route_plan.h"
#include "kernels/cuda/side_stream.h"
#include "kernels/tensor.h"

namespace galley::kernels::cuda {

struct LateMixes;  // hc_site.h

struct ExpertShape {
  int32_t experts = 0;
  int32_t top_k = 0;
  int64_t hidden = 0;  // d, a multiple of 32
  int64_t inner = 0;   // I, a multiple of 32
  float swiglu_limit = 10.0F;

  FoldShape gate_up() const { return {.rows = inner, .in = hidden, .paired = true}; }
  FoldShape down() const { return {.rows = hidden, .in = inner, .paired = false}; }
};

// Tiles of a layer: experts in fp4, the shared one in fp8.
struct ExpertTiles {
  uint8_t* gate_up = nullptr;  // [experts] x folded_fp4_bytes
  uint8_t* down = nullptr;
  float* gate_up_scale = nullptr;  // [experts, slots]
  float* down_scale = nullptr;
  uint8_t* shared_gate_up = nullptr;  // folded_fp8_bytes
  uint8_t* shared_down = nullptr;
};

// Bytes of a layer's tiles, and the places in one block of memory of that size.
int64_t expert_tiles_bytes(const ExpertShape& shape);
ExpertTiles place_expert_tiles(const ExpertShape& shape, uint8_t* memory);

// Folds one expert (raw weights in device memory) into its place. *misfits as in fold_fp4.
void fold_expert_tiles(Stream stream, const ExpertShape& shape, const RawWeight& w1,
                       const RawWeight& w3, const RawWeight& w2, int32_t expert,
                       const ExpertTiles& tiles, int32_t* misfits);
void fold_shared_expert(Stream stream, const ExpertShape& shape, const RawWeight& w1,
                        const RawWeight& w3, const RawWeight& w2, const ExpertTiles& tiles,
                        const FoldCounters& counters);

// Working memory for up to `rows` rows.
int64_t expert_workspace_bytes(const ExpertShape& shape, int64_t rows);

// experts ascending in each row [R, top_k]. `x_tiles`, with codes: x in Q8, made by who made x. All
// but the sum of the experts, whose parts these are, in the workspace. With `side`, forked behind
// x_tiles, the shared expert computes there, behind `mixes`, if there are any, of the site that
// made x: the stream has joined it when this returns. `routed`, with rows: the route of x, which
// makes the plan along with it (routes_along). No allocation, no host synchronisation: the launches
// can be captured in a graph.
void run_experts(Stream stream, const ExpertShape& shape, const ExpertTiles& tiles,
                 Rows<const Bf16> x, const InputTiles& x_tiles, const SideStream* side,
                 const LateMixes& mixes, const int32_t* experts, const float* weights,
                 const RoutePlan& routed, uint8_t* workspace);
bool routes_along(const RoutePlan& routed, const ExpertShape& shape, Rows<const Bf16> x);
ExpertParts expert_parts(const ExpertShape& shape, int64_t rows, uint8_t* workspace);
// y = the sum of such parts, by a launch of its own.
void sum_experts(Stream stream, const ExpertParts& parts, Rows<Bf16> y);

}  // namespace galley::kernels::cuda
