#include "verify/runner.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace galley::verify {

namespace {

// Small, so that short prompts span several pages; a multiple of every ratio.
int32_t page_tokens(const model::Config& config) {
  int32_t tokens = 1;
  for (const model::LayerRole& role : config.roles) {
    if (role.ratio > 0) tokens = std::lcm(tokens, role.ratio);
  }
  while (tokens < 16) tokens *= 2;
  return tokens;
}

}  // namespace

Result<std::unique_ptr<Runner>> Runner::create(const model::Model& model, kernels::Ops& ops,
                                               int64_t positions_max) {
  model::KvOptions kv;
  kv.page_tokens = page_tokens(model.config());
  const auto pages = static_cast<int32_t>((positions_max + kv.page_tokens - 1) / kv.page_tokens);
  std::unique_ptr<Runner> runner(new Runner(
      model, TRY(model::KvCache::create(model.config(), kv, pages, 1, ops.memory())), ops));
  runner->page_table_.resize(static_cast<size_t>(pages));
  std::iota(runner->page_table_.rbegin(), runner->page_table_.rend(), 0);
  model::StepOptions options;
  options.rows_max = static_cast<int32_t>(positions_max);
  options.logit_rows_max = options.rows_max;
  options.sequences_max = 1;
  options.positions_max = positions_max;
  options.replay = model::DecoderReplay::kOff;
  runner->step_ = TRY(model::Step::create(model, *runner->cache_, *runner->ties_, options));
  return runner;
}

model::SequencePlan Runner::plan_of(const Prompt& prompt) const {
  model::SequencePlan plan;
  plan.tokens = prompt.tokens;
  plan.page_table = page_table_;
  plan.embeddings = prompt.embeddings;
  plan.in_image = prompt.in_image;
  return plan;
}

Result<kernels::Rows<const float>> Runner::prefill(const Prompt& prompt, int64_t logits_begin,
                                                   model::StepObserver* observer) {
  sequence_ = prompt;
  model::SequencePlan plan = plan_of(prompt);
  plan.logits_begin = logits_begin;
  ties_->set_tokens(prompt.length());
  return TRY(step_->run({&plan, 1}, observer)).logits;
}

Result<kernels::Rows<const float>> Runner::decode(int32_t token) {
  model::SequencePlan plan;
  plan.kind = model::RowKind::kDecode;
  plan.first_position = sequence_.length();
  plan.tokens = {&token, 1};
  plan.look_back = sequence_.tokens;
  plan.look_back_in_image = sequence_.in_image;
  plan.page_table = page_table_;
  plan.logits_begin = 0;
  ties_->set_tokens(plan.first_position + 1);
  const kernels::Rows<const float> logits = TRY(step_->run({&plan, 1})).logits;
  sequence_.tokens.push_back(token);
  if (!sequence_.in_image.empty()) sequence_.in_image.push_back(0);
  return logits;
}

Result<void> Runner::layer_alone(const Prompt& prompt, const model::LayerInputs& inputs,
                                 kernels::Rows<kernels::Bf16> streams_out,
                                 kernels::Rows<float> pre_out, model::StepObserver* observer) {
  sequence_ = prompt;
  ties_->set_tokens(0);  // choices are judged by themselves, near-ties included
  return step_->run_layer(plan_of(prompt), inputs, streams_out, pre_out, observer);
}

std::vector<uint8_t> Runner::global_record(int32_t layer, int64_t entry) const {
  const auto records = cache_->global_records(source(layer), page_table_.data());
  return read<uint8_t>(records.record(entry), records.record_bytes);
}

std::vector<uint8_t> Runner::index_record(int32_t layer, int64_t entry) const {
  const auto records = cache_->index_records(source(layer), page_table_.data());
  return read<uint8_t>(records.record(entry), records.record_bytes);
}

std::vector<uint8_t> Runner::window_record(int32_t layer, int64_t position) const {
  return read<uint8_t>(cache_->ring_record(0, layer, position),
                       cache_->layout().window_record_bytes);
}

std::vector<float> Runner::pending(int32_t layer, int64_t position) const {
  return read<float>(cache_->pending_row(0, source(layer), position),
                     int64_t{2} * config().head_dim);
}

}  // namespace galley::verify
