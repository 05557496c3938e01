// Kernels with one deliberate fault, to show that verification finds it.
//
// Passes everything on to sound kernels; the fault sits in one operation and is
// of a kind that ports of this model have really had.
#pragma once

#include "kernels/forwarding_ops.h"

namespace galley::golden {

enum class Fault : uint8_t {
  kNone,
  kMixUntransposed,       // expand sums over the wrong index of the residual matrix
  kMixTooLarge,           // the mix handed on is 2 % too large
  kNoInverseRotation,     // attention output keeps its position
  kSinkIgnored,           // no sink in the softmax
  kWindowKeysUnrotated,   // window keys without their position
  kEntryPositionOfNext,   // compressed entries rotated as if one group later
  kInputsNotQuantised,    // bf16 instead of Q8 inputs of quantised products
  kClampIgnored,          // SwiGLU without its limit
  kRouterBiasIgnored,     // experts chosen by their score alone
  kEngramSkipped,         // no Engram write
  kEngramSignLost,        // gates as if every key agreed
  kIndexWeightsPositive,  // indexer head weights without their sign
  kIndexSeesOneLess,      // the newest entry is invisible
  kPoolIgnored,           // reindex layers choose among all entries
};

class DefectiveOps : public kernels::ForwardingOps {
 public:
  DefectiveOps(kernels::Ops& sound, Fault fault) : ForwardingOps(sound), fault_(fault) {}

  void linear(kernels::Rows<const kernels::Bf16> x,
              std::span<const kernels::Product> products) override;
  // Through linear(), which may be the defective one.
  void norm_linear(kernels::Rows<kernels::Bf16> x, const kernels::Bf16* weight, float eps,
                   std::span<const kernels::Product> products) override {
    kernels::Ops::norm_linear(x, weight, eps, products);
  }
  void hc_enter(kernels::Rows<const kernels::Bf16> streams, const kernels::HcWeights& weights,
                const kernels::HcOptions& options, kernels::Rows<const float> carried,
                const kernels::Bf16* norm_weight, kernels::HcMix mix,
                kernels::Rows<kernels::Bf16> x) override;
  void hc_leave(kernels::Rows<const kernels::Bf16> y, kernels::Rows<const float> post,
                kernels::Rows<const float> comb, int32_t stream_count,
                kernels::Rows<kernels::Bf16> streams) override;
  void window_keys(kernels::Rows<const kernels::Bf16> x, const kernels::Bf16* norm_weight,
                   float eps, const kernels::RopeAngles& angles,
                   kernels::Rows<uint8_t> records) override;
  void global_keys(kernels::Rows<const kernels::Bf16> latent, const kernels::RopeAngles& angles,
                   std::span<uint8_t* const> destination) override;
  void index_select(kernels::Rows<const kernels::Bf16> queries,
                    kernels::Rows<const kernels::Bf16> head_weights,
                    const kernels::IndexShape& shape,
                    std::span<const kernels::IndexRow> rows) override;
  void attention(kernels::Rows<const kernels::Bf16> q, const float* sink,
                 const kernels::AttentionShape& shape, const kernels::RopeAngles& angles,
                 std::span<const kernels::AttentionRow> rows,
                 kernels::Rows<kernels::Bf16> o) override;
  void route(kernels::Rows<const kernels::Bf16> x, const kernels::WeightView& gate,
             std::span<const float* const> bias_of_row, const kernels::RouterOptions& options,
             kernels::Rows<int32_t> experts, kernels::Rows<float> weights, float* margin) override;
  void moe(kernels::Rows<const kernels::Bf16> x, const kernels::MoeWeights& weights,
           kernels::Rows<const int32_t> experts, kernels::Rows<const float> expert_weights,
           kernels::Rows<kernels::Bf16> y) override;
  void engram_write(kernels::Rows<const kernels::Bf16> kv, const kernels::Bf16* q_weight,
                    const kernels::Bf16* k_weight, std::span<const uint8_t> alive,
                    int32_t stream_count, float eps, kernels::Rows<kernels::Bf16> streams,
                    kernels::Rows<float> gate) override;

 private:
  Fault fault_;
};

}  // namespace galley::golden
