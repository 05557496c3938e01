// An Executor on this machine's CPU: model::Step, its cache, and the samplers.
//
// Synchronous: collect() computes. Owned by the engine thread.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/result.h"
#include "engine/executor.h"
#include "engine/generator.h"
#include "kernels/ops.h"
#include "model/kv_cache.h"
#include "model/model.h"
#include "model/step.h"

namespace galley::engine {

class LocalExecutor final : public Executor {
 public:
  // Sized for a generator with these options. `model` and `ops` outlive it.
  static Result<std::unique_ptr<LocalExecutor>> create(const model::Model& model, kernels::Ops& ops,
                                                       const GeneratorOptions& options);

  void start(const SequenceStart& start) override;
  Result<void> submit(const StepPlan& plan) override;
  void mask(uint64_t step_id, int32_t sequence, std::span<const uint64_t> allowed) override;
  Result<StepResult> collect() override;

 private:
  LocalExecutor(const GeneratorOptions& options, std::unique_ptr<model::KvCache> cache,
                std::unique_ptr<model::Step> step);

  int32_t vocab_size_;
  std::unique_ptr<model::KvCache> cache_;
  std::unique_ptr<model::Step> step_;
  std::vector<std::optional<Sampler>> samplers_;  // [slots]
  SamplerScratch scratch_;

  StepPlan plan_;  // submitted, not yet collected; step_id 0 = none
  std::vector<model::SequencePlan> rows_;
  std::vector<std::span<const uint64_t>> allowed_;  // by plan entry
  std::vector<SampledSequence> sampled_;
};

// What a generator over this model is built with: the page size that suits its window, and
// pages for `sequences_max` sequences of `positions_max` tokens.
GeneratorOptions generator_options(const model::Config& config, int32_t sequences_max,
                                   int32_t rows_max, int64_t positions_max);

}  // namespace galley::engine
