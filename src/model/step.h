// One forward of the text backbone over the rows of one batch
// (spec/model.md 3-8).
//
// Knows plans, slots and pages, not requests, sampling or scheduling. A row's
// result depends on its sequence alone: not on its batch mates, the chunking of
// its prompt, the slot or the pages. Workspace is sized once; run() does not
// allocate, lock or log (with an observer it may). Owned by the engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"
#include "kernels/ops.h"
#include "kernels/tensor.h"
#include "model/kv_cache.h"
#include "model/model.h"
#include "model/step_observer.h"
#include "model/step_plan.h"
#include "model/weight_upload.h"

namespace galley::model {

struct StepOptions {
  int32_t rows_max = 512;  // of all sequences together
  int32_t sequences_max = 32;
  int32_t logit_rows_max = 32;
  int32_t held_rows_max = 0;  // of all sequences together; needs KvOptions::hold_inputs
  int64_t positions_max = 0;  // 0: the config's
  DecoderReplay replay = DecoderReplay::kWindowAndGlobal;
  bool capture_targets = false;  // StepResult::main_hidden
  // Experts of each layer that are computed here, from `expert_first` on; 0: all. A device's moe()
  // leaves out the rows of other ranks' experts, that of the host must not be given any; ranks
  // that compute together meet in a moe() of their own (cluster/expert_parallel.h).
  int32_t expert_first = 0;
  int32_t expert_count = 0;
  // Told while weights are copied to a device; may stop it.
  UploadProgress on_upload = {};
};

// Valid until the next run; logits are the host's.
struct StepResult {
  // [wanted rows, V], in plan order; rows that were drawn from are not filled.
  kernels::Rows<const float> logits;
  // Empty, or one a row of logits; meaningful where the row's plan has `draw`.
  std::span<const kernels::DrawnToken> drawn;
  // [tail rows, targets * d], what the draft head reads (spec/dspark.md 3); only
  // with capture_targets. Tail rows: in plan order, held rows of a sequence first.
  kernels::Rows<const kernels::Bf16> main_hidden;
  int64_t full_rows = 0;  // ran the layers up to the cut
  int64_t tail_rows = 0;  // also ran those after it
};

// One layer alone, on stored inputs (golden/README.md, step 2). Rows are those of
// the plan, which must be one sequence that starts at position 0. All values are
// given as the reference holds them; what the layer's sources would have put into
// the cache is packed into the plan's pages first.
struct LayerInputs {
  int32_t layer = 0;
  kernels::Rows<const kernels::Bf16> streams;  // [T, n d], before this layer's Engram
  kernels::Rows<const float> pre_in;           // [T, n]
  // Of the layer's KV source; ignored by a layer that owns its own. [T div r, width]
  kernels::Rows<const kernels::Bf16> compress_kv;
  kernels::Rows<const kernels::Bf16> index_key;
  // [T, any], ascending, negative = empty. Replaces the layer's own choice (the
  // observer still sees that one). Without it an index source uses its own.
  kernels::Rows<const int32_t> selected;
  // [T, T div r] pool membership of each entry; only for layers that read the pool.
  kernels::Rows<const uint8_t> candidates;
};

class Step {
 public:
  // `model`, `cache` and `ops` outlive the step.
  static Result<std::unique_ptr<Step>> create(const Model& model, KvCache& cache, kernels::Ops& ops,
                                              const StepOptions& options);
  ~Step();
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  const StepOptions& options() const;
  // Values that moved and blocks that were kept when weights were folded (placed_weights.h).
  int64_t folded_values_rounded() const;
  int64_t folded_misfits() const;
  // Bytes of the workspace.
  int64_t workspace_bytes() const;

  // kInvalid names the sequence and what is wrong with its plan; nothing was computed then.
  Result<StepResult> run(std::span<const SequencePlan> plans, StepObserver* observer = nullptr);

  // The same in two halves: between them a device computes while the caller does something else.
  // The plans' spans must live until collect() returned. A host computes in submit(). A second
  // step may be submitted before the first is collected where overlaps() of its plans holds.
  Result<void> submit(std::span<const SequencePlan> plans, StepObserver* observer = nullptr);
  Result<StepResult> collect();  // of the step submitted first

  // Whether a step of these plans can be submitted now: nothing is in flight, or one step whose
  // results this one does not need from the host, on kernels that take the next step meanwhile.
  // Tokens that are still being drawn (SequencePlan::token_row) are read where they are drawn.
  bool overlaps(std::span<const SequencePlan> plans) const;
  int32_t in_flight() const;  // steps submitted and not collected
  bool is_done() const;       // whether collect() would not wait

  // streams_out [T, n d] and pre_out [T, n] are what the layer hands on.
  Result<void> run_layer(const SequencePlan& plan, const LayerInputs& inputs,
                         kernels::Rows<kernels::Bf16> streams_out, kernels::Rows<float> pre_out,
                         StepObserver* observer = nullptr);

 private:
  class Impl;
  explicit Step(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace galley::model
