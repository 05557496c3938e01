#include "driver.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "base/check.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/fast/fast_ops.h"
#include "kernels/plain/plain_ops.h"

namespace galley::testing {

std::unique_ptr<model::Model> golden_model(const std::string& name) {
  auto opened =
      model::Model::open(std::string(GALLEY_SOURCE_DIR) + "/tests/golden/" + name + "/checkpoint");
  if (!opened) std::fprintf(stderr, "%s\n", opened.error().message.c_str());
  return std::move(opened).value();
}

std::vector<std::string> ops_names() {
  std::vector<std::string> names = {"plain"};
  for (const kernels::Isa isa : {kernels::Isa::kAvx2, kernels::Isa::kAvx512Bf16}) {
    if (kernels::machine_has(isa)) names.push_back("fast-" + std::string(kernels::isa_name(isa)));
  }
  if (kernels::cuda::make_cuda_ops(0)) names.push_back("cuda");
  return names;
}

std::unique_ptr<kernels::Ops> make_ops(const std::string& name, ThreadPool& pool) {
  if (name == "plain") return kernels::make_plain_ops(pool);
  if (name == "cuda") return kernels::cuda::make_cuda_ops(0).value();
  for (const kernels::Isa isa : {kernels::Isa::kAvx2, kernels::Isa::kAvx512Bf16}) {
    if (name == "fast-" + std::string(kernels::isa_name(isa))) {
      return kernels::make_fast_ops(pool, isa);
    }
  }
  CHECK(false);
}

Driver::Driver(const model::Model& model, const DriverOptions& options)
    : model_(model), options_(options), pool_(options.threads), ops_(make_ops(options.ops, pool_)) {
  const auto pages_each =
      static_cast<int32_t>((options.positions_max + options.page_tokens - 1) / options.page_tokens);
  const int32_t pages = pages_each * options.sequences_max;
  cache_ = model::KvCache::create(model.config(),
                                  {.page_tokens = options.page_tokens,
                                   .verify_rows_max = options.verify_rows_max,
                                   .hold_inputs = options.hold_inputs,
                                   .reuse_layers = options.reuse_layers},
                                  pages, options.sequences_max, ops_->memory())
               .value();
  step_ =
      model::Step::create(
          model, *cache_, *ops_,
          {.rows_max = options.rows_max,
           .sequences_max = options.sequences_max,
           .logit_rows_max = options.rows_max,
           .held_rows_max = options.hold_inputs ? model.config().window * options.sequences_max : 0,
           .positions_max = options.positions_max,
           .replay = options.replay,
           .capture_targets = options.capture_targets})
          .value();
  free_pages_.resize(static_cast<size_t>(pages));
  std::iota(free_pages_.begin(), free_pages_.end(), 0);
  std::mt19937 random(options.page_seed);
  std::shuffle(free_pages_.begin(), free_pages_.end(), random);
}

Sequence Driver::start(std::vector<int32_t> tokens, int32_t slot) {
  Sequence sequence;
  sequence.prompt_end = static_cast<int64_t>(tokens.size());
  sequence.tokens = std::move(tokens);
  sequence.slot = slot;
  const auto count = static_cast<size_t>(cache_->layout().pages_for(options_.positions_max));
  CHECK(free_pages_.size() >= count);
  sequence.pages.assign(free_pages_.end() - static_cast<int64_t>(count), free_pages_.end());
  free_pages_.resize(free_pages_.size() - count);
  return sequence;
}

model::SequencePlan Driver::plan(const Part& part) const {
  const Sequence& sequence = *part.sequence;
  const auto begin = static_cast<size_t>(part.begin);
  const auto count = static_cast<size_t>(part.end - part.begin);
  const std::span<const int32_t> tokens = sequence.tokens;
  model::SequencePlan plan;
  plan.slot = sequence.slot;
  plan.kind = part.kind;
  plan.first_position = part.begin;
  plan.tokens = tokens.subspan(begin, count);
  const int64_t floor = options_.replay == model::DecoderReplay::kOff
                            ? 0
                            : model::decoder_floor(options_.replay, model_.config().window,
                                                   part.window_floor, sequence.prompt_end);
  plan.tail_begin = floor;
  plan.tail_floor = floor;
  if (part.hold && part.begin < sequence.prompt_end) {
    plan.hold_inputs = true;
    if (part.end < sequence.prompt_end) {
      plan.tail_begin = model::kNoPosition;
    } else {
      plan.held_rows = static_cast<int32_t>(std::max<int64_t>(0, part.begin - floor));
    }
  }
  if (part.keep_inputs) plan.hold_inputs = true;
  if (part.held_rows > 0) plan.held_rows = part.held_rows;
  const size_t kept = std::min(begin, static_cast<size_t>(plan.held_rows) + 3);
  plan.look_back = tokens.subspan(begin - kept, kept);
  plan.page_table = sequence.pages;
  plan.window_floor = part.window_floor;
  plan.global_begin = part.global_begin;
  const int64_t first_tail = std::max<int64_t>(0, plan.tail_begin - part.begin);
  plan.logits_begin =
      part.all_logits ? first_tail : std::max(first_tail, part.end - part.begin - 1);
  if (!sequence.embeddings.empty() && part.begin < sequence.prompt_end) {
    plan.embeddings = std::span(sequence.embeddings).subspan(begin, count);
    plan.in_image = std::span(sequence.in_image).subspan(begin, count);
  }
  if (!sequence.embeddings.empty()) {
    plan.look_back_in_image = std::span(sequence.in_image).subspan(begin - kept, kept);
  }
  return plan;
}

std::vector<std::vector<Logits>> Driver::step(const std::vector<Part>& parts) {
  std::vector<model::SequencePlan> plans;
  for (const Part& part : parts) plans.push_back(plan(part));
  auto result = step_->run(plans, observer_);
  if (!result) std::fprintf(stderr, "%s\n", result.error().message.c_str());
  last_ = std::move(result).value();
  std::vector<std::vector<Logits>> out(parts.size());
  int64_t row = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto count = static_cast<int64_t>(plans[i].tokens.size());
    for (int64_t r = std::min(plans[i].logits_begin, count); r < count; ++r, ++row) {
      const float* logits = last_.logits.row(row);
      out[i].emplace_back(logits, logits + last_.logits.cols);
    }
  }
  CHECK(row == last_.logits.rows);
  return out;
}

std::vector<Logits> Driver::prefill(Sequence& sequence, const std::vector<int64_t>& ends,
                                    bool all_logits, bool hold) {
  std::vector<Logits> out;
  int64_t begin = 0;
  for (const int64_t end : ends) {
    auto rows = run({.sequence = &sequence,
                     .begin = begin,
                     .end = end,
                     .all_logits = all_logits,
                     .hold = hold});
    out.insert(out.end(), rows.begin(), rows.end());
    begin = end;
  }
  return out;
}

std::vector<uint8_t> bytes_at(Driver& driver, const void* from, int64_t count) {
  std::vector<uint8_t> bytes(static_cast<size_t>(count));
  driver.cache().memory().read(bytes.data(), from, count);
  return bytes;
}

std::vector<uint8_t> global_bytes(Driver& driver, const Sequence& sequence, int64_t positions) {
  std::vector<uint8_t> out;
  const model::KvLayout& layout = driver.cache().layout();
  for (size_t source = 0; source < layout.sources.size(); ++source) {
    const auto number = static_cast<int32_t>(source);
    for (const auto& records : {driver.cache().global_records(number, sequence.pages.data()),
                                driver.cache().index_records(number, sequence.pages.data())}) {
      for (int64_t j = 0; j < positions / layout.sources[source].ratio; ++j) {
        const std::vector<uint8_t> record =
            bytes_at(driver, records.record(j), records.record_bytes);
        out.insert(out.end(), record.begin(), record.end());
      }
    }
  }
  return out;
}

}  // namespace galley::testing
