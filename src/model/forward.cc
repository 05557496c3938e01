#include "model/forward.h"

#include <algorithm>
#include <cstring>

#include "model/engram_prefetch.h"

namespace galley::model {
namespace {

kernels::HcOptions hc_options(const Config& config) {
  return {.streams = config.streams,
          .sinkhorn_iterations = config.sinkhorn_iterations,
          .hc_eps = config.hc_eps,
          .norm_eps = config.norm_eps};
}

RopeTables rope_tables(const Config& config) {
  const RopeConfig& rope = config.rope;
  return {.window = kernels::RopeTable({.rotary = config.rope_dim, .theta = rope.theta}),
          .compressed = kernels::RopeTable({.rotary = config.rope_dim,
                                            .theta = rope.compress_theta,
                                            .original_positions = rope.yarn_original_length,
                                            .factor = rope.yarn_factor,
                                            .beta_fast = rope.yarn_beta_fast,
                                            .beta_slow = rope.yarn_beta_slow})};
}

// Row `from` of `source` to row `to` of `target`; the same place may be both.
template <class T>
void copy_row(kernels::Rows<const T> source, int64_t from, kernels::Rows<T> target, int64_t to) {
  std::memmove(target.row(to), source.row(from), static_cast<size_t>(source.cols) * sizeof(T));
}

}  // namespace

Forward::Forward(const Model& model, KvCache& cache, kernels::Ops& ops, const StepOptions& options)
    : model_(model),
      config_(model.config()),
      cache_(cache),
      ops_(ops),
      options_(options),
      cut_(config_.decoder_source() >= 0 ? config_.decoder_source() : config_.layers),
      hc_options_(hc_options(config_)),
      rope_(rope_tables(config_)),
      ws_(config_, cache.layout(), options),
      full_(ws_.rows_max, options.sequences_max, config_.rope_dim),
      tail_(ws_.rows_max, options.sequences_max, config_.rope_dim) {
  for (const LayerWeights& layer : model.weights().layers) {
    moe_.push_back({.experts = layer.experts,
                    .shared = layer.shared_expert,
                    .swiglu_limit = config_.swiglu_limit});
  }
  for (const KvSourceLayout& source : cache.layout().sources) {
    const bool known = std::ranges::any_of(
        groups_, [&source](const GroupSet& set) { return set.ratio() == source.ratio; });
    if (!known) groups_.emplace_back(source.ratio, ws_.rows_max, config_.rope_dim);
  }
}

const GroupSet& Forward::groups_of(int32_t ratio) const {
  const auto found =
      std::ranges::find_if(groups_, [ratio](const GroupSet& set) { return set.ratio() == ratio; });
  CHECK(found != groups_.end());
  return *found;
}

StepResult Forward::run(std::span<const SequencePlan> plans, StepObserver* observer) {
  begin(plans, observer);
  embed();
  const RowSet* set = &full_;
  for (int32_t layer = 0; layer < config_.layers && set->rows() > 0; ++layer) {
    if (observer_ != nullptr) {
      observer_->layer_in(layer, observed(*set), streams(*set), carried(*set));
    }
    engram(layer, *set);
    capture(layer, *set);
    const bool trims_here = trims_ && layer == cut_;
    if (trims_here && options_.replay != DecoderReplay::kLayerWhole) {
      attention_at_cut(layer);
      set = &tail_;
      if (set->rows() == 0) break;
    } else {
      attention(layer, *set);
    }
    experts(layer, *set);
    if (observer_ != nullptr) {
      observer_->layer_out(layer, observed(*set), streams(*set), carried(*set));
    }
    if (trims_here && options_.replay == DecoderReplay::kLayerWhole) {
      keep_tail_selections();
      keep_tail();
      set = &tail_;
    }
  }
  StepResult result = head(*set);
  result.full_rows = full_.rows();
  result.tail_rows = trims_ ? tail_.rows() : full_.rows();
  if (options_.capture_targets) result.main_hidden = ws_.main_hidden.first(set->rows());
  return result;
}

void Forward::run_layer(const SequencePlan& plan, const LayerInputs& inputs, Rows<Bf16> streams_out,
                        Rows<float> pre_out, StepObserver* observer) {
  begin(std::span(&plan, 1), observer);
  inputs_ = &inputs;
  for (int64_t row = 0; row < full_.rows(); ++row) {
    copy_row(inputs.streams, row, streams(full_), row);
    copy_row(inputs.pre_in, row, carried(full_), row);
  }
  use_stored_pool(full_);
  use_stored_selection(full_);
  engram(inputs.layer, full_);
  attention(inputs.layer, full_);
  experts(inputs.layer, full_);
  for (int64_t row = 0; row < full_.rows(); ++row) {
    copy_row<Bf16>(streams(full_), row, streams_out, row);
    copy_row<float>(carried(full_), row, pre_out, row);
  }
  if (observer_ != nullptr) {
    observer_->layer_out(inputs.layer, observed(full_), streams(full_), carried(full_));
  }
  inputs_ = nullptr;
}

void Forward::begin(std::span<const SequencePlan> plans, StepObserver* observer) {
  plans_ = plans;
  observer_ = observer;
  side_ = 0;
  trims_ = false;
  full_.clear();
  tail_.clear();
  for (GroupSet& groups : groups_) groups.clear();
  for (size_t i = 0; i < plans.size(); ++i) {
    const SequencePlan& plan = plans[i];
    const auto sequence = static_cast<int32_t>(i);
    const int64_t tail_begin =
        plan.held_rows > 0 ? plan.first_position - plan.held_rows
                           : std::clamp(plan.tail_begin, plan.first_position, plan.end_position());
    trims_ = trims_ || (cut_ < config_.layers && tail_begin != plan.first_position);
    full_.add(sequence, plan, plan.first_position);
    tail_.add(sequence, plan, tail_begin);
    for (GroupSet& groups : groups_) groups.add(sequence, plan);
  }
  for (int32_t index = 0; index < model_.engram_hash().layer_count(); ++index) {
    const int32_t layer = config_.engram.layer_ids[static_cast<size_t>(index)];
    fill_engram_ids(index, trims_ && layer > cut_ ? tail_ : full_);
  }
  full_.fill_angles(rope_);
  if (trims_) tail_.fill_angles(rope_);
  for (GroupSet& groups : groups_) groups.fill_angles(rope_.compressed);
}

void Forward::fill_engram_ids(int32_t index, const RowSet& set) {
  const RowBuffer<int64_t>& ids = ws_.engram_ids[static_cast<size_t>(index)];
  for (const RowSegment& segment : set.segments()) {
    const SequencePlan& plan = plans_[static_cast<size_t>(segment.sequence)];
    const int64_t begin = segment.first_position - plan.first_position;
    model_.engram_hash().rows(index,
                              {.tokens = plan.tokens,
                               .dead = plan.in_image,
                               .look_back = plan.look_back,
                               .look_back_dead = plan.look_back_in_image},
                              begin, begin + segment.count,
                              ids.first(set.rows()).slice(segment.begin, segment.count));
  }
  const int32_t layer = config_.engram.layer_ids[static_cast<size_t>(index)];
  prefetch_engram_rows(weights(layer).engram, config_.engram.head_dim, ids.first(set.rows()));
}

void Forward::embed() {
  const auto* table = static_cast<const Bf16*>(model_.weights().embed.data);
  int64_t row = 0;
  for (const SequencePlan& plan : plans_) {
    for (size_t i = 0; i < plan.tokens.size(); ++i, ++row) {
      const Bf16* given = plan.embeddings.empty() ? nullptr : plan.embeddings[i];
      ws_.sources[row] =
          given != nullptr ? given : table + int64_t{plan.tokens[i]} * config_.hidden;
    }
  }
  ops_.spread(std::span(ws_.sources.row(0), static_cast<size_t>(row)), config_.hidden,
              config_.streams, streams(full_));
  for (int64_t r = 0; r < row; ++r) {
    float* mix = carried(full_).row(r);
    std::fill_n(mix, config_.streams, 0.0F);
    mix[0] = 1.0F;
  }
  if (observer_ != nullptr) observer_->embed_in(observed(full_), streams(full_));
}

void Forward::engram(int32_t layer, const RowSet& set) {
  const int32_t index = role(layer).engram_index;
  if (index < 0) return;
  const EngramWeights& w = weights(layer).engram;
  const Rows<int64_t> ids = ws_.engram_ids[static_cast<size_t>(index)].first(set.rows());
  const Rows<Bf16> e = ws_.engram_e.first(set.rows());
  const Rows<Bf16> kv = ws_.engram_kv.first(set.rows());
  ops_.engram_lookup(w.table, w.scale, config_.engram.head_dim, ids, e);
  const kernels::Product product{.weight = w.wkv, .quantise_input = true, .y = kv, .y_f32 = {}};
  ops_.linear(e, std::span(&product, 1));
  const Rows<float> gate = observer_ != nullptr ? ws_.engram_gate.first(set.rows()) : Rows<float>();
  ops_.engram_write(kv, w.q_weight, w.k_weight, set.alive(), config_.streams, config_.norm_eps,
                    streams(set), gate);
  if (observer_ != nullptr) observer_->engram(layer, observed(set), ids, gate, streams(set));
}

void Forward::capture(int32_t layer, const RowSet& set) {
  if (!options_.capture_targets) return;
  const std::vector<int32_t>& targets = config_.dspark.target_layer_ids;
  for (size_t target = 0; target < targets.size(); ++target) {
    if (targets[target] != layer) continue;
    const Rows<Bf16> mean(ws_.main_hidden.row(0) + static_cast<int64_t>(target) * config_.hidden,
                          set.rows(), config_.hidden, ws_.main_hidden.cols());
    ops_.stream_mean(streams(set), config_.streams, mean);
    if (observer_ != nullptr) {
      observer_->main_hidden(static_cast<int32_t>(target), observed(set), mean);
    }
  }
}

void Forward::experts(int32_t layer, const RowSet& set) {
  const LayerWeights& w = weights(layer);
  const int64_t rows = set.rows();
  const kernels::HcMix mix{carried(set), ws_.post.first(rows), ws_.comb.first(rows)};
  const Rows<Bf16> x = ws_.x.first(rows);
  const Rows<Bf16> y = ws_.y.first(rows);
  const Rows<int32_t> chosen = ws_.experts.first(rows);
  const Rows<float> chosen_weights = ws_.expert_weights.first(rows);
  ops_.hc_enter(streams(set), w.hc_ffn, hc_options_, ws_.pre.first(rows), w.ffn_norm, mix, x);
  for (int64_t row = 0; row < rows; ++row) {
    const bool in_image = set.in_image()[static_cast<size_t>(row)] != 0;
    ws_.bias_of_row[row] = in_image ? w.gate_bias_vl : w.gate_bias;
  }
  float* margin = observer_ != nullptr ? ws_.router_margin.row(0) : nullptr;
  ops_.route(x, w.gate, std::span(ws_.bias_of_row.row(0), static_cast<size_t>(rows)),
             {.top_k = config_.experts_per_token,
              .scale = config_.routed_scaling,
              .gate_temperature = config_.gate_temperature},
             chosen, chosen_weights, margin);
  ops_.moe(x, moe_[static_cast<size_t>(layer)], chosen, chosen_weights, y);
  if (observer_ != nullptr) {
    observer_->ffn_in(layer, observed(set), x);
    observer_->router(layer, observed(set), chosen, chosen_weights,
                      std::span<const float>(margin, static_cast<size_t>(rows)));
    observer_->ffn_out(layer, observed(set), y);
  }
  ops_.hc_leave(y, mix.post, mix.comb, config_.streams, streams(set));
}

void Forward::keep_tail() {
  const int32_t other = 1 - side_;
  for (const RowSegment& segment : tail_.segments()) {
    const SequencePlan& plan = plans_[static_cast<size_t>(segment.sequence)];
    const RowSegment& whole = *full_.segment_of(segment.sequence);
    for (int32_t i = 0; i < segment.count; ++i) {
      const int64_t position = segment.first_position + i;
      const int64_t to = segment.begin + i;
      Bf16* streams_to = ws_.streams[other].row(to);
      float* carried_to = ws_.carried[other].row(to);
      const bool held = position < plan.first_position;
      const int64_t from = whole.begin + (position - plan.first_position);
      const Bf16* streams_from =
          held ? cache_.held_streams(plan.slot, position) : ws_.streams[side_].row(from);
      const float* carried_from =
          held ? cache_.held_mix(plan.slot, position) : ws_.carried[side_].row(from);
      std::copy_n(streams_from, ws_.streams[other].cols(), streams_to);
      std::copy_n(carried_from, config_.streams, carried_to);
      // Rows only move forward, and never with held rows (Step::create).
      if (options_.capture_targets && !held) {
        std::memmove(ws_.main_hidden.row(to), ws_.main_hidden.row(from),
                     static_cast<size_t>(ws_.main_hidden.cols()) * sizeof(Bf16));
      }
    }
  }
  side_ = other;
}

void Forward::keep_tail_selections() {
  // Never with held rows, whose selections are gone (Step::create).
  for (const RowSegment& segment : tail_.segments()) {
    const RowSegment& whole = *full_.segment_of(segment.sequence);
    for (int32_t i = 0; i < segment.count; ++i) {
      const int64_t to = segment.begin + i;
      const int64_t from = whole.begin + (segment.first_position + i - whole.first_position);
      std::copy_n(ws_.selected.row(from), ws_.selected.cols(), ws_.selected.row(to));
      std::copy_n(ws_.pool.row(from), ws_.pool.cols(), ws_.pool.row(to));
      ws_.selected_count[to] = ws_.selected_count[from];
      ws_.pool_count[to] = ws_.pool_count[from];
    }
  }
}

StepResult Forward::head(const RowSet& set) {
  // The wanted rows, side by side in the buffer that is free now.
  const int32_t other = 1 - side_;
  int64_t wanted = 0;
  for (const RowSegment& segment : set.segments()) {
    const SequencePlan& plan = plans_[static_cast<size_t>(segment.sequence)];
    const int64_t offset = plan.first_position - segment.first_position;  // held rows
    const int64_t count = static_cast<int64_t>(plan.tokens.size());
    for (int64_t i = std::min(plan.logits_begin, count); i < count; ++i, ++wanted) {
      const int64_t row = segment.begin + offset + i;
      std::copy_n(ws_.streams[side_].row(row), ws_.streams[side_].cols(),
                  ws_.streams[other].row(wanted));
      std::copy_n(ws_.carried[side_].row(row), config_.streams, ws_.carried[other].row(wanted));
    }
  }
  StepResult result;
  result.logits = ws_.logits.first(wanted);
  if (wanted == 0) return result;
  const Rows<Bf16> z = ws_.x.first(wanted);
  ops_.collapse_norm(ws_.streams[other].first(wanted), ws_.carried[other].first(wanted),
                     config_.streams, model_.weights().norm, config_.norm_eps, z);
  const kernels::Product product{.weight = model_.weights().head,
                                 .quantise_input = false,
                                 .y = {},
                                 .y_f32 = ws_.logits.first(wanted)};
  ops_.linear(z, std::span(&product, 1));
  return result;
}

}  // namespace galley::model
