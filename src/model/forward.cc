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

RopeTables rope_tables(const Config& config, const StepOptions& options) {
  const RopeConfig& rope = config.rope;
  const int64_t positions =
      options.positions_max > 0 ? options.positions_max : config.positions_max;
  return {.window = RopeCache({.rotary = config.rope_dim, .theta = rope.theta}, positions),
          .compressed = RopeCache({.rotary = config.rope_dim,
                                   .theta = rope.compress_theta,
                                   .original_positions = rope.yarn_original_length,
                                   .factor = rope.yarn_factor,
                                   .beta_fast = rope.yarn_beta_fast,
                                   .beta_slow = rope.yarn_beta_slow},
                                  positions)};
}

}  // namespace

Forward::Forward(const Model& model, const ModelWeights& weights, KvCache& cache, kernels::Ops& ops,
                 const StepOptions& options)
    : model_(model),
      weights_(weights),
      config_(model.config()),
      cache_(cache),
      ops_(ops),
      options_(options),
      cut_(config_.decoder_source() >= 0 ? config_.decoder_source() : config_.layers),
      hc_options_(hc_options(config_)),
      rope_(rope_tables(config_, options_)),
      device_source_(ops.memory()),
      host_source_(kernels::host_memory()),
      ws_(config_, cache.layout(), options, device_source_, host_source_),
      logits_host_(kernels::MemoryBlock()),
      drawn_host_(kernels::MemoryBlock::create_host(
          ops.memory(), 2 * int64_t{options.logit_rows_max} * int64_t{sizeof(kernels::DrawnToken)},
          "drawn tokens")),
      dead_rows_(cache, options.sequences_max),
      full_(ws_.rows_max, options.sequences_max, config_.rope_dim, host_source_),
      tail_(ws_.rows_max, options.sequences_max, config_.rope_dim, host_source_),
      start_mix_(static_cast<size_t>(config_.streams), 0.0F),
      seen_(ops.memory()) {
  start_mix_[0] = 1.0F;
  draws_.reserve(static_cast<size_t>(options.logit_rows_max));
  for (Flight& flight : flights_) {
    flight.draws.reserve(static_cast<size_t>(options.logit_rows_max));
  }
  drawn_tokens_.resize(static_cast<size_t>(options.sequences_max));
  page_tables_.reserve(static_cast<size_t>(options.sequences_max));
  // Two halves of each group's members; three copies of a row at the cut.
  copies_.reserve(static_cast<size_t>(2 * ws_.group_a.rows() + 3 * ws_.rows_max));
  if (!ops.memory().is_host()) {
    logits_host_ =
        kernels::MemoryBlock::create_host(ops.memory(), ws_.logits.bytes(), "logits on the host");
  }
  for (const LayerWeights& layer : weights.layers) {
    moe_.push_back({.experts = layer.experts,
                    .shared = layer.shared_expert,
                    .swiglu_limit = config_.swiglu_limit});
  }
  for (const int32_t layer : config_.engram.layer_ids) {
    const EngramWeights& w = weights.layers[static_cast<size_t>(layer)].engram;
    tables_.push_back({.codes = w.table,
                       .scale = w.scale,
                       .width = config_.engram.head_dim,
                       .on_host = w.on_host});
    table_on_disk_.push_back(w.on_host && engram_rows_on_disk(w, config_.engram.head_dim));
  }
  for (const KvSourceLayout& source : cache.layout().sources) {
    const bool known = std::ranges::any_of(
        groups_, [&source](const GroupSet& set) { return set.ratio() == source.ratio; });
    if (!known) groups_.emplace_back(source.ratio, ws_.rows_max, config_.rope_dim, host_source_);
  }
}

const GroupSet& Forward::groups_of(int32_t ratio) const {
  const auto found =
      std::ranges::find_if(groups_, [ratio](const GroupSet& set) { return set.ratio() == ratio; });
  CHECK(found != groups_.end());
  return *found;
}

Result<void> Forward::status() const {
  TRY(device_source_.status());
  TRY(host_source_.status());
  if (!logits_host_) return logits_host_.error();
  if (!drawn_host_) return drawn_host_.error();
  return {};
}

Result<void> Forward::reserve() {
  kernels::StepBounds bounds;
  bounds.rows = ws_.rows_max;
  bounds.input_width = std::max({int64_t{config_.hidden}, int64_t{config_.q_lora_rank},
                                 ws_.u.cols(), int64_t{config_.engram.width()}});
  bounds.query_width = ws_.q.cols();
  bounds.hidden = config_.hidden;
  bounds.expert_width = config_.expert_width;
  bounds.experts_per_token = config_.experts_per_token;
  bounds.routed_experts = config_.routed_experts;
  const int64_t positions =
      options_.positions_max > 0 ? options_.positions_max : config_.positions_max;
  if (const auto& sources = cache_.layout().sources; !sources.empty()) {
    bounds.entries = positions;
    bounds.index = index_shape();
    bounds.index_records_per_page = sources.front().records_per_page;
  }
  bounds.engram_width = config_.engram.layer_ids.empty() ? 0 : config_.engram.width();
  // Angles of both sets and of the groups, and the page tables.
  bounds.stage_bytes =
      ws_.rows_max * config_.rope_dim * 4 * (4 + std::ssize(groups_)) +
      int64_t{options_.sequences_max} * (cache_.layout().pages_for(positions) + 64) * 4 + 65536;
  bounds.logit_rows = options_.logit_rows_max;
  bounds.vocab = config_.vocab_size;
  bounds.moe = moe_;
  bounds.tables = tables_;
  return ops_.reserve(bounds);
}

void Forward::submit(std::span<const SequencePlan> plans, StepObserver* observer) {
  const auto wanted = std::ssize(plans);
  const bool even = observer == nullptr && ops_.overlaps_steps() && !ops_.joins_ranks() &&
                    !options_.capture_targets;
  if (even) plans = dead_rows_.behind(plans, 1 - side_of_flight_);
  const int64_t dead = std::ssize(plans) - wanted;  // a row each
  begin(plans, observer);
  embed();
  const RowSet* set = &full_;
  for (int32_t layer = 0; layer < config_.layers; ++layer) {
    if (set->rows() == 0) {
      join_experts(layer);
      continue;
    }
    if (observer_ != nullptr) {
      observer_->layer_in(layer, observed(*set), seen_.rows(streams(*set)),
                          seen_.rows(carried(*set)));
      seen_.clear();
    }
    engram(layer, *set);
    capture(layer, *set);
    const bool trims_here = trims_ && layer == cut_;
    if (trims_here && options_.replay != DecoderReplay::kLayerWhole) {
      attention_at_cut(layer);
      set = &tail_;
      if (set->rows() == 0) {
        join_experts(layer);
        continue;
      }
    } else {
      attention(layer, *set);
    }
    experts(layer, *set);
    if (observer_ != nullptr) {
      observer_->layer_out(layer, observed(*set), seen_.rows(streams(*set)),
                           seen_.rows(carried(*set)));
      seen_.clear();
    }
    if (trims_here && options_.replay == DecoderReplay::kLayerWhole) {
      keep_tail_selections();
      keep_tail();
      set = &tail_;
    }
  }
  StepResult& result = newest().result;
  result = {};
  result.logits = ws_.logits.first(head(*set));
  draw(result.logits);
  result.full_rows = full_.rows() - dead;
  result.tail_rows = trims_ ? tail_.rows() : full_.rows() - dead;
  if (options_.capture_targets) result.main_hidden = ws_.main_hidden[side_].first(set->rows());
  fetch_results();
  if (dead > 0) {
    result.logits = result.logits.slice(0, wanted);
    result.drawn = result.drawn.first(static_cast<size_t>(wanted));
  }
  ops_.hand_in();
}

Result<StepResult> Forward::collect() {
  CHECK(in_flight_ > 0);
  const StepResult& result = oldest().result;
  --in_flight_;
  TRY(ops_.finish());
  if (in_flight_ > 0 && awaits_tokens_) give_tokens(result.drawn);
  return result;
}

bool Forward::overlaps(std::span<const SequencePlan> plans) const {
  const auto unknown =
      std::ranges::count_if(plans, [](const SequencePlan& plan) { return plan.token_row >= 0; });
  if (in_flight_ == 0) return unknown == 0;
  if (in_flight_ == 2 || !ops_.overlaps_steps() || options_.capture_targets) return false;
  const Flight& before = newest();
  int64_t rows = 0;
  bool all_drawn = true;  // of this step
  for (const SequencePlan& plan : plans) {
    rows += std::ssize(plan.tokens);
    all_drawn = all_drawn && (plan.draw != nullptr || plan.logits_begin >= std::ssize(plan.tokens));
    if (plan.token_row < 0) continue;
    const auto row = static_cast<size_t>(plan.token_row);
    if (std::ssize(plan.tokens) != 1 || plan.held_rows > 0 || !plan.embeddings.empty() ||
        row >= before.draws.size() || !before.draws[row]) {
      return false;
    }
  }
  // There is one place on the host for logits.
  if (before.fetches_logits && !all_drawn) return false;
  return unknown == 0 || ops_.may_await_ids(rows);
}

void Forward::draw(Rows<const float> logits) {
  std::vector<bool>& draws = newest().draws;
  draws_.clear();
  draws.clear();
  if (!ops_.draws()) return;
  bool any = false;
  for (const SequencePlan& plan : plans_) {
    const auto count = static_cast<int64_t>(plan.tokens.size());
    for (int64_t i = std::min(plan.logits_begin, count); i < count; ++i) {
      draws.push_back(plan.draw != nullptr);
      kernels::DrawRequest request = plan.draw != nullptr ? *plan.draw : kernels::DrawRequest{};
      request.position += i - plan.logits_begin;
      draws_.push_back(request);
      any = any || plan.draw != nullptr;
    }
  }
  if (!any) draws.clear();
  if (any) ops_.draw(logits, draws_, ws_.drawn.row(0));
}

void Forward::fetch_results() {
  Flight& flight = newest();
  const Rows<const float> logits = flight.result.logits;
  flight.fetches_logits = false;
  if (logits.rows == 0) return;
  const std::vector<bool>& draws = flight.draws;
  const bool on_host = ops_.memory().is_host();
  float* host = on_host ? nullptr : reinterpret_cast<float*>(logits_host_->data());
  if (!on_host) flight.result.logits = Rows<const float>(host, logits.rows, logits.cols);
  const auto stays = [&](int64_t row) { return !draws.empty() && draws[static_cast<size_t>(row)]; };
  for (int64_t begin = 0; !on_host && begin < logits.rows;) {
    int64_t end = begin + 1;
    while (end < logits.rows && stays(end) == stays(begin)) ++end;
    if (!stays(begin)) {
      flight.fetches_logits = true;
      ops_.fetch(host + begin * logits.cols, logits.row(begin),
                 (end - begin) * logits.cols * static_cast<int64_t>(sizeof(float)));
    }
    begin = end;
  }
  if (draws.empty()) return;
  auto* drawn = reinterpret_cast<kernels::DrawnToken*>(drawn_host_->data()) +
                static_cast<int64_t>(side_of_flight_) * options_.logit_rows_max;
  ops_.fetch(drawn, ws_.drawn.row(0),
             logits.rows * static_cast<int64_t>(sizeof(kernels::DrawnToken)));
  flight.result.drawn = std::span(drawn, static_cast<size_t>(logits.rows));
}

void Forward::copy_rows() {
  if (!copies_.empty()) ops_.copy(copies_);
  copies_.clear();
}

template <class T>
void Forward::write_rows(Rows<const T> host, Rows<T> rows) {
  for (int64_t row = 0; row < rows.rows; ++row) {
    ops_.memory().write(rows.row(row), host.row(row), rows.cols * static_cast<int64_t>(sizeof(T)));
  }
}

template <class T>
void Forward::read_rows(Rows<const T> rows, Rows<T> host) {
  for (int64_t row = 0; row < rows.rows; ++row) {
    ops_.memory().read(host.row(row), rows.row(row), rows.cols * static_cast<int64_t>(sizeof(T)));
  }
}

Result<void> Forward::run_layer(const SequencePlan& plan, const LayerInputs& inputs,
                                Rows<Bf16> streams_out, Rows<float> pre_out,
                                StepObserver* observer) {
  begin(std::span(&plan, 1), observer);
  inputs_ = &inputs;
  write_rows(inputs.streams, streams(full_));
  write_rows(inputs.pre_in, carried(full_));
  use_stored_pool(full_);
  use_stored_selection(full_);
  engram(inputs.layer, full_);
  attention(inputs.layer, full_);
  experts(inputs.layer, full_);
  read_rows<Bf16>(streams(full_), streams_out);
  read_rows<float>(carried(full_), pre_out);
  if (observer_ != nullptr) {
    observer_->layer_out(inputs.layer, observed(full_), seen_.rows(streams(full_)),
                         seen_.rows(carried(full_)));
    seen_.clear();
  }
  inputs_ = nullptr;
  --in_flight_;
  return ops_.finish();
}

void Forward::begin(std::span<const SequencePlan> plans, StepObserver* observer) {
  plans_ = plans;
  observer_ = observer;
  side_ = 0;
  trims_ = false;
  side_of_flight_ = 1 - side_of_flight_;
  ++in_flight_;
  awaits_tokens_ =
      std::ranges::any_of(plans, [](const SequencePlan& plan) { return plan.token_row >= 0; });
  ops_.begin_step();
  if (awaits_tokens_) ops_.await_ids();
  page_tables_.clear();
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
    page_tables_.push_back(static_cast<const int32_t*>(ops_.stage(
        plan.page_table.data(), std::ssize(plan.page_table) * int64_t{sizeof(int32_t)})));
  }
  for (int64_t row = 0; row < full_.rows(); ++row) {
    ws_.selection_of[row] = static_cast<int32_t>(row);
    ws_.pool_of[row] = static_cast<int32_t>(row);
  }
  for (int32_t index = 0; index < model_.engram_hash().layer_count(); ++index) {
    fill_engram_ids(index, false);
  }
  full_.fill_angles(rope_, ops_);
  if (trims_) tail_.fill_angles(rope_, ops_);
  for (GroupSet& groups : groups_) groups.fill_angles(rope_.compressed, ops_);
}

void Forward::fill_engram_ids(int32_t index, bool unknown) {
  const int32_t layer = config_.engram.layer_ids[static_cast<size_t>(index)];
  const RowSet& set = trims_ && layer > cut_ ? tail_ : full_;
  const Rows<int64_t> ids = ws_.engram_ids[static_cast<size_t>(index)].first(set.rows());
  for (const RowSegment& segment : set.segments()) {
    const SequencePlan& plan = plans_[static_cast<size_t>(segment.sequence)];
    if ((plan.token_row >= 0) != unknown) continue;
    const int64_t begin = segment.first_position - plan.first_position;
    const std::span<const int32_t> drawn(&drawn_tokens_[static_cast<size_t>(segment.sequence)], 1);
    model_.engram_hash().rows(index,
                              {.tokens = unknown ? drawn : plan.tokens,
                               .dead = plan.in_image,
                               .look_back = plan.look_back,
                               .look_back_dead = plan.look_back_in_image},
                              begin, begin + segment.count,
                              ids.slice(segment.begin, segment.count));
  }
  if (!weights(layer).engram.on_host || awaits_tokens_ != unknown) return;
  prefetch_engram_rows(weights(layer).engram, config_.engram.head_dim,
                       table_on_disk_[static_cast<size_t>(index)], ids);
}

void Forward::give_tokens(std::span<const kernels::DrawnToken> drawn) {
  for (size_t i = 0; i < plans_.size(); ++i) {
    if (plans_[i].token_row < 0) continue;
    drawn_tokens_[i] = drawn[static_cast<size_t>(plans_[i].token_row)].token;
  }
  for (int32_t index = 0; index < model_.engram_hash().layer_count(); ++index) {
    fill_engram_ids(index, true);
  }
  awaits_tokens_ = false;
  ops_.give_ids();
}

void Forward::embed() {
  const auto* table = static_cast<const Bf16*>(weights_.embed.data);
  const int64_t row_bytes = config_.hidden * int64_t{sizeof(Bf16)};
  int64_t row = 0;
  for (const SequencePlan& plan : plans_) {
    for (size_t i = 0; i < plan.tokens.size(); ++i, ++row) {
      const Bf16* given = plan.embeddings.empty() ? nullptr : plan.embeddings[i];
      if (plan.token_row >= 0) {
        ws_.sources[row] = {table, ws_.drawn.row(plan.token_row)};
      } else if (given != nullptr) {
        ws_.sources[row] = {static_cast<const Bf16*>(ops_.stage(given, row_bytes))};
      } else {
        ws_.sources[row] = {table + int64_t{plan.tokens[i]} * config_.hidden};
      }
    }
  }
  ops_.spread(std::span(ws_.sources.row(0), static_cast<size_t>(row)), config_.hidden,
              config_.streams, streams(full_));
  const auto* mix = static_cast<const float*>(
      ops_.stage(start_mix_.data(), config_.streams * int64_t{sizeof(float)}));
  for (int64_t r = 0; r < row; ++r) add_copy(mix, carried(full_).row(r), config_.streams);
  copy_rows();
  if (observer_ != nullptr) observer_->embed_in(observed(full_), seen_.rows(streams(full_)));
  seen_.clear();
}

void Forward::engram(int32_t layer, const RowSet& set) {
  const int32_t index = role(layer).engram_index;
  if (index < 0) return;
  const EngramWeights& w = weights(layer).engram;
  const auto at = static_cast<size_t>(index);
  const Rows<int64_t> ids = ws_.engram_ids[at].first(set.rows());
  const Rows<Bf16> e = ws_.engram_e.first(set.rows());
  const Rows<Bf16> kv = ws_.engram_kv.first(set.rows());
  ops_.engram_lookup(tables_[at], ids, e);
  const kernels::Product product{.weight = w.wkv, .quantise_input = true, .y = kv, .y_f32 = {}};
  ops_.linear(e, std::span(&product, 1));
  const Rows<float> gate = observer_ != nullptr ? ws_.engram_gate.first(set.rows()) : Rows<float>();
  ops_.engram_write(kv, w.q_weight, w.k_weight, set.alive(), config_.streams, config_.norm_eps,
                    streams(set), gate);
  if (observer_ == nullptr) return;
  observer_->engram(layer, observed(set), ids, seen_.rows(gate), seen_.rows(streams(set)));
  seen_.clear();
}

void Forward::capture(int32_t layer, const RowSet& set) {
  if (!options_.capture_targets) return;
  const std::vector<int32_t>& targets = config_.dspark.target_layer_ids;
  for (size_t target = 0; target < targets.size(); ++target) {
    if (targets[target] != layer) continue;
    const RowBuffer<Bf16>& captured = ws_.main_hidden[side_];
    const Rows<Bf16> mean(captured.row(0) + static_cast<int64_t>(target) * config_.hidden,
                          set.rows(), config_.hidden, captured.cols());
    ops_.stream_mean(streams(set), config_.streams, mean);
    if (observer_ != nullptr) {
      observer_->main_hidden(static_cast<int32_t>(target), observed(set), seen_.rows(mean));
      seen_.clear();
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
    observer_->ffn_in(layer, observed(set), seen_.rows(x));
    observer_->router(layer, observed(set), seen_.rows(chosen), seen_.rows(chosen_weights),
                      std::span<const float>(seen_.rows(ws_.router_margin.first(rows)).data,
                                             static_cast<size_t>(rows)));
    observer_->ffn_out(layer, observed(set), seen_.rows(y));
    seen_.clear();
  }
  ops_.hc_leave(y, mix.post, mix.comb, config_.streams, streams(set));
}

void Forward::join_experts(int32_t layer) {
  if (!ops_.joins_ranks()) return;
  ops_.moe(ws_.x.first(0), moe_[static_cast<size_t>(layer)], ws_.experts.first(0),
           ws_.expert_weights.first(0), ws_.y.first(0));
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
      add_copy(streams_from, streams_to, ws_.streams[other].cols());
      add_copy(carried_from, carried_to, config_.streams);
      // Never with held rows (Step::create).
      if (options_.capture_targets && !held) {
        add_copy(ws_.main_hidden[side_].row(from), ws_.main_hidden[other].row(to),
                 ws_.main_hidden[other].cols());
      }
    }
  }
  copy_rows();
  side_ = other;
}

void Forward::keep_tail_selections() {
  // Never with held rows, whose selections are gone (Step::create).
  for (const RowSegment& segment : tail_.segments()) {
    const RowSegment& whole = *full_.segment_of(segment.sequence);
    for (int32_t i = 0; i < segment.count; ++i) {
      const int64_t to = segment.begin + i;
      const int64_t from = whole.begin + (segment.first_position + i - whole.first_position);
      // Rows only move forward.
      ws_.selection_of[to] = ws_.selection_of[from];
      ws_.pool_of[to] = ws_.pool_of[from];
    }
  }
}

int64_t Forward::head(const RowSet& set) {
  // The wanted rows, side by side in the buffer that is free now. Where all of the set's are, as in
  // most steps that decode, they are side by side already.
  const int32_t other = 1 - side_;
  const size_t copies_before = copies_.size();
  int64_t wanted = 0;
  for (const RowSegment& segment : set.segments()) {
    const SequencePlan& plan = plans_[static_cast<size_t>(segment.sequence)];
    const int64_t offset = plan.first_position - segment.first_position;  // held rows
    const int64_t count = static_cast<int64_t>(plan.tokens.size());
    for (int64_t i = std::min(plan.logits_begin, count); i < count; ++i, ++wanted) {
      const int64_t row = segment.begin + offset + i;
      add_copy(ws_.streams[side_].row(row), ws_.streams[other].row(wanted),
               ws_.streams[side_].cols());
      add_copy(ws_.carried[side_].row(row), ws_.carried[other].row(wanted), config_.streams);
    }
  }
  if (wanted == 0) return 0;
  const bool all = wanted == set.rows();
  if (all) copies_.resize(copies_before);
  copy_rows();
  const int32_t from = all ? side_ : other;
  const Rows<Bf16> z = ws_.x.first(wanted);
  ops_.collapse_norm(ws_.streams[from].first(wanted), ws_.carried[from].first(wanted),
                     config_.streams, weights_.norm, config_.norm_eps, z);
  const kernels::Product product{
      .weight = weights_.head, .quantise_input = false, .y = {}, .y_f32 = ws_.logits.first(wanted)};
  ops_.linear(z, std::span(&product, 1));
  return wanted;
}

}  // namespace galley::model
