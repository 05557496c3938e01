#include "tools/likelihood.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "engine/local_executor.h"
#include "engine/logit_math.h"
#include "tools/progress.h"

namespace galley::tools {
namespace {

// Logits of one step: rows enough for speed, within 64 MiB.
constexpr int64_t kLogitsMax = int64_t{16} << 20;
constexpr int64_t kRowsMax = 512;

}  // namespace

Likelihood::Likelihood(const model::Model& model, int64_t window_tokens, int32_t begin_token)
    : window_tokens_(window_tokens),
      begin_token_(begin_token),
      look_back_(std::max(model.config().engram.ngram_size_max - 1, 0)),
      vocab_size_(model.config().vocab_size),
      blocks_(engine::logit_block_count(vocab_size_)) {}

Result<std::unique_ptr<Likelihood>> Likelihood::create(const model::Model& model, kernels::Ops& ops,
                                                       int64_t window_tokens, int32_t begin_token) {
  const model::Config& config = model.config();
  if (window_tokens < 2 || window_tokens > config.positions_max) {
    return Error{ErrorCode::kInvalid, "a window of " + std::to_string(window_tokens) +
                                          " tokens, must be from 2 to the model's " +
                                          std::to_string(config.positions_max)};
  }
  const auto rows = static_cast<int32_t>(
      std::clamp<int64_t>(kLogitsMax / config.vocab_size, 1, std::min(kRowsMax, window_tokens)));
  const engine::GeneratorOptions sizes = engine::generator_options(config, 1, rows, window_tokens);
  std::unique_ptr<Likelihood> likelihood(new Likelihood(model, window_tokens, begin_token));
  model::KvOptions kv;
  kv.page_tokens = sizes.page_tokens;
  likelihood->cache_ = TRY(model::KvCache::create(config, kv, sizes.page_count, 1, ops.memory()));
  model::StepOptions options;
  options.rows_max = rows;
  options.sequences_max = 1;
  options.logit_rows_max = rows;
  options.positions_max = window_tokens;
  options.replay = model::DecoderReplay::kOff;
  options.on_upload = show_upload();
  likelihood->step_ = TRY(model::Step::create(model, *likelihood->cache_, ops, options));
  likelihood->page_table_.resize(sizes.page_count);
  std::iota(likelihood->page_table_.begin(), likelihood->page_table_.end(), 0);
  return likelihood;
}

Result<double> Likelihood::nats(std::span<const int32_t> tokens,
                                const std::function<bool(int64_t tokens_done)>& advance) {
  double total = 0;
  for (size_t begin = 0; begin < tokens.size();) {
    const size_t count = std::min(tokens.size() - begin, static_cast<size_t>(window_tokens_ - 1));
    total += TRY(window_nats(tokens.subspan(begin, count), static_cast<int64_t>(begin), advance));
    begin += count;
  }
  return total;
}

Result<double> Likelihood::window_nats(std::span<const int32_t> tokens, int64_t done_before,
                                       const std::function<bool(int64_t)>& advance) {
  input_.assign(1, begin_token_);
  input_.insert(input_.end(), tokens.begin(), tokens.end());
  const std::span<const int32_t> input = input_;
  double total = 0;
  // The last token has nothing to predict.
  for (size_t first = 0; first < tokens.size();) {
    const size_t count =
        std::min(tokens.size() - first, static_cast<size_t>(step_->options().rows_max));
    const size_t look_back = std::min(first, static_cast<size_t>(look_back_));
    model::SequencePlan plan;
    plan.first_position = static_cast<int64_t>(first);
    plan.tokens = input.subspan(first, count);
    plan.look_back = input.subspan(first - look_back, look_back);
    plan.page_table = std::span<const int32_t>(page_table_)
                          .first(cache_->layout().pages_for(plan.end_position()));
    plan.logits_begin = 0;
    const model::StepResult result = TRY(step_->run({&plan, 1}));
    for (size_t row = 0; row < count; ++row) {
      const double nats =
          row_nats({result.logits.row(static_cast<int64_t>(row)), static_cast<size_t>(vocab_size_)},
                   tokens[first + row]);
      if (!std::isfinite(nats)) {
        return Error{ErrorCode::kCorrupt,
                     "the model gave logits that are no numbers at token " +
                         std::to_string(done_before + static_cast<int64_t>(first + row))};
      }
      total += nats;
    }
    first += count;
    if (!advance(done_before + static_cast<int64_t>(first))) {
      return Error{ErrorCode::kCancelled, "interrupted"};
    }
  }
  return total;
}

double Likelihood::row_nats(std::span<const float> logits, int32_t token) {
  const engine::LogitPeak peak = engine::find_peak(logits, blocks_);
  if (!peak.valid) return NAN;
  const double total = engine::sum_exponentials(logits, peak.value, 1.0F, blocks_);
  return std::log(total) + static_cast<double>(peak.value) - static_cast<double>(logits[token]);
}

}  // namespace galley::tools
