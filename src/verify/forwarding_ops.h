// Kernels that hand every operation on to others; subclasses change single ones.
#pragma once

#include <string_view>

#include "kernels/ops.h"

namespace galley::verify {

class ForwardingOps : public kernels::Ops {
 public:
  // `inner` outlives this.
  explicit ForwardingOps(kernels::Ops& inner) : inner_(inner) {}

  std::string_view name() const override { return inner_.name(); }

  kernels::Memory& memory() override { return inner_.memory(); }
  kernels::WeightFolds* folds() override { return inner_.folds(); }
  Result<void> reserve(const kernels::StepBounds& bounds) override {
    return inner_.reserve(bounds);
  }
  void begin_step() override { inner_.begin_step(); }
  Result<void> finish() override { return inner_.finish(); }
  const void* stage(const void* host, int64_t bytes) override { return inner_.stage(host, bytes); }
  void copy(std::span<const kernels::RowCopy> copies) override { inner_.copy(copies); }

  void spread(std::span<const kernels::Bf16* const> sources, int64_t hidden, int32_t copies,
              kernels::Rows<kernels::Bf16> streams) override {
    inner_.spread(sources, hidden, copies, streams);
  }
  bool draws() const override { return inner_.draws(); }
  void draw(kernels::Rows<const float> logits, std::span<const kernels::DrawRequest> requests,
            kernels::DrawnToken* tokens) override {
    inner_.draw(logits, requests, tokens);
  }
  void linear(kernels::Rows<const kernels::Bf16> x,
              std::span<const kernels::Product> products) override {
    inner_.linear(x, products);
  }
  void grouped_linear(kernels::Rows<const kernels::Bf16> x, const kernels::WeightView& weight,
                      int32_t groups, kernels::Rows<kernels::Bf16> y) override {
    inner_.grouped_linear(x, weight, groups, y);
  }
  void rms_norm(kernels::Rows<const kernels::Bf16> x, const kernels::Bf16* weight, float eps,
                kernels::Rows<kernels::Bf16> y) override {
    inner_.rms_norm(x, weight, eps, y);
  }
  void norm_linear(kernels::Rows<kernels::Bf16> x, const kernels::Bf16* weight, float eps,
                   std::span<const kernels::Product> products) override {
    inner_.norm_linear(x, weight, eps, products);
  }
  void hc_enter(kernels::Rows<const kernels::Bf16> streams, const kernels::HcWeights& weights,
                const kernels::HcOptions& options, kernels::Rows<const float> carried,
                const kernels::Bf16* norm_weight, kernels::HcMix mix,
                kernels::Rows<kernels::Bf16> x) override {
    inner_.hc_enter(streams, weights, options, carried, norm_weight, mix, x);
  }
  void collapse_norm(kernels::Rows<const kernels::Bf16> streams, kernels::Rows<const float> carried,
                     int32_t stream_count, const kernels::Bf16* norm_weight, float eps,
                     kernels::Rows<kernels::Bf16> x) override {
    inner_.collapse_norm(streams, carried, stream_count, norm_weight, eps, x);
  }
  void hc_leave(kernels::Rows<const kernels::Bf16> y, kernels::Rows<const float> post,
                kernels::Rows<const float> comb, int32_t stream_count,
                kernels::Rows<kernels::Bf16> streams) override {
    inner_.hc_leave(y, post, comb, stream_count, streams);
  }
  void stream_mean(kernels::Rows<const kernels::Bf16> streams, int32_t stream_count,
                   kernels::Rows<kernels::Bf16> mean) override {
    inner_.stream_mean(streams, stream_count, mean);
  }
  void rope(kernels::Rows<kernels::Bf16> x, int32_t heads, const kernels::RopeAngles& angles,
            bool inverse) override {
    inner_.rope(x, heads, angles, inverse);
  }
  void window_keys(kernels::Rows<const kernels::Bf16> x, const kernels::Bf16* norm_weight,
                   float eps, const kernels::RopeAngles& angles,
                   kernels::Rows<uint8_t> records) override {
    inner_.window_keys(x, norm_weight, eps, angles, records);
  }
  void compress(kernels::Rows<const float> kv, kernels::Rows<const float> gate, int32_t ratio,
                const kernels::Bf16* norm_weight, float eps,
                kernels::Rows<kernels::Bf16> latent) override {
    inner_.compress(kv, gate, ratio, norm_weight, eps, latent);
  }
  void global_keys(kernels::Rows<const kernels::Bf16> latent, const kernels::RopeAngles& angles,
                   std::span<uint8_t* const> destination) override {
    inner_.global_keys(latent, angles, destination);
  }
  void index_keys(kernels::Rows<const kernels::Bf16> x, const kernels::Bf16* norm_weight, float eps,
                  const kernels::RopeAngles& angles,
                  std::span<uint8_t* const> destination) override {
    inner_.index_keys(x, norm_weight, eps, angles, destination);
  }
  void index_queries(kernels::Rows<kernels::Bf16> x, int32_t heads,
                     const kernels::RopeAngles& angles) override {
    inner_.index_queries(x, heads, angles);
  }
  void index_select(kernels::Rows<const kernels::Bf16> queries,
                    kernels::Rows<const kernels::Bf16> head_weights,
                    const kernels::IndexShape& shape,
                    std::span<const kernels::IndexRow> rows) override {
    inner_.index_select(queries, head_weights, shape, rows);
  }
  void attention(kernels::Rows<const kernels::Bf16> q, const float* sink,
                 const kernels::AttentionShape& shape, const kernels::RopeAngles& angles,
                 std::span<const kernels::AttentionRow> rows,
                 kernels::Rows<kernels::Bf16> o) override {
    inner_.attention(q, sink, shape, angles, rows, o);
  }
  void route(kernels::Rows<const kernels::Bf16> x, const kernels::WeightView& gate,
             std::span<const float* const> bias_of_row, const kernels::RouterOptions& options,
             kernels::Rows<int32_t> experts, kernels::Rows<float> weights, float* margin) override {
    inner_.route(x, gate, bias_of_row, options, experts, weights, margin);
  }
  void moe(kernels::Rows<const kernels::Bf16> x, const kernels::MoeWeights& weights,
           kernels::Rows<const int32_t> experts, kernels::Rows<const float> expert_weights,
           kernels::Rows<kernels::Bf16> y) override {
    inner_.moe(x, weights, experts, expert_weights, y);
  }
  void engram_lookup(const kernels::EngramTable& table, kernels::Rows<const int64_t> ids,
                     kernels::Rows<kernels::Bf16> e) override {
    inner_.engram_lookup(table, ids, e);
  }
  void engram_write(kernels::Rows<const kernels::Bf16> kv, const kernels::Bf16* q_weight,
                    const kernels::Bf16* k_weight, std::span<const uint8_t> alive,
                    int32_t stream_count, float eps, kernels::Rows<kernels::Bf16> streams,
                    kernels::Rows<float> gate) override {
    inner_.engram_write(kv, q_weight, k_weight, alive, stream_count, eps, streams, gate);
  }

 protected:
  kernels::Ops& inner() { return inner_; }

 private:
  kernels::Ops& inner_;
};

}  // namespace galley::verify
