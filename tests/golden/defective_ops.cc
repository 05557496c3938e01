#include "defective_ops.h"

#include <algorithm>
#include <vector>

#include "kernels/number_formats.h"

namespace galley::golden {

using kernels::Bf16;
using kernels::Rows;

namespace {

// Rows of `x` copied, so that a fault may change them.
template <class T>
std::vector<std::remove_const_t<T>> copy_of(Rows<T> x) {
  std::vector<std::remove_const_t<T>> copy;
  for (int64_t r = 0; r < x.rows; ++r) copy.insert(copy.end(), x.row(r), x.row(r) + x.cols);
  return copy;
}

template <class T>
Rows<T> rows_of(std::vector<T>& values, int64_t rows) {
  return Rows<T>(values.data(), rows, rows == 0 ? 0 : std::ssize(values) / rows);
}

// Angles that rotate nothing, as many as `angles`.
struct Still {
  explicit Still(const kernels::RopeAngles& angles)
      : cos(static_cast<size_t>(angles.cos.rows * angles.cos.cols), 1.0F),
        sin(cos.size(), 0.0F),
        view{rows_of(cos, angles.cos.rows), rows_of(sin, angles.cos.rows)} {}
  std::vector<float> cos;
  std::vector<float> sin;
  kernels::RopeAngles view;
};

}  // namespace

void DefectiveOps::linear(Rows<const Bf16> x, std::span<const kernels::Product> products) {
  std::vector<kernels::Product> changed(products.begin(), products.end());
  if (fault_ == Fault::kInputsNotQuantised) {
    for (kernels::Product& product : changed) product.quantise_input = false;
  }
  inner().linear(x, changed);
}

void DefectiveOps::hc_enter(Rows<const Bf16> streams, const kernels::HcWeights& weights,
                            const kernels::HcOptions& options, Rows<const float> carried,
                            const Bf16* norm_weight, kernels::HcMix mix, Rows<Bf16> x) {
  inner().hc_enter(streams, weights, options, carried, norm_weight, mix, x);
  if (fault_ != Fault::kMixTooLarge) return;
  for (int64_t r = 0; r < mix.pre.rows; ++r) {
    for (int64_t j = 0; j < mix.pre.cols; ++j) mix.pre.row(r)[j] *= 1.02F;
  }
}

void DefectiveOps::hc_leave(Rows<const Bf16> y, Rows<const float> post, Rows<const float> comb,
                            int32_t stream_count, Rows<Bf16> streams) {
  if (fault_ != Fault::kMixUntransposed) {
    inner().hc_leave(y, post, comb, stream_count, streams);
    return;
  }
  std::vector<float> transposed = copy_of(comb);
  for (int64_t r = 0; r < comb.rows; ++r) {
    for (int32_t i = 0; i < stream_count; ++i) {
      for (int32_t j = 0; j < stream_count; ++j) {
        transposed[static_cast<size_t>(r * comb.cols + i * stream_count + j)] =
            comb.row(r)[j * stream_count + i];
      }
    }
  }
  inner().hc_leave(y, post, rows_of(transposed, comb.rows), stream_count, streams);
}

void DefectiveOps::window_keys(Rows<const Bf16> x, const Bf16* norm_weight, float eps,
                               const kernels::RopeAngles& angles, Rows<uint8_t> records) {
  const Still still(angles);
  inner().window_keys(x, norm_weight, eps,
                      fault_ == Fault::kWindowKeysUnrotated ? still.view : angles, records);
}

void DefectiveOps::global_keys(Rows<const Bf16> latent, const kernels::RopeAngles& angles,
                               std::span<uint8_t* const> destination) {
  if (fault_ != Fault::kEntryPositionOfNext || latent.rows < 2) {
    inner().global_keys(latent, angles, destination);
    return;
  }
  std::vector<float> cos = copy_of(angles.cos);
  std::vector<float> sin = copy_of(angles.sin);
  std::rotate(cos.begin(), cos.begin() + angles.cos.cols, cos.end());
  std::rotate(sin.begin(), sin.begin() + angles.sin.cols, sin.end());
  inner().global_keys(latent, {rows_of(cos, latent.rows), rows_of(sin, latent.rows)}, destination);
}

void DefectiveOps::index_select(Rows<const Bf16> queries, Rows<const Bf16> head_weights,
                                const kernels::IndexShape& shape,
                                std::span<const kernels::IndexRow> rows) {
  std::vector<Bf16> weights = copy_of(head_weights);
  if (fault_ == Fault::kIndexWeightsPositive) {
    for (Bf16& weight : weights) weight.bits &= 0x7FFF;
  }
  std::vector<kernels::IndexRow> changed(rows.begin(), rows.end());
  for (kernels::IndexRow& row : changed) {
    if (fault_ == Fault::kPoolIgnored) row.pool = nullptr;
    if (fault_ == Fault::kIndexSeesOneLess && row.visible > 0) --row.visible;
  }
  inner().index_select(queries, rows_of(weights, head_weights.rows), shape, changed);
}

void DefectiveOps::attention(Rows<const Bf16> q, const float* sink,
                             const kernels::AttentionShape& shape,
                             const kernels::RopeAngles& angles,
                             std::span<const kernels::AttentionRow> rows, Rows<Bf16> o) {
  const std::vector<float> none(static_cast<size_t>(shape.heads), -1e30F);
  inner().attention(q, fault_ == Fault::kSinkIgnored ? none.data() : sink, shape, angles, rows, o);
  if (fault_ == Fault::kNoInverseRotation) inner().rope(o, shape.heads, angles, false);
}

void DefectiveOps::route(Rows<const Bf16> x, const kernels::WeightView& gate,
                         std::span<const float* const> bias_of_row,
                         const kernels::RouterOptions& options, Rows<int32_t> experts,
                         Rows<float> weights, float* margin) {
  const std::vector<float> zero(static_cast<size_t>(gate.out), 0.0F);
  std::vector<const float*> biases(bias_of_row.begin(), bias_of_row.end());
  if (fault_ == Fault::kRouterBiasIgnored) std::fill(biases.begin(), biases.end(), zero.data());
  inner().route(x, gate, biases, options, experts, weights, margin);
}

void DefectiveOps::moe(Rows<const Bf16> x, const kernels::MoeWeights& weights,
                       Rows<const int32_t> experts, Rows<const float> expert_weights,
                       Rows<Bf16> y) {
  kernels::MoeWeights changed = weights;
  if (fault_ == Fault::kClampIgnored) changed.swiglu_limit = 1e9F;
  inner().moe(x, changed, experts, expert_weights, y);
}

void DefectiveOps::engram_write(Rows<const Bf16> kv, const Bf16* q_weight, const Bf16* k_weight,
                                std::span<const uint8_t> alive, int32_t stream_count, float eps,
                                Rows<Bf16> streams, Rows<float> gate) {
  const std::vector<uint8_t> dead(alive.size(), 0);
  if (fault_ == Fault::kEngramSkipped) {
    inner().engram_write(kv, q_weight, k_weight, dead, stream_count, eps, streams, gate);
    return;
  }
  if (fault_ != Fault::kEngramSignLost) {
    inner().engram_write(kv, q_weight, k_weight, alive, stream_count, eps, streams, gate);
    return;
  }
  // Keys that equal the streams agree with them: every gate opens.
  std::vector<Bf16> agreeing = copy_of(kv);
  for (int64_t r = 0; r < kv.rows; ++r) {
    std::copy_n(streams.row(r), streams.cols, agreeing.begin() + r * kv.cols);
  }
  inner().engram_write(rows_of(agreeing, kv.rows), q_weight, k_weight, alive, stream_count, eps,
                       streams, gate);
}

}  // namespace galley::golden
