#include "late_ops.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace galley::testing {

using kernels::Bf16;
using kernels::Rows;

namespace {

template <class T>
std::vector<std::remove_const_t<T>> kept(std::span<T> list) {
  return {list.begin(), list.end()};
}

}  // namespace

LateOps::LateOps(kernels::Ops& inner, kernels::Memory& memory, int polls)
    : ForwardingOps(inner), memory_(memory), polls_(polls) {}

LateOps::~LateOps() = default;

kernels::Memory& LateOps::memory() { return memory_; }

// --- steps in flight ---------------------------------------------------------

void LateOps::begin_step() {
  CHECK(in_flight_ < 2 && !awaits_);
  if (in_flight_ == 1) ++overlapped_;
  side_ = 1 - side_;
  steps_[side_] = {};
  open_ = true;
}

void LateOps::hand_in() {
  CHECK(open_);
  open_ = false;
  ++in_flight_;
}

bool LateOps::is_done() {
  if (in_flight_ == 0) return true;
  return ++steps_[in_flight_ == 2 ? 1 - side_ : side_].polls > polls_;
}

Result<void> LateOps::finish() {
  if (open_) hand_in();
  if (in_flight_ == 0) return {};
  CHECK(in_flight_ == 2 || !awaits_);
  LateStep& step = steps_[in_flight_ == 2 ? 1 - side_ : side_];
  for (const auto& operation : step.operations) operation();
  step.operations.clear();
  --in_flight_;
  return inner().finish();
}

void LateOps::later(std::function<void()> operation) {
  if (!open_) return operation();
  steps_[side_].operations.push_back(std::move(operation));
}

void LateOps::fetch(void* host, const void* from, int64_t bytes) {
  later([=] { std::memcpy(host, from, static_cast<size_t>(bytes)); });
}

const void* LateOps::stage(const void* host, int64_t bytes) {
  const auto* from = static_cast<const std::byte*>(host);
  return steps_[side_].staged.emplace_back(from, from + bytes).data();
}

void LateOps::await_ids() {
  CHECK(open_ && in_flight_ == 1);
  awaits_ = true;
  ++awaited_;
}

void LateOps::give_ids() {
  CHECK(awaits_ && !open_);
  for (const auto& ids : steps_[side_].ids) read(*ids);
  awaits_ = false;
}

void LateOps::read(Ids& ids) {
  for (int64_t r = 0; r < ids.from.rows; ++r) {
    const int64_t* row = ids.from.row(r);
    ids.values.insert(ids.values.end(), row, row + ids.from.cols);
  }
}

// --- operations --------------------------------------------------------------

void LateOps::draw(Rows<const float> logits, std::span<const kernels::DrawRequest> requests,
                   kernels::DrawnToken* tokens) {
  CHECK(std::ssize(requests) == logits.rows);
  later([=] {
    for (int64_t r = 0; r < logits.rows; ++r) {
      const float* row = logits.row(r);
      const float* best = std::max_element(row, row + logits.cols);
      tokens[r] = {.token = static_cast<int32_t>(best - row), .valid = 1};
    }
  });
}

void LateOps::copy(std::span<const kernels::RowCopy> copies) {
  later([this, copies = kept(copies)] { inner().copy(copies); });
}
void LateOps::spread(std::span<const kernels::SourceRow> sources, int64_t hidden, int32_t copies,
                     Rows<Bf16> streams) {
  rows_.push_back(streams.rows);
  later([=, this, sources = kept(sources)] { inner().spread(sources, hidden, copies, streams); });
}
void LateOps::linear(Rows<const Bf16> x, std::span<const kernels::Product> products) {
  later([=, this, products = kept(products)] { inner().linear(x, products); });
}
void LateOps::grouped_linear(Rows<const Bf16> x, const kernels::WeightView& weight, int32_t groups,
                             Rows<Bf16> y) {
  later([=, this] { inner().grouped_linear(x, weight, groups, y); });
}
void LateOps::rms_norm(Rows<const Bf16> x, const Bf16* weight, float eps, Rows<Bf16> y) {
  later([=, this] { inner().rms_norm(x, weight, eps, y); });
}
void LateOps::norm_linear(Rows<Bf16> x, const Bf16* weight, float eps,
                          std::span<const kernels::Product> products) {
  later([=, this, products = kept(products)] { inner().norm_linear(x, weight, eps, products); });
}
void LateOps::hc_enter(Rows<const Bf16> streams, const kernels::HcWeights& weights,
                       const kernels::HcOptions& options, Rows<const float> carried,
                       const Bf16* norm_weight, kernels::HcMix mix, Rows<Bf16> x) {
  later([=, this] { inner().hc_enter(streams, weights, options, carried, norm_weight, mix, x); });
}
void LateOps::collapse_norm(Rows<const Bf16> streams, Rows<const float> carried,
                            int32_t stream_count, const Bf16* norm_weight, float eps,
                            Rows<Bf16> x) {
  later([=, this] { inner().collapse_norm(streams, carried, stream_count, norm_weight, eps, x); });
}
void LateOps::hc_leave(Rows<const Bf16> y, Rows<const float> post, Rows<const float> comb,
                       int32_t stream_count, Rows<Bf16> streams) {
  later([=, this] { inner().hc_leave(y, post, comb, stream_count, streams); });
}
void LateOps::rope(Rows<Bf16> x, int32_t heads, const kernels::RopeAngles& angles, bool inverse) {
  later([=, this] { inner().rope(x, heads, angles, inverse); });
}
void LateOps::window_keys(Rows<const Bf16> x, const Bf16* norm_weight, float eps,
                          const kernels::RopeAngles& angles, Rows<uint8_t> records) {
  later([=, this] { inner().window_keys(x, norm_weight, eps, angles, records); });
}
void LateOps::compress(Rows<const float> kv, Rows<const float> gate, int32_t ratio,
                       const Bf16* norm_weight, float eps, Rows<Bf16> latent) {
  later([=, this] { inner().compress(kv, gate, ratio, norm_weight, eps, latent); });
}
void LateOps::global_keys(Rows<const Bf16> latent, const kernels::RopeAngles& angles,
                          std::span<uint8_t* const> destination) {
  later([=, this, places = kept(destination)] { inner().global_keys(latent, angles, places); });
}
void LateOps::index_keys(Rows<const Bf16> x, const Bf16* norm_weight, float eps,
                         const kernels::RopeAngles& angles, std::span<uint8_t* const> destination) {
  later([=, this, places = kept(destination)] {
    inner().index_keys(x, norm_weight, eps, angles, places);
  });
}
void LateOps::index_queries(Rows<Bf16> x, int32_t heads, const kernels::RopeAngles& angles) {
  later([=, this] { inner().index_queries(x, heads, angles); });
}
void LateOps::index_select(Rows<const Bf16> queries, Rows<const Bf16> head_weights,
                           const kernels::IndexShape& shape,
                           std::span<const kernels::IndexRow> rows) {
  later([=, this, rows = kept(rows)] { inner().index_select(queries, head_weights, shape, rows); });
}
void LateOps::attention(Rows<const Bf16> q, const float* sink, const kernels::AttentionShape& shape,
                        const kernels::RopeAngles& angles,
                        std::span<const kernels::AttentionRow> rows, Rows<Bf16> o) {
  later([=, this, rows = kept(rows)] { inner().attention(q, sink, shape, angles, rows, o); });
}
void LateOps::route(Rows<const Bf16> x, const kernels::WeightView& gate,
                    std::span<const float* const> bias_of_row,
                    const kernels::RouterOptions& options, Rows<int32_t> experts,
                    Rows<float> weights, float* margin) {
  later([=, this, biases = kept(bias_of_row)] {
    inner().route(x, gate, biases, options, experts, weights, margin);
  });
}
void LateOps::moe(Rows<const Bf16> x, const kernels::MoeWeights& weights,
                  Rows<const int32_t> experts, Rows<const float> expert_weights, Rows<Bf16> y) {
  later([=, this] { inner().moe(x, weights, experts, expert_weights, y); });
}
void LateOps::engram_lookup(const kernels::EngramTable& table, Rows<const int64_t> ids,
                            Rows<Bf16> e) {
  const auto values = std::make_shared<Ids>(Ids{.from = ids, .values = {}});
  steps_[side_].ids.push_back(values);
  if (!awaits_) read(*values);
  later([=, this] {
    inner().engram_lookup(table, Rows<const int64_t>(values->values.data(), ids.rows, ids.cols), e);
  });
}
void LateOps::engram_write(Rows<const Bf16> kv, const Bf16* q_weight, const Bf16* k_weight,
                           std::span<const uint8_t> alive, int32_t stream_count, float eps,
                           Rows<Bf16> streams, Rows<float> gate) {
  later([=, this, alive = kept(alive)] {
    inner().engram_write(kv, q_weight, k_weight, alive, stream_count, eps, streams, gate);
  });
}

}  // namespace galley::testing
