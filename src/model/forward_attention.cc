// The attention site of a layer (spec/model.md 4), whole or split at the cut of
// decoder replay (8.3).
#include <algorithm>
#include <array>
#include <vector>

#include "model/forward.h"

namespace galley::model {

using kernels::AttentionRow;
using kernels::IndexRow;
using kernels::Product;

bool Forward::after_cut(int32_t layer) const {
  return layer > cut_ || (layer == cut_ && options_.replay == DecoderReplay::kGlobalOnly);
}

void Forward::attention(int32_t layer, const RowSet& set) {
  const LayerWeights& w = weights(layer);
  const int64_t rows = set.rows();
  const kernels::HcMix mix{ws_.pre.first(rows), ws_.post.first(rows), ws_.comb.first(rows)};
  const bool owns_kv = role(layer).owns_kv;
  if (layer == cut_) hold_inputs(set);
  ops_.hc_enter(streams(set), w.hc_attn, hc_options_, carried(set), w.attn_norm, mix,
                ws_.x.first(rows));
  if (observer_ != nullptr) {
    observer_->attn_in(layer, observed(set), seen_.rows(ws_.x.first(rows)));
    seen_.clear();
  }
  project(layer, set, {.query = true, .window = true, .global = owns_kv});
  if (owns_kv) compress(layer);
  choose_entries(layer, set);
  attend(layer, set, set);
  store_rings(layer, set);
  project_output(layer, set);
  ops_.hc_leave(ws_.y.first(rows), mix.post, mix.comb, config_.streams, streams(set));
}

void Forward::attention_at_cut(int32_t layer) {
  const LayerWeights& w = weights(layer);
  const bool window_of_all = options_.replay == DecoderReplay::kWindowAndGlobal;
  hold_inputs(full_);
  ops_.collapse_norm(streams(full_), carried(full_), config_.streams, w.attn_norm, config_.norm_eps,
                     ws_.x.first(full_.rows()));
  project(layer, full_, {.query = false, .window = window_of_all, .global = true});
  compress(layer);
  const bool pool_before = config_.candidate_source >= 0 && config_.candidate_source < cut_;
  if (pool_before) keep_tail_selections();
  keep_tail();

  const int64_t rows = tail_.rows();
  const RowSet& keyed = window_of_all ? full_ : tail_;  // whose window keys this step makes
  if (rows > 0) {
    const kernels::HcMix mix{ws_.pre.first(rows), ws_.post.first(rows), ws_.comb.first(rows)};
    ops_.hc_enter(streams(tail_), w.hc_attn, hc_options_, carried(tail_), w.attn_norm, mix,
                  ws_.x.first(rows));
    if (observer_ != nullptr) {
      observer_->attn_in(layer, observed(tail_), seen_.rows(ws_.x.first(rows)));
      seen_.clear();
    }
    project(layer, tail_, {.query = true, .window = !window_of_all, .global = false});
    choose_entries(layer, tail_);
    attend(layer, tail_, keyed);
    project_output(layer, tail_);
    ops_.hc_leave(ws_.y.first(rows), mix.post, mix.comb, config_.streams, streams(tail_));
  }
  store_rings(layer, keyed);
}

void Forward::hold_inputs(const RowSet& set) {
  for (const RowSegment& segment : set.segments()) {
    const SequencePlan& plan = plans_[static_cast<size_t>(segment.sequence)];
    if (!plan.hold_inputs) continue;
    const int32_t kept = std::min(segment.count, cache_.layout().held.slots);
    for (int32_t i = segment.count - kept; i < segment.count; ++i) {
      const int64_t position = segment.first_position + i;
      add_copy(ws_.streams[side_].row(segment.begin + i), cache_.held_streams(plan.slot, position),
               ws_.streams[side_].cols());
      add_copy(ws_.carried[side_].row(segment.begin + i), cache_.held_mix(plan.slot, position),
               config_.streams);
    }
  }
  copy_rows();
}

// Products of x and the window keys; then the query's second half from its latent.
void Forward::project(int32_t layer, const RowSet& set, Parts parts) {
  const LayerWeights& w = weights(layer);
  const int64_t rows = set.rows();
  std::array<Product, 5> products;
  size_t count = 0;
  const auto quantised = [&](const kernels::WeightView& weight, Rows<Bf16> y) {
    products[count++] = {.weight = weight, .quantise_input = true, .y = y, .y_f32 = {}};
  };
  const auto plain = [&](const kernels::WeightView& weight, Rows<Bf16> y, Rows<float> y_f32) {
    products[count++] = {.weight = weight, .quantise_input = false, .y = y, .y_f32 = y_f32};
  };
  const Rows<Bf16> lambda = ws_.lambda.first(rows);
  const bool indexes = parts.query && role(layer).owns_indexer;
  if (parts.query) quantised(w.wq_a, lambda);
  if (parts.window) quantised(w.wkv, ws_.kv.first(rows));
  if (parts.global && role(layer).ratio == 1) {
    plain(w.compressor.wkv, ws_.entry.first(rows), {});
  } else if (parts.global) {
    plain(w.compressor.wkv, {}, ws_.a.first(rows));
    plain(w.compressor.wgate, {}, ws_.b.first(rows));
  }
  if (indexes) plain(w.indexer.weights_proj, ws_.head_weight.first(rows), {});
  ops_.linear(ws_.x.first(rows), std::span(products).first(count));
  if (parts.window) window_keys(layer, set);
  if (!parts.query) return;

  count = 0;
  quantised(w.wq_b, ws_.q.first(rows));
  if (indexes) quantised(w.indexer.wq_b, ws_.index_query.first(rows));
  ops_.norm_linear(lambda, w.q_norm, config_.norm_eps, std::span(products).first(count));
}

void Forward::window_keys(int32_t layer, const RowSet& set) {
  const int64_t rows = set.rows();
  ops_.window_keys(ws_.kv.first(rows), weights(layer).kv_norm, config_.norm_eps, angles(layer, set),
                   ws_.keys.first(rows));
  if (observer_ != nullptr) {
    observer_->window_keys(layer, observed(set), seen_.rows(ws_.keys.first(rows)));
    seen_.clear();
  }
}

// Entries and index keys of the groups that this step's rows complete, into their pages.
void Forward::compress(int32_t layer) {
  const CompressorWeights& w = weights(layer).compressor;
  const int32_t source = cache_.source_of_layer(layer);
  const GroupSet& groups = groups_of(role(layer).ratio);
  const int64_t count = groups.count();
  gather_groups(source, groups);
  if (count == 0) {
    if (groups.ratio() > 1) store_pending(source);
    return;
  }

  const Rows<Bf16> latent = ws_.latent.first(count);
  if (groups.ratio() == 1) {
    ops_.rms_norm(latent, w.norm, config_.norm_eps, latent);
  } else {
    const int64_t members = count * groups.ratio();
    ops_.compress(ws_.group_a.first(members), ws_.group_b.first(members), groups.ratio(), w.norm,
                  config_.norm_eps, latent);
  }
  for (int64_t g = 0; g < count; ++g) {
    const auto at = static_cast<size_t>(g);
    const int32_t* page_table =
        plans_[static_cast<size_t>(groups.sequences()[at])].page_table.data();
    const int64_t entry = groups.entries()[at];
    ws_.index_destination[g] = cache_.index_records(source, page_table).record(entry);
    ws_.global_destination[g] = cache_.global_records(source, page_table).record(entry);
  }
  if (groups.ratio() > 1)
    store_pending(source);  // behind the gathering, which reads what it replaces
  const Rows<Bf16> key = ws_.index_key.first(count);
  const Product product{.weight = w.index_wk, .quantise_input = false, .y = key, .y_f32 = {}};
  ops_.linear(latent, std::span(&product, 1));
  ops_.index_keys(key, w.index_k_norm, config_.norm_eps, groups.angles(),
                  std::span(ws_.index_destination.row(0), static_cast<size_t>(count)));
  ops_.global_keys(latent, groups.angles(),
                   std::span(ws_.global_destination.row(0), static_cast<size_t>(count)));
}

// Members of each group side by side: rows of this step, and of earlier ones
// from the slot.
void Forward::gather_groups(int32_t source, const GroupSet& groups) {
  const int64_t width = config_.head_dim;
  const int32_t ratio = groups.ratio();
  for (int64_t g = 0; g < groups.count(); ++g) {
    const int32_t sequence = groups.sequences()[static_cast<size_t>(g)];
    const SequencePlan& plan = plans_[static_cast<size_t>(sequence)];
    const RowSegment& segment = *full_.segment_of(sequence);
    for (int32_t member = 0; member < ratio; ++member) {
      const int64_t position = groups.entries()[static_cast<size_t>(g)] * ratio + member;
      const int64_t row = segment.begin + (position - segment.first_position);
      if (ratio == 1) {
        add_copy(ws_.entry.row(row), ws_.latent.row(g), width);
        continue;
      }
      const bool pending = position < plan.first_position;
      const float* stored = pending ? cache_.pending_row(plan.slot, source, position) : nullptr;
      const int64_t to = g * ratio + member;
      add_copy(pending ? stored : ws_.a.row(row), ws_.group_a.row(to), width);
      add_copy(pending ? stored + width : ws_.b.row(row), ws_.group_b.row(to), width);
    }
  }
  copy_rows();
}

void Forward::store_pending(int32_t source) {
  const int64_t width = config_.head_dim;
  const int32_t slots = cache_.layout().sources[static_cast<size_t>(source)].pending_slots;
  for (const RowSegment& segment : full_.segments()) {
    const SequencePlan& plan = plans_[static_cast<size_t>(segment.sequence)];
    for (int32_t i = std::max(0, segment.count - slots); i < segment.count; ++i) {
      float* stored = cache_.pending_row(plan.slot, source, segment.first_position + i);
      add_copy(ws_.a.row(segment.begin + i), stored, width);
      add_copy(ws_.b.row(segment.begin + i), stored + width, width);
    }
  }
  copy_rows();
}

// Scores, pool and choice of an index source; other layers keep the last choice.
void Forward::choose_entries(int32_t layer, const RowSet& set) {
  const LayerRole& r = role(layer);
  if (!r.owns_indexer) return;
  const int64_t rows = set.rows();
  const int32_t source = cache_.source_of_layer(layer);
  kernels::MemoryBlock scores;  // only for an observer
  int64_t visible_max = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const auto at = static_cast<size_t>(row);
    const int64_t visible = (set.positions()[at] + 1) / r.ratio;
    visible_max = std::max(visible_max, visible);
    IndexRow& index = ws_.index_rows[row];
    index = IndexRow{};
    index.visible = visible;
    index.keys = cache_.index_records(source, page_table(set, row));
    if (r.reads_pool) {
      index.pool = ws_.pool.row(ws_.pool_of[row]);
      index.pool_count = ws_.pool_count.row(ws_.pool_of[row]);
    }
    index.selected = ws_.selected.row(row);
    index.selected_count = ws_.selected_count.row(row);
    ws_.selection_of[row] = static_cast<int32_t>(row);
    if (r.builds_pool) {
      index.built_pool = ws_.pool.row(row);
      index.built_pool_count = ws_.pool_count.row(row);
      ws_.pool_of[row] = static_cast<int32_t>(row);
    }
  }
  if (observer_ != nullptr) {
    auto block = kernels::MemoryBlock::create(
        ops_.memory(), std::max<int64_t>(1, rows * visible_max) * int64_t{sizeof(float)},
        "index scores for an observer");
    CHECK(block.has_value());  // observers are for small models
    scores = *std::move(block);
    for (int64_t row = 0; row < rows; ++row) {
      ws_.index_rows[row].scores = reinterpret_cast<float*>(scores.data()) + row * visible_max;
    }
  }
  const std::span<IndexRow> index_rows(ws_.index_rows.row(0), static_cast<size_t>(rows));
  const Rows<Bf16> queries = ws_.index_query.first(rows);
  ops_.index_queries(queries, config_.index_heads, set.compressed_angles());
  const kernels::IndexShape shape = index_shape();
  ops_.index_select(queries, ws_.head_weight.first(rows), shape, index_rows);
  if (observer_ != nullptr) {
    observer_->index(layer, observed(set), seen_.index_rows(index_rows, shape));
    seen_.clear();
  }
  use_stored_selection(set);
}

kernels::IndexShape Forward::index_shape() const {
  return {.heads = config_.index_heads,
          .head_dim = config_.index_head_dim,
          .top_k = config_.index_top_k,
          .pool_blocks = config_.candidate_source >= 0 ? config_.candidate_blocks : 0,
          .pool_block_size = config_.candidate_block_size};
}

void Forward::use_stored_selection(const RowSet& set) {
  if (inputs_ == nullptr || inputs_->selected.data == nullptr) return;
  std::vector<int32_t> selected;
  for (int64_t row = 0; row < set.rows(); ++row) {
    selected.clear();
    for (int64_t i = 0; i < inputs_->selected.cols; ++i) {
      const int32_t entry = inputs_->selected.row(row)[i];
      if (entry >= 0) selected.push_back(entry);
    }
    put_list(selected, ws_.selected.row(row), ws_.selected_count.row(row));
  }
}

void Forward::use_stored_pool(const RowSet& set) {
  if (inputs_ == nullptr || inputs_->candidates.data == nullptr) return;
  std::vector<int32_t> pool;
  for (int64_t row = 0; row < set.rows(); ++row) {
    pool.clear();
    for (int64_t entry = 0; entry < inputs_->candidates.cols; ++entry) {
      if (inputs_->candidates.row(row)[entry] == 0) continue;
      const auto block = static_cast<int32_t>(entry / config_.candidate_block_size);
      if (pool.empty() || pool.back() != block) pool.push_back(block);
    }
    put_list(pool, ws_.pool.row(row), ws_.pool_count.row(row));
  }
}

void Forward::put_list(const std::vector<int32_t>& list, int32_t* to, int32_t* count_to) {
  const auto count = static_cast<int32_t>(list.size());
  ops_.memory().write(to, list.data(), count * int64_t{sizeof(int32_t)});
  ops_.memory().write(count_to, &count, sizeof(count));
}

void Forward::attend(int32_t layer, const RowSet& set, const RowSet& chunk) {
  const bool compressed = role(layer).ratio > 0;
  const int32_t source = compressed ? cache_.source_of_layer(layer) : 0;
  const bool cut = after_cut(layer);
  for (const RowSegment& segment : set.segments()) {
    const SequencePlan& plan = plans_[static_cast<size_t>(segment.sequence)];
    const RowSegment& own = *chunk.segment_of(segment.sequence);
    const int64_t floor = cut ? std::max(plan.window_floor, plan.tail_floor) : plan.window_floor;
    AttentionRow common;
    common.ring = cache_.ring(plan.slot, layer);
    common.ring_slots = cache_.layout().rings[static_cast<size_t>(layer)].slots;
    common.chunk = ws_.keys.row(own.begin);
    common.chunk_begin = own.first_position;
    if (compressed)
      common.global =
          cache_.global_records(source, page_tables_[static_cast<size_t>(segment.sequence)]);
    for (int32_t i = 0; i < segment.count; ++i) {
      const int64_t row = segment.begin + i;
      AttentionRow& out = ws_.attention_rows[row];
      out = common;
      out.position = segment.first_position + i;
      out.window_begin = std::max(floor, out.position - config_.window + 1);
      if (compressed) {
        out.selected = ws_.selected.row(ws_.selection_of[row]);
        out.selected_count = ws_.selected_count.row(ws_.selection_of[row]);
      }
    }
  }
  const Rows<Bf16> q = ws_.q.first(set.rows());
  ops_.rope(q, config_.heads, angles(layer, set), false);
  ops_.attention(q, weights(layer).attn_sink,
                 {.heads = config_.heads,
                  .head_dim = config_.head_dim,
                  .window = config_.window,
                  .selected_max = compressed ? config_.index_top_k : 0},
                 angles(layer, set),
                 std::span(ws_.attention_rows.row(0), static_cast<size_t>(set.rows())), q);
}

void Forward::store_rings(int32_t layer, const RowSet& set) {
  const int32_t slots = cache_.layout().rings[static_cast<size_t>(layer)].slots;
  for (const RowSegment& segment : set.segments()) {
    const SequencePlan& plan = plans_[static_cast<size_t>(segment.sequence)];
    for (int32_t i = std::max(0, segment.count - slots); i < segment.count; ++i) {
      add_copy(ws_.keys.row(segment.begin + i),
               cache_.ring_record(plan.slot, layer, segment.first_position + i), ws_.keys.cols());
    }
  }
  copy_rows();
}

void Forward::project_output(int32_t layer, const RowSet& set) {
  const LayerWeights& w = weights(layer);
  const int64_t rows = set.rows();
  const Rows<Bf16> u = ws_.u.first(rows);
  const Rows<Bf16> y = ws_.y.first(rows);
  ops_.grouped_linear(ws_.q.first(rows), w.wo_a, config_.o_groups, u);
  const Product product{.weight = w.wo_b, .quantise_input = true, .y = y, .y_f32 = {}};
  ops_.linear(u, std::span(&product, 1));
  if (observer_ != nullptr) {
    observer_->attn_out(layer, observed(set), seen_.rows(y));
    seen_.clear();
  }
}

}  // namespace galley::model
