// The layers of one step, in order, over its rows (spec/model.md 3-8).
//
// The inside of model/step.h: takes plans that PlanCheck accepted. Attention
// lives in forward_attention.cc, everything else in forward.cc.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops.h"
#include "model/dead_rows.h"
#include "model/kv_cache.h"
#include "model/model.h"
#include "model/row_set.h"
#include "model/seen_rows.h"
#include "model/step.h"
#include "model/step_observer.h"
#include "model/step_plan.h"
#include "model/step_workspace.h"

namespace galley::model {

class Forward {
 public:
  // `weights` are the model's, placed where the kernels read them.
  Forward(const Model& model, const ModelWeights& weights, KvCache& cache, kernels::Ops& ops,
          const StepOptions& options);

  // Whether the workspace has its memory; otherwise nothing else may be called.
  Result<void> status() const;
  Result<void> reserve();

  // Enqueues the step; its result is there when collect() returned. Two may be in flight
  // (Step::overlaps).
  void submit(std::span<const SequencePlan> plans, StepObserver* observer);
  Result<StepResult> collect();
  bool overlaps(std::span<const SequencePlan> plans) const;
  int32_t in_flight() const { return in_flight_; }
  bool is_done() const { return in_flight_ == 0 || ops_.is_done(); }
  // Stored entries of the layer's source are in the pages already.
  Result<void> run_layer(const SequencePlan& plan, const LayerInputs& inputs,
                         kernels::Rows<kernels::Bf16> streams_out, kernels::Rows<float> pre_out,
                         StepObserver* observer);

  int64_t workspace_bytes() const { return ws_.bytes(); }

 private:
  using Bf16 = kernels::Bf16;
  template <class T>
  using Rows = kernels::Rows<T>;

  // What project() computes of a layer's input.
  struct Parts {
    bool query = false;   // lambda, and an index source's head weights
    bool window = false;  // kv
    bool global = false;  // the compressor's inputs
  };

  // What comes of a step, on the host once it is finished. Two, as steps in flight are.
  struct Flight {
    StepResult result;
    std::vector<bool> draws;  // by row of logits; none: all rows' logits go to the host
    bool fetches_logits = false;
  };

  void begin(std::span<const SequencePlan> plans, StepObserver* observer);
  Flight& newest() { return flights_[side_of_flight_]; }
  Flight& oldest() { return flights_[in_flight_ == 2 ? 1 - side_of_flight_ : side_of_flight_]; }
  const Flight& newest() const { return flights_[side_of_flight_]; }

  // Of the rows whose tokens are known, or of the others.
  void fill_engram_ids(int32_t index, bool unknown);
  // Of the newest step, whose unknown tokens are these.
  void give_tokens(std::span<const kernels::DrawnToken> drawn);
  void embed();
  // Tokens of the rows of logits whose plans want them drawn.
  void draw(Rows<const float> logits);
  // Logits of the other rows to the host, and the drawn tokens.
  void fetch_results();
  // The wanted rows' logits; their number.
  int64_t head(const RowSet& set);

  // One layer on all rows of a set.
  void engram(int32_t layer, const RowSet& set);
  void capture(int32_t layer, const RowSet& set);
  void attention(int32_t layer, const RowSet& set);
  void experts(int32_t layer, const RowSet& set);
  // A rank without rows still computes for the others (Ops::joins_ranks).
  void join_experts(int32_t layer);

  // The cut layer's attention when it trims: readings (b) and (c).
  void attention_at_cut(int32_t layer);
  // Streams, mix and captured rows of the tail set.
  void keep_tail();
  // The tail's rows read the selections and pools of the rows they were; before keep_tail.
  void keep_tail_selections();

  void project(int32_t layer, const RowSet& set, Parts parts);
  void window_keys(int32_t layer, const RowSet& set);
  void compress(int32_t layer);
  void gather_groups(int32_t source, const GroupSet& groups);
  void store_pending(int32_t source);
  void choose_entries(int32_t layer, const RowSet& set);
  kernels::IndexShape index_shape() const;
  // Of run_layer: what the reference chose, where it was given.
  void use_stored_selection(const RowSet& set);
  void use_stored_pool(const RowSet& set);
  void put_list(const std::vector<int32_t>& list, int32_t* to, int32_t* count_to);
  void attend(int32_t layer, const RowSet& set, const RowSet& chunk);
  void store_rings(int32_t layer, const RowSet& set);
  void project_output(int32_t layer, const RowSet& set);
  void hold_inputs(const RowSet& set);

  const LayerRole& role(int32_t layer) const { return config_.roles[static_cast<size_t>(layer)]; }
  const LayerWeights& weights(int32_t layer) const {
    return weights_.layers[static_cast<size_t>(layer)];
  }
  const GroupSet& groups_of(int32_t ratio) const;
  // Of the row's sequence, where the kernels read it.
  const int32_t* page_table(const RowSet& set, int64_t row) const {
    return page_tables_[static_cast<size_t>(set.sequences()[static_cast<size_t>(row)])];
  }
  kernels::RopeAngles angles(int32_t layer, const RowSet& set) const {
    return role(layer).ratio == 0 ? set.window_angles() : set.compressed_angles();
  }
  bool after_cut(int32_t layer) const;  // tail_floor holds there
  ObservedRows observed(const RowSet& set) const { return {set.positions(), set.sequences()}; }

  // Row `from` of `source` to row `to` of `target`, when copy_rows() is called next.
  template <class T>
  void add_copy(const T* from, T* to, int64_t count) {
    copies_.push_back({from, to, count * static_cast<int64_t>(sizeof(T))});
  }
  void copy_rows();
  // To the kernels' memory, or from it to the host's.
  template <class T>
  void write_rows(Rows<const T> host, Rows<T> rows);
  template <class T>
  void read_rows(Rows<const T> rows, Rows<T> host);

  Rows<Bf16> streams(const RowSet& set) const { return ws_.streams[side_].first(set.rows()); }
  Rows<float> carried(const RowSet& set) const { return ws_.carried[side_].first(set.rows()); }

  const Model& model_;
  const ModelWeights& weights_;  // where the kernels read them
  const Config& config_;
  KvCache& cache_;
  kernels::Ops& ops_;
  const StepOptions& options_;
  const int32_t cut_;  // layer, or the number of layers when nothing can be cut
  kernels::HcOptions hc_options_;
  RopeTables rope_;
  std::vector<kernels::MoeWeights> moe_;      // [layers]
  std::vector<bool> table_on_disk_;           // [Engram layers]
  std::vector<kernels::EngramTable> tables_;  // [Engram layers]

  BufferSource device_source_;
  BufferSource host_source_;
  StepWorkspace ws_;
  Result<kernels::MemoryBlock> logits_host_;  // empty where the host can read the workspace
  Result<kernels::MemoryBlock> drawn_host_;   // DrawnToken [2][logit_rows_max]
  std::vector<kernels::DrawRequest> draws_;   // a row of logits each, if any is drawn from
  Flight flights_[2];
  size_t side_of_flight_ = 0;  // of the newest
  int32_t in_flight_ = 0;
  DeadRows dead_rows_;
  RowSet full_;
  RowSet tail_;
  std::vector<GroupSet> groups_;             // one a ratio
  int32_t side_ = 0;                         // which of the doubled buffers holds the streams
  bool trims_ = false;                       // tail_ differs from full_
  std::vector<kernels::RowCopy> copies_;     // collected for the next copy_rows()
  std::vector<const int32_t*> page_tables_;  // [sequences], staged
  std::vector<float> start_mix_;             // (1, 0, 0, 0)
  SeenRows seen_;

  // Of the step in progress.
  std::span<const SequencePlan> plans_;
  std::vector<int32_t> drawn_tokens_;  // [sequences], where plans have them unknown
  bool awaits_tokens_ = false;
  StepObserver* observer_ = nullptr;
  const LayerInputs* inputs_ = nullptr;  // only in run_layer
};

}  // namespace galley::model
