// Kernels of one rank of an expert-parallel group, for benchmarks on one device: the router runs
// as it is, and then every row's choices are replaced by drawn ones among this rank's experts.
//
// Of R rows a rank computes R times top_k choices when every rank has R of them and routing is
// even: its own rows' choices go elsewhere, as many come from elsewhere. Here they come from its
// own rows, which are as many and as different. Costs one launch of copies that a rank has not.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "kernels/forwarding_ops.h"

namespace galley::tools {

class RankOps : public kernels::ForwardingOps {
 public:
  // `inner` outlives it. A row's `top_k` choices are drawn from `experts` without repetition.
  static Result<std::unique_ptr<RankOps>> create(kernels::Ops& inner, int32_t experts,
                                                 int32_t top_k, int64_t rows_max);

  void route(kernels::Rows<const kernels::Bf16> x, const kernels::WeightView& gate,
             std::span<const float* const> bias_of_row, const kernels::RouterOptions& options,
             kernels::Rows<int32_t> experts, kernels::Rows<float> weights, float* margin) override;

 private:
  explicit RankOps(kernels::Ops& inner) : ForwardingOps(inner) {}

  kernels::MemoryBlock choices_;  // int32 [rows_max, top_k], ascending in a row
  kernels::MemoryBlock weights_;  // f32, of the same shape
  std::vector<kernels::RowCopy> copies_;
};

}  // namespace galley::tools
