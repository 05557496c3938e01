// Kernels that hand every operation on to others; subclasses change single ones.
#pragma once

#include <string_view>

#include "kernels/ops.h"

namespace galley::kernels {

class ForwardingOps : public Ops {
 public:
  // `inner` outlives this.
  explicit ForwardingOps(Ops& inner) : inner_(inner) {}

  std::string_view name() const override { return inner_.name(); }

  Memory& memory() override { return inner_.memory(); }
  WeightFolds* folds() override { return inner_.folds(); }
  ExpertSharing* sharing() override { return inner_.sharing(); }
  bool joins_ranks() const override { return inner_.joins_ranks(); }
  Result<void> reserve(const StepBounds& bounds) override { return inner_.reserve(bounds); }
  void begin_step() override { inner_.begin_step(); }
  void hand_in() override { inner_.hand_in(); }
  bool overlaps_steps() const override { return inner_.overlaps_steps(); }
  bool is_done() override { return inner_.is_done(); }
  Result<void> finish() override { return inner_.finish(); }
  void fetch(void* host, const void* from, int64_t bytes) override {
    inner_.fetch(host, from, bytes);
  }
  const void* stage(const void* host, int64_t bytes) override { return inner_.stage(host, bytes); }
  void copy(std::span<const RowCopy> copies) override { inner_.copy(copies); }

  void spread(std::span<const SourceRow> sources, int64_t hidden, int32_t copies,
              Rows<Bf16> streams) override {
    inner_.spread(sources, hidden, copies, streams);
  }
  bool draws() const override { return inner_.draws(); }
  void draw(Rows<const float> logits, std::span<const DrawRequest> requests,
            DrawnToken* tokens) override {
    inner_.draw(logits, requests, tokens);
  }
  void linear(Rows<const Bf16> x, std::span<const Product> products) override {
    inner_.linear(x, products);
  }
  void grouped_linear(Rows<const Bf16> x, const WeightView& weight, int32_t groups,
                      Rows<Bf16> y) override {
    inner_.grouped_linear(x, weight, groups, y);
  }
  void rms_norm(Rows<const Bf16> x, const Bf16* weight, float eps, Rows<Bf16> y) override {
    inner_.rms_norm(x, weight, eps, y);
  }
  void norm_linear(Rows<Bf16> x, const Bf16* weight, float eps,
                   std::span<const Product> products) override {
    inner_.norm_linear(x, weight, eps, products);
  }
  void hc_enter(Rows<const Bf16> streams, const HcWeights& weights, const HcOptions& options,
                Rows<const float> carried, const Bf16* norm_weight, HcMix mix,
                Rows<Bf16> x) override {
    inner_.hc_enter(streams, weights, options, carried, norm_weight, mix, x);
  }
  void collapse_norm(Rows<const Bf16> streams, Rows<const float> carried, int32_t stream_count,
                     const Bf16* norm_weight, float eps, Rows<Bf16> x) override {
    inner_.collapse_norm(streams, carried, stream_count, norm_weight, eps, x);
  }
  void hc_leave(Rows<const Bf16> y, Rows<const float> post, Rows<const float> comb,
                int32_t stream_count, Rows<Bf16> streams) override {
    inner_.hc_leave(y, post, comb, stream_count, streams);
  }
  void stream_mean(Rows<const Bf16> streams, int32_t stream_count, Rows<Bf16> mean) override {
    inner_.stream_mean(streams, stream_count, mean);
  }
  void rope(Rows<Bf16> x, int32_t heads, const RopeAngles& angles, bool inverse) override {
    inner_.rope(x, heads, angles, inverse);
  }
  void window_keys(Rows<const Bf16> x, const Bf16* norm_weight, float eps, const RopeAngles& angles,
                   Rows<uint8_t> records) override {
    inner_.window_keys(x, norm_weight, eps, angles, records);
  }
  void compress(Rows<const float> kv, Rows<const float> gate, int32_t ratio,
                const Bf16* norm_weight, float eps, Rows<Bf16> latent) override {
    inner_.compress(kv, gate, ratio, norm_weight, eps, latent);
  }
  void global_keys(Rows<const Bf16> latent, const RopeAngles& angles,
                   std::span<uint8_t* const> destination) override {
    inner_.global_keys(latent, angles, destination);
  }
  void index_keys(Rows<const Bf16> x, const Bf16* norm_weight, float eps, const RopeAngles& angles,
                  std::span<uint8_t* const> destination) override {
    inner_.index_keys(x, norm_weight, eps, angles, destination);
  }
  void index_queries(Rows<Bf16> x, int32_t heads, const RopeAngles& angles) override {
    inner_.index_queries(x, heads, angles);
  }
  void index_select(Rows<const Bf16> queries, Rows<const Bf16> head_weights,
                    const IndexShape& shape, std::span<const IndexRow> rows) override {
    inner_.index_select(queries, head_weights, shape, rows);
  }
  void attention(Rows<const Bf16> q, const float* sink, const AttentionShape& shape,
                 const RopeAngles& angles, std::span<const AttentionRow> rows,
                 Rows<Bf16> o) override {
    inner_.attention(q, sink, shape, angles, rows, o);
  }
  void route(Rows<const Bf16> x, const WeightView& gate, std::span<const float* const> bias_of_row,
             const RouterOptions& options, Rows<int32_t> experts, Rows<float> weights,
             float* margin) override {
    inner_.route(x, gate, bias_of_row, options, experts, weights, margin);
  }
  void moe(Rows<const Bf16> x, const MoeWeights& weights, Rows<const int32_t> experts,
           Rows<const float> expert_weights, Rows<Bf16> y) override {
    inner_.moe(x, weights, experts, expert_weights, y);
  }
  bool may_await_ids(int64_t rows) const override { return inner_.may_await_ids(rows); }
  void await_ids() override { inner_.await_ids(); }
  void give_ids() override { inner_.give_ids(); }
  void engram_lookup(const EngramTable& table, Rows<const int64_t> ids, Rows<Bf16> e) override {
    inner_.engram_lookup(table, ids, e);
  }
  void engram_write(Rows<const Bf16> kv, const Bf16* q_weight, const Bf16* k_weight,
                    std::span<const uint8_t> alive, int32_t stream_count, float eps,
                    Rows<Bf16> streams, Rows<float> gate) override {
    inner_.engram_write(kv, q_weight, k_weight, alive, stream_count, eps, streams, gate);
  }

 protected:
  Ops& inner() { return inner_; }

 private:
  Ops& inner_;
};

}  // namespace galley::kernels
