#include "engine/local_executor.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "base/check.h"

namespace galley::engine {

Result<std::unique_ptr<LocalExecutor>> LocalExecutor::create(const model::Model& model,
                                                             kernels::Ops& ops,
                                                             const GeneratorOptions& options) {
  model::KvOptions kv;
  kv.page_tokens = options.page_tokens;
  std::unique_ptr<model::KvCache> cache =
      TRY(model::KvCache::create(model.config(), kv, options.page_count, options.sequences_max));
  model::StepOptions step_options;
  step_options.rows_max = options.rows_max;
  step_options.sequences_max = options.sequences_max;
  step_options.logit_rows_max = options.sequences_max;
  step_options.positions_max = options.positions_max;
  step_options.replay = options.replay;
  std::unique_ptr<model::Step> step = TRY(model::Step::create(model, *cache, ops, step_options));
  return std::unique_ptr<LocalExecutor>(
      new LocalExecutor(options, std::move(cache), std::move(step)));
}

LocalExecutor::LocalExecutor(const GeneratorOptions& options, std::unique_ptr<model::KvCache> cache,
                             std::unique_ptr<model::Step> step)
    : vocab_size_(options.vocab_size),
      cache_(std::move(cache)),
      step_(std::move(step)),
      samplers_(options.sequences_max),
      scratch_(options.vocab_size) {
  rows_.reserve(options.sequences_max);
  allowed_.reserve(options.sequences_max);
  sampled_.reserve(options.sequences_max);
}

void LocalExecutor::start(const SequenceStart& start) {
  std::optional<Sampler>& sampler = samplers_[start.slot];
  sampler.emplace(*start.sampling, vocab_size_);
  sampler->observe_prompt(start.prompt);
  sampler->observe_output(start.output);
}

Result<void> LocalExecutor::submit(const StepPlan& plan) {
  CHECK(plan_.step_id == 0);
  plan_ = plan;
  rows_.clear();
  allowed_.assign(plan.sequences.size(), {});
  for (const PlannedSequence& planned : plan.sequences) rows_.push_back(planned.rows);
  return {};
}

void LocalExecutor::mask(uint64_t step_id, int32_t sequence, std::span<const uint64_t> allowed) {
  if (step_id == plan_.step_id) allowed_[sequence] = allowed;
}

Result<StepResult> LocalExecutor::collect() {
  CHECK(plan_.step_id != 0);
  const StepPlan plan = std::exchange(plan_, {});
  const model::StepResult computed = TRY(step_->run(rows_));
  sampled_.clear();
  int64_t logit_row = 0;
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const PlannedSequence& planned = plan.sequences[i];
    if (!planned.samples) continue;
    Sampler& sampler = *samplers_[planned.rows.slot];
    const std::span<const float> logits(computed.logits.row(logit_row++),
                                        static_cast<size_t>(vocab_size_));
    SampledSequence result;
    result.id = planned.id;
    result.slot = planned.rows.slot;
    result.sampled = sampler.sample(logits, planned.rows.end_position(), scratch_, allowed_[i]);
    result.top_logprobs = sampler.top_logprobs();
    sampled_.push_back(result);
  }
  return StepResult{plan.step_id, sampled_};
}

GeneratorOptions generator_options(const model::Config& config, int32_t sequences_max,
                                   int32_t rows_max, int64_t positions_max) {
  GeneratorOptions options;
  options.sequences_max = sequences_max;
  options.rows_max = std::max(rows_max, sequences_max);
  options.positions_max = std::min(positions_max, config.positions_max);
  options.vocab_size = config.vocab_size;
  options.window = config.window;
  options.layers = config.layers;
  options.decoder_source = config.decoder_source();
  options.look_back = std::max(config.engram.ngram_size_max - 1, 0);
  // 128 tokens as released; less for a small window, in whole groups of every ratio.
  int32_t group = 1;
  for (const model::LayerRole& role : config.roles) {
    if (role.ratio > 0) group = std::lcm(group, role.ratio);
  }
  const int32_t wanted = std::min(128, std::max(16, config.window));
  options.page_tokens = (wanted + group - 1) / group * group;
  const int64_t pages = (options.positions_max + options.page_tokens - 1) / options.page_tokens;
  options.page_count = static_cast<int32_t>(pages * sequences_max);
  return options;
}

}  // namespace galley::engine
