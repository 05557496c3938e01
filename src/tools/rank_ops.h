// Kernels of one rank of an expert-parallel group, for benchmarks on one device: the router runs
// as it is, and a layer of experts takes drawn choices among this rank's experts for its own.
//
// Of R rows a rank computes R times top_k choices when every rank has R of them and routing is
// even: its own rows' choices go elsewhere, as many come from elsewhere. Here they come from its
// own rows, which are as many and as different.
#pragma once

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "kernels/forwarding_ops.h"

namespace galley::tools {

class RankOps : public kernels::ForwardingOps {
 public:
  // `inner` outlives it. A row's `top_k` choices are drawn from `experts` without repetition.
  static Result<std::unique_ptr<RankOps>> create(kernels::Ops& inner, int32_t experts,
                                                 int32_t top_k, int64_t rows_max);

  void moe(kernels::Rows<const kernels::Bf16> x, const kernels::MoeWeights& weights,
           kernels::Rows<const int32_t> experts, kernels::Rows<const float> expert_weights,
           kernels::Rows<kernels::Bf16> y) override;

 private:
  explicit RankOps(kernels::Ops& inner) : ForwardingOps(inner) {}

  kernels::MemoryBlock choices_;  // int32 [rows_max, top_k], ascending in a row
  kernels::MemoryBlock weights_;  // f32, of the same shape
};

}  // namespace galley::tools
