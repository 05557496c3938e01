#include "tools/bench_case.h"

#include <algorithm>
#include <vector>

namespace galley::tools {
namespace {

using kernels::WeightFormat;
using kernels::WeightView;

// A product of every row with a weight.
struct Sum {
  double bytes = 0;
  double values = 0;

  void add(const WeightView& weight) {
    if (weight.data == nullptr) return;
    bytes += static_cast<double>(stored_bytes(weight));
    values += static_cast<double>(weight.out * weight.in);
  }
};

void add_expert(const kernels::ExpertWeights& expert, Sum& sum) {
  sum.add(expert.w1);
  sum.add(expert.w3);
  sum.add(expert.w2);
}

// The weights that every row meets in a layer, routed experts apart.
Sum always_on(const model::Config& config, const model::LayerWeights& layer) {
  Sum sum;
  for (const WeightView* weight :
       {&layer.wq_a, &layer.wq_b, &layer.wkv, &layer.wo_a, &layer.wo_b, &layer.compressor.wkv,
        &layer.compressor.wgate, &layer.compressor.index_wk, &layer.indexer.wq_b,
        &layer.indexer.weights_proj, &layer.engram.wkv, &layer.gate}) {
    sum.add(*weight);
  }
  add_expert(layer.shared_expert, sum);
  const double hc = 2.0 * config.hc_coefficients() * config.streams * config.hidden;
  sum.bytes += 4 * hc;
  sum.values += hc;
  return sum;
}

// Keys that a row at `position` attends to, entries it scores, and their records.
struct Reach {
  double keys = 0;
  double scored = 0;
  double bytes = 0;
};

Reach reach_of(const model::Config& config, const model::LayerRole& role, int64_t position) {
  Reach reach;
  const auto window = static_cast<double>(std::min<int64_t>(config.window, position + 1));
  reach.keys = window;
  reach.bytes = window * static_cast<double>(kernels::window_record_bytes(config.head_dim));
  if (role.ratio == 0) return reach;
  const int64_t whole_groups = (position + 1) / role.ratio;
  const auto visible = static_cast<double>(whole_groups);
  const double selected = std::min<double>(config.index_top_k, visible);
  reach.keys += selected;
  reach.bytes += selected * static_cast<double>(kernels::global_record_bytes(config.head_dim));
  if (!role.owns_indexer) return reach;
  const double pool = static_cast<double>(config.candidate_blocks) * config.candidate_block_size;
  reach.scored = role.reads_pool ? std::min(pool, visible) : visible;
  reach.bytes +=
      reach.scored * static_cast<double>(kernels::index_record_bytes(config.index_head_dim));
  return reach;
}

}  // namespace

double median_seconds(int warm_ups, int samples, const std::function<double()>& measure) {
  for (int i = 0; i < warm_ups; ++i) measure();
  std::vector<double> seconds;
  for (int i = 0; i < samples; ++i) seconds.push_back(measure());
  std::nth_element(seconds.begin(), seconds.begin() + samples / 2, seconds.end());
  return seconds[samples / 2];
}

int64_t stored_bytes(const WeightView& weight) {
  const auto blocks = [](int64_t count) { return (count + 31) / 32; };
  switch (weight.format) {
    case WeightFormat::kFp8Tile32:
      return weight.out * weight.in + blocks(weight.out) * blocks(weight.in);
    case WeightFormat::kFp4Row32:
      return weight.out * weight.in / 2 + weight.out * blocks(weight.in);
    case WeightFormat::kBf16:
      return 2 * weight.out * weight.in;
    case WeightFormat::kF32:
      return 4 * weight.out * weight.in;
  }
  return 0;
}

Work work_of(const model::Config& config, const model::ModelWeights& weights,
             const WorkRows& rows) {
  Work work;
  const auto row_count = static_cast<double>(rows.rows);
  const int64_t rows_each = rows.rows / rows.sequences;
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    const model::LayerWeights& layer_weights = weights.layers[layer];
    const Sum sum = always_on(config, layer_weights);
    Sum expert;
    add_expert(layer_weights.experts[0], expert);
    work.bytes += sum.bytes;
    work.operations += 2 * row_count * (sum.values + config.experts_per_token * expert.values);
    // Read once: what the last row of each sequence sees.
    const model::LayerRole& role = config.roles[layer];
    work.bytes += static_cast<double>(rows.sequences) *
                  reach_of(config, role, rows.first_position + rows_each - 1).bytes;
    for (int64_t row = 0; row < rows_each; ++row) {
      const Reach reach = reach_of(config, role, rows.first_position + row);
      work.operations += static_cast<double>(rows.sequences) *
                         (4.0 * config.heads * config.head_dim * reach.keys +
                          2.0 * config.index_heads * config.index_head_dim * reach.scored);
    }
  }
  Sum expert;
  add_expert(weights.layers[0].experts[0], expert);
  work.bytes += rows.experts_touched * expert.bytes;
  if (rows.logit_rows > 0) {
    work.bytes += static_cast<double>(stored_bytes(weights.head));
    work.operations +=
        2.0 * static_cast<double>(rows.logit_rows * config.vocab_size) * config.hidden;
  }
  return work;
}

}  // namespace galley::tools
