// The layers of one step, in order, over its rows (spec/model.md 3-8).
//
// The inside of model/step.h: takes plans that PlanCheck accepted. Attention
// lives in forward_attention.cc, everything else in forward.cc.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops.h"
#include "model/kv_cache.h"
#include "model/model.h"
#include "model/row_set.h"
#include "model/step.h"
#include "model/step_observer.h"
#include "model/step_plan.h"
#include "model/step_workspace.h"

namespace galley::model {

class Forward {
 public:
  Forward(const Model& model, KvCache& cache, kernels::Ops& ops, const StepOptions& options);

  StepResult run(std::span<const SequencePlan> plans, StepObserver* observer);
  // Stored entries of the layer's source are in the pages already.
  void run_layer(const SequencePlan& plan, const LayerInputs& inputs,
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

  void begin(std::span<const SequencePlan> plans, StepObserver* observer);
  void fill_engram_ids(int32_t index, const RowSet& set);
  void embed();
  StepResult head(const RowSet& set);

  // One layer on all rows of a set.
  void engram(int32_t layer, const RowSet& set);
  void capture(int32_t layer, const RowSet& set);
  void attention(int32_t layer, const RowSet& set);
  void experts(int32_t layer, const RowSet& set);

  // The cut layer's attention when it trims: readings (b) and (c).
  void attention_at_cut(int32_t layer);
  // Streams, mix and captured rows of the tail set.
  void keep_tail();
  // Selections and pools that layers after the cut still read; before keep_tail.
  void keep_tail_selections();

  void project(int32_t layer, const RowSet& set, Parts parts);
  void window_keys(int32_t layer, const RowSet& set);
  void compress(int32_t layer);
  void gather_groups(int32_t source, const GroupSet& groups);
  void store_pending(int32_t source);
  void choose_entries(int32_t layer, const RowSet& set);
  // Of run_layer: what the reference chose, where it was given.
  void use_stored_selection(const RowSet& set);
  void use_stored_pool(const RowSet& set);
  void attend(int32_t layer, const RowSet& set, const RowSet& chunk);
  void store_rings(int32_t layer, const RowSet& set);
  void project_output(int32_t layer, const RowSet& set);
  void hold_inputs(const RowSet& set);

  const LayerRole& role(int32_t layer) const { return config_.roles[static_cast<size_t>(layer)]; }
  const LayerWeights& weights(int32_t layer) const {
    return model_.weights().layers[static_cast<size_t>(layer)];
  }
  const GroupSet& groups_of(int32_t ratio) const;
  kernels::RopeAngles angles(int32_t layer, const RowSet& set) const {
    return role(layer).ratio == 0 ? set.window_angles() : set.compressed_angles();
  }
  bool after_cut(int32_t layer) const;  // tail_floor holds there
  ObservedRows observed(const RowSet& set) const { return {set.positions(), set.sequences()}; }

  Rows<Bf16> streams(const RowSet& set) const { return ws_.streams[side_].first(set.rows()); }
  Rows<float> carried(const RowSet& set) const { return ws_.carried[side_].first(set.rows()); }

  const Model& model_;
  const Config& config_;
  KvCache& cache_;
  kernels::Ops& ops_;
  const StepOptions& options_;
  const int32_t cut_;  // layer, or the number of layers when nothing can be cut
  kernels::HcOptions hc_options_;
  RopeTables rope_;
  std::vector<kernels::MoeWeights> moe_;  // [layers]

  StepWorkspace ws_;
  RowSet full_;
  RowSet tail_;
  std::vector<GroupSet> groups_;  // one a ratio
  int32_t side_ = 0;              // which of the doubled buffers holds the streams
  bool trims_ = false;            // tail_ differs from full_

  // Of the step in progress.
  std::span<const SequencePlan> plans_;
  StepObserver* observer_ = nullptr;
  const LayerInputs* inputs_ = nullptr;  // only in run_layer
};

}  // namespace galley::model
