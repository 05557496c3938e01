// One sequence at a time through the engine, as the golden cases were made:
// whole prompts from position 0 in one piece, then single tokens, decoder replay off.
// Ties between equal index scores go as in the reference's run (reference_ties.h).
//
// Owns cache, step and one slot. Pages are used in reverse order, so that a
// mix-up of pages and positions shows. Knows nothing of expected values.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "kernels/ops.h"
#include "model/kv_cache.h"
#include "model/model.h"
#include "model/step.h"
#include "verify/reference_ties.h"

namespace galley::verify {

struct Prompt {
  std::vector<int32_t> tokens;
  // Both empty for text, else one entry a token; a null embedding means the token's own.
  std::vector<uint8_t> in_image;
  std::vector<const kernels::Bf16*> embeddings;

  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
};

class Runner {
 public:
  // `positions_max`: prompt and continuation of the longest case.
  static Result<std::unique_ptr<Runner>> create(const model::Model& model, kernels::Ops& ops,
                                                int64_t positions_max);

  // Starts a new sequence. Logits of the rows from `logits_begin` on; valid until the next run.
  Result<kernels::Rows<const float>> prefill(const Prompt& prompt, int64_t logits_begin,
                                             model::StepObserver* observer = nullptr);
  // The next token of that sequence; its one row of logits.
  Result<kernels::Rows<const float>> decode(int32_t token);

  // One layer on stored inputs, as a sequence of its own.
  Result<void> layer_alone(const Prompt& prompt, const model::LayerInputs& inputs,
                           kernels::Rows<kernels::Bf16> streams_out, kernels::Rows<float> pre_out,
                           model::StepObserver* observer);

  // What the present sequence has in the cache. `layer` owns its compressed KV.
  std::vector<uint8_t> global_record(int32_t layer, int64_t entry) const;
  std::vector<uint8_t> index_record(int32_t layer, int64_t entry) const;
  std::vector<uint8_t> window_record(int32_t layer, int64_t position) const;
  std::vector<float> pending(int32_t layer, int64_t position) const;  // (a, b)

  const model::Config& config() const { return model_->config(); }

 private:
  Runner(const model::Model& model, std::unique_ptr<model::KvCache> cache, kernels::Ops& ops)
      : model_(&model),
        cache_(std::move(cache)),
        ties_(std::make_unique<ReferenceTies>(ops, cache_->layout().page_tokens)) {}
  model::SequencePlan plan_of(const Prompt& prompt) const;
  // `count` values of the cache, wherever it lies.
  template <class T>
  std::vector<T> read(const T* from, int64_t count) const {
    std::vector<T> values(static_cast<size_t>(count));
    cache_->memory().read(values.data(), from, count * static_cast<int64_t>(sizeof(T)));
    return values;
  }
  int32_t source(int32_t layer) const { return cache_->source_of_layer(layer); }

  const model::Model* model_;
  std::unique_ptr<model::KvCache> cache_;
  std::unique_ptr<ReferenceTies> ties_;
  std::unique_ptr<model::Step> step_;
  std::vector<int32_t> page_table_;
  Prompt sequence_;  // what the slot holds
};

}  // namespace galley::verify
