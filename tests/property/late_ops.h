// Kernels of a device that has not begun: every operation of a step runs when the step is waited
// for, and not before, on what was staged for it.
//
// So whatever a step still reads of the host's when the next one is submitted shows as other
// tokens. Kernels are another backend's, memory is a pretended device's.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "kernels/forwarding_ops.h"

namespace galley::testing {

class LateOps final : public kernels::ForwardingOps {
 public:
  // is_done() says so after `polls` questions: with 0 no step is ever submitted ahead.
  LateOps(kernels::Ops& inner, kernels::Memory& memory, int polls);
  ~LateOps() override;

  int64_t overlapped() const { return overlapped_; }  // steps begun while one was in flight
  int64_t awaited() const { return awaited_; }        // of them, with tokens that were drawn
  const std::vector<int64_t>& rows() const { return rows_; }  // of each step

  kernels::Memory& memory() override;
  void begin_step() override;
  void hand_in() override;
  bool overlaps_steps() const override { return true; }
  bool is_done() override;
  Result<void> finish() override;
  void fetch(void* host, const void* from, int64_t bytes) override;
  const void* stage(const void* host, int64_t bytes) override;
  bool may_await_ids(int64_t /*rows*/) const override { return true; }
  void await_ids() override;
  void give_ids() override;

  // The best token, as the host's sampler takes it at temperature 0.
  bool draws() const override { return true; }
  void draw(kernels::Rows<const float> logits, std::span<const kernels::DrawRequest> requests,
            kernels::DrawnToken* tokens) override;

  void copy(std::span<const kernels::RowCopy> copies) override;
  void spread(std::span<const kernels::SourceRow> sources, int64_t hidden, int32_t copies,
              kernels::Rows<kernels::Bf16> streams) override;
  void linear(kernels::Rows<const kernels::Bf16> x,
              std::span<const kernels::Product> products) override;
  void grouped_linear(kernels::Rows<const kernels::Bf16> x, const kernels::WeightView& weight,
                      int32_t groups, kernels::Rows<kernels::Bf16> y) override;
  void rms_norm(kernels::Rows<const kernels::Bf16> x, const kernels::Bf16* weight, float eps,
                kernels::Rows<kernels::Bf16> y) override;
  void norm_linear(kernels::Rows<kernels::Bf16> x, const kernels::Bf16* weight, float eps,
                   std::span<const kernels::Product> products) override;
  void hc_enter(kernels::Rows<const kernels::Bf16> streams, const kernels::HcWeights& weights,
                const kernels::HcOptions& options, kernels::Rows<const float> carried,
                const kernels::Bf16* norm_weight, kernels::HcMix mix,
                kernels::Rows<kernels::Bf16> x) override;
  void collapse_norm(kernels::Rows<const kernels::Bf16> streams, kernels::Rows<const float> carried,
                     int32_t stream_count, const kernels::Bf16* norm_weight, float eps,
                     kernels::Rows<kernels::Bf16> x) override;
  void hc_leave(kernels::Rows<const kernels::Bf16> y, kernels::Rows<const float> post,
                kernels::Rows<const float> comb, int32_t stream_count,
                kernels::Rows<kernels::Bf16> streams) override;
  void rope(kernels::Rows<kernels::Bf16> x, int32_t heads, const kernels::RopeAngles& angles,
            bool inverse) override;
  void window_keys(kernels::Rows<const kernels::Bf16> x, const kernels::Bf16* norm_weight,
                   float eps, const kernels::RopeAngles& angles,
                   kernels::Rows<uint8_t> records) override;
  void compress(kernels::Rows<const float> kv, kernels::Rows<const float> gate, int32_t ratio,
                const kernels::Bf16* norm_weight, float eps,
                kernels::Rows<kernels::Bf16> latent) override;
  void global_keys(kernels::Rows<const kernels::Bf16> latent, const kernels::RopeAngles& angles,
                   std::span<uint8_t* const> destination) override;
  void index_keys(kernels::Rows<const kernels::Bf16> x, const kernels::Bf16* norm_weight, float eps,
                  const kernels::RopeAngles& angles,
                  std::span<uint8_t* const> destination) override;
  void index_queries(kernels::Rows<kernels::Bf16> x, int32_t heads,
                     const kernels::RopeAngles& angles) override;
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
  void engram_lookup(const kernels::EngramTable& table, kernels::Rows<const int64_t> ids,
                     kernels::Rows<kernels::Bf16> e) override;
  void engram_write(kernels::Rows<const kernels::Bf16> kv, const kernels::Bf16* q_weight,
                    const kernels::Bf16* k_weight, std::span<const uint8_t> alive,
                    int32_t stream_count, float eps, kernels::Rows<kernels::Bf16> streams,
                    kernels::Rows<float> gate) override;

 private:
  // A lookup's ids as the host wrote them, once it had.
  struct Ids {
    kernels::Rows<const int64_t> from;
    std::vector<int64_t> values;
  };
  struct LateStep {
    std::vector<std::function<void()>> operations;
    std::vector<std::vector<std::byte>> staged;
    std::vector<std::shared_ptr<Ids>> ids;
    int polls = 0;
  };

  void later(std::function<void()> operation);
  static void read(Ids& ids);

  kernels::Memory& memory_;
  const int polls_;
  LateStep steps_[2];
  size_t side_ = 0;  // of the step begun last
  int in_flight_ = 0;
  bool open_ = false;
  bool awaits_ = false;
  int64_t overlapped_ = 0;
  int64_t awaited_ = 0;
  std::vector<int64_t> rows_;
};

}  // namespace galley::testing
