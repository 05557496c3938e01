#include "model/step.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "model/forward.h"
#include "model/kv_records.h"
#include "model/placed_weights.h"
#include "model/plan_check.h"

namespace galley::model {
namespace {

using kernels::Bf16;
using kernels::Rows;

Result<void> check_options(const Config& config, const KvLayout& layout,
                           const StepOptions& options) {
  if (options.rows_max < 1 || options.sequences_max < 1 || options.logit_rows_max < 0 ||
      options.held_rows_max < 0 || options.positions_max < 0) {
    return Error{ErrorCode::kInvalid,
                 "a step needs room for at least one row of one sequence (rows_max " +
                     std::to_string(options.rows_max) + ", sequences_max " +
                     std::to_string(options.sequences_max) + ")"};
  }
  if (options.positions_max > config.positions_max) {
    return Error{ErrorCode::kInvalid, "a context of " + std::to_string(options.positions_max) +
                                          " positions; text_config.max_position_embeddings is " +
                                          std::to_string(config.positions_max)};
  }
  if (options.expert_first < 0 || options.expert_count < 0 ||
      options.expert_first + options.expert_count > config.routed_experts) {
    return Error{ErrorCode::kInvalid, "experts " + std::to_string(options.expert_first) + " and " +
                                          std::to_string(options.expert_count - 1) + " more of " +
                                          std::to_string(config.routed_experts)};
  }
  if (layout.held.slots == 0) return {};
  if (options.replay == DecoderReplay::kLayerWhole) {
    return Error{ErrorCode::kUnsupported,
                 "held inputs with replay reading (a): hold no inputs, or take (b) or (c)"};
  }
  if (options.held_rows_max > 0 && config.candidate_source >= 0 &&
      config.candidate_source < config.decoder_source()) {
    return Error{ErrorCode::kUnsupported, "held inputs with a candidate pool from before the cut"};
  }
  const auto& targets = config.dspark.target_layer_ids;
  const bool early = std::ranges::any_of(
      targets, [&config](int32_t layer) { return layer <= config.decoder_source(); });
  if (options.capture_targets && options.held_rows_max > 0 && early) {
    return Error{ErrorCode::kUnsupported,
                 "held inputs with a draft target at or before the cut layer"};
  }
  return {};
}

int64_t pool_blocks(const uint8_t* member, int64_t entries, int64_t block_size) {
  int64_t count = 0;
  int64_t last = -1;
  for (int64_t entry = 0; entry < entries; ++entry) {
    if (member[entry] == 0 || entry / block_size == last) continue;
    last = entry / block_size;
    ++count;
  }
  return count;
}

template <class T>
Error wrong_shape(const char* what, const Rows<T>& rows) {
  return Error{ErrorCode::kInvalid, std::string("layer inputs: ") + what + " is [" +
                                        std::to_string(rows.rows) + ", " +
                                        std::to_string(rows.cols) + "]"};
}

}  // namespace

class Step::Impl {
 public:
  Impl(const Model& model, PlacedWeights placed, KvCache& cache, kernels::Ops& ops,
       const StepOptions& options)
      : options_(options),
        config_(model.config()),
        cache_(cache),
        check_(model.config(), cache, options_),
        placed_(std::move(placed)),
        forward_(model, placed_.get(), cache, ops, options_) {}

  Result<void> pack_stored(const SequencePlan& plan, const LayerInputs& inputs) const;
  Result<void> check_inputs(const SequencePlan& plan, const LayerInputs& inputs) const;

  const StepOptions options_;
  const Config& config_;
  KvCache& cache_;
  PlanCheck check_;
  PlacedWeights placed_;
  Forward forward_;
};

Result<std::unique_ptr<Step>> Step::create(const Model& model, KvCache& cache, kernels::Ops& ops,
                                           const StepOptions& options) {
  TRY(check_options(model.config(), cache.layout(), options));
  PlacedWeights placed = TRY(PlacedWeights::create(
      model, ops, {options.expert_first, options.expert_count}, options.on_upload));
  auto impl = std::make_unique<Impl>(model, std::move(placed), cache, ops, options);
  TRY(impl->forward_.status());
  TRY(impl->forward_.reserve());
  return std::unique_ptr<Step>(new Step(std::move(impl)));
}

Step::Step(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Step::~Step() = default;

const StepOptions& Step::options() const { return impl_->options_; }
int64_t Step::folded_values_rounded() const { return impl_->placed_.rounded(); }
int64_t Step::folded_misfits() const { return impl_->placed_.misfits(); }
int64_t Step::workspace_bytes() const { return impl_->forward_.workspace_bytes(); }

Result<StepResult> Step::run(std::span<const SequencePlan> plans, StepObserver* observer) {
  TRY(submit(plans, observer));
  return collect();
}

Result<void> Step::submit(std::span<const SequencePlan> plans, StepObserver* observer) {
  TRY(impl_->check_.check(plans));
  if (!impl_->forward_.overlaps(plans) || (observer != nullptr && in_flight() > 0)) {
    return Error{ErrorCode::kInvalid,
                 "the plan needs what the step before it computes, which is not collected"};
  }
  impl_->forward_.submit(plans, observer);
  return {};
}

Result<StepResult> Step::collect() { return impl_->forward_.collect(); }
bool Step::overlaps(std::span<const SequencePlan> plans) const {
  return impl_->forward_.overlaps(plans);
}
int32_t Step::in_flight() const { return impl_->forward_.in_flight(); }
bool Step::is_done() const { return impl_->forward_.is_done(); }

Result<void> Step::run_layer(const SequencePlan& plan, const LayerInputs& inputs,
                             Rows<Bf16> streams_out, Rows<float> pre_out, StepObserver* observer) {
  TRY(impl_->check_.check(std::span(&plan, 1)));
  TRY(impl_->check_inputs(plan, inputs));
  TRY(impl_->pack_stored(plan, inputs));
  return impl_->forward_.run_layer(plan, inputs, streams_out, pre_out, observer);
}

Result<void> Step::Impl::check_inputs(const SequencePlan& plan, const LayerInputs& inputs) const {
  if (inputs.layer < 0 || inputs.layer >= config_.layers) {
    return Error{ErrorCode::kInvalid, "layer inputs: layer " + std::to_string(inputs.layer) +
                                          " of " + std::to_string(config_.layers)};
  }
  if (plan.first_position != 0) {
    return Error{ErrorCode::kInvalid, "layer inputs: the plan must start at position 0"};
  }
  const auto rows = static_cast<int64_t>(plan.tokens.size());
  const LayerRole& role = config_.roles[static_cast<size_t>(inputs.layer)];
  if (inputs.streams.rows != rows ||
      inputs.streams.cols != int64_t{config_.streams} * config_.hidden) {
    return wrong_shape("streams", inputs.streams);
  }
  if (inputs.pre_in.rows != rows || inputs.pre_in.cols != config_.streams) {
    return wrong_shape("pre_in", inputs.pre_in);
  }
  if (role.ratio == 0) return {};
  if (inputs.selected.data == nullptr && !role.owns_indexer) {
    return Error{ErrorCode::kInvalid, "layer inputs: layer " + std::to_string(inputs.layer) +
                                          " takes its selection from another: give it"};
  }
  if (inputs.selected.data != nullptr) {
    if (inputs.selected.rows != rows || inputs.selected.cols > config_.index_top_k) {
      return wrong_shape("selected", inputs.selected);
    }
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < inputs.selected.cols; ++i) {
        if (inputs.selected.row(row)[i] >= (row + 1) / role.ratio) {
          return Error{ErrorCode::kInvalid, "layer inputs: row " + std::to_string(row) +
                                                " selects an entry that it cannot see"};
        }
      }
    }
  }
  if (role.reads_pool && inputs.candidates.data == nullptr) {
    return Error{ErrorCode::kInvalid, "layer inputs: layer " + std::to_string(inputs.layer) +
                                          " chooses inside the candidate pool: give it"};
  }
  if (inputs.candidates.data != nullptr && inputs.candidates.rows != rows) {
    return wrong_shape("candidates", inputs.candidates);
  }
  for (int64_t row = 0; inputs.candidates.data != nullptr && row < rows; ++row) {
    if (pool_blocks(inputs.candidates.row(row), inputs.candidates.cols,
                    config_.candidate_block_size) > config_.candidate_blocks) {
      return Error{ErrorCode::kInvalid,
                   "layer inputs: row " + std::to_string(row) + " has more than " +
                       std::to_string(config_.candidate_blocks) + " candidate blocks"};
    }
  }
  return {};
}

Result<void> Step::Impl::pack_stored(const SequencePlan& plan, const LayerInputs& inputs) const {
  const LayerRole& role = config_.roles[static_cast<size_t>(inputs.layer)];
  if (role.ratio == 0 || role.owns_kv) return {};
  const int64_t entries = static_cast<int64_t>(plan.tokens.size()) / role.ratio;
  if (inputs.compress_kv.rows < entries || inputs.compress_kv.cols != config_.head_dim) {
    return wrong_shape("compress_kv", inputs.compress_kv);
  }
  const bool keys = role.owns_indexer;
  if (keys &&
      (inputs.index_key.rows < entries || inputs.index_key.cols != config_.index_head_dim)) {
    return wrong_shape("index_key", inputs.index_key);
  }
  const int32_t source = cache_.source_of_layer(inputs.layer);
  const auto globals = cache_.global_records(source, plan.page_table.data());
  const auto index = cache_.index_records(source, plan.page_table.data());
  std::vector<uint8_t> record(static_cast<size_t>(
      std::max(cache_.layout().global_record_bytes, cache_.layout().index_record_bytes)));
  for (int64_t entry = 0; entry < entries; ++entry) {
    TRY(pack_record(RecordKind::kGlobal,
                    {inputs.compress_kv.row(entry), static_cast<size_t>(config_.head_dim)},
                    record.data()));
    cache_.memory().write(globals.record(entry), record.data(), globals.record_bytes);
    if (!keys) continue;
    TRY(pack_record(RecordKind::kIndex,
                    {inputs.index_key.row(entry), static_cast<size_t>(config_.index_head_dim)},
                    record.data()));
    cache_.memory().write(index.record(entry), record.data(), index.record_bytes);
  }
  return {};
}

}  // namespace galley::model
