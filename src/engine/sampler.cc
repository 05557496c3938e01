#include "engine/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "engine/logit_math.h"

namespace galley::engine {
namespace {

// Temperatures below this are the limit 0: dividing by them would overflow.
constexpr float kTemperatureMin = 1e-5F;

// Better first: the larger logit, then the lower id.
constexpr auto kBetter = [](const auto& a, const auto& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
};

// The k-th largest block maximum: at least k logits are not below it.
float kth_block_max(std::span<const float> block_max, int64_t k, std::vector<float>& order) {
  if (static_cast<int64_t>(block_max.size()) < k) return -INFINITY;
  order.assign(block_max.begin(), block_max.end());
  std::nth_element(order.begin(), order.begin() + (k - 1), order.end(), std::greater<>());
  return order[k - 1];
}

// Calls take(block, begin, end) for every block with a logit not below `threshold`.
template <class Take>
void scan_blocks(int64_t logit_count, std::span<const float> block_max, float threshold,
                 Take&& take) {
  for (int64_t block = 0; block < static_cast<int64_t>(block_max.size()); ++block) {
    if (block_max[block] < threshold) continue;
    take(block, block * kLogitBlock, std::min((block + 1) * kLogitBlock, logit_count));
  }
}

int32_t first_of_value(std::span<const float> logits, std::span<const float> block_max,
                       float peak) {
  int32_t found = -1;
  const auto block = std::find(block_max.begin(), block_max.end(), peak) - block_max.begin();
  for (int64_t i = block * kLogitBlock; found < 0; ++i) {
    if (logits[i] == peak) found = static_cast<int32_t>(i);
  }
  return found;
}

void apply_mask(std::span<float> logits, std::span<const uint64_t> allowed) {
  for (size_t i = 0; i < logits.size(); ++i) {
    if ((allowed[i / 64] >> (i % 64) & 1) == 0) logits[i] = -INFINITY;
  }
}

// The token whose share of the running sum of weights holds unit * total.
int32_t draw_from_all(std::span<const float> logits, std::span<const float> block_sum, float peak,
                      float scale, double total, double unit) {
  double left = unit * total;
  int64_t chosen_block = 0;
  for (int64_t block = 0; block < static_cast<int64_t>(block_sum.size()); ++block) {
    if (block_sum[block] <= 0) continue;
    chosen_block = block;  // rounding may leave the target past the end: the last one used
    if (left < block_sum[block]) break;
    left -= block_sum[block];
  }
  std::array<float, kLogitBlock> weights;
  block_exponentials(logits, chosen_block, peak, scale, weights);
  int64_t chosen = 0;
  for (int64_t i = 0; i < kLogitBlock; ++i) {
    if (weights[i] <= 0) continue;
    chosen = i;
    if (left < weights[i]) break;
    left -= weights[i];
  }
  return static_cast<int32_t>(chosen_block * kLogitBlock + chosen);
}

// Keeps the fewest best whose weights reach `wanted`. The best of real rows hold nearly all of
// it, so they are put in order a few at a time.
template <class Candidate>
void keep_nucleus(std::vector<Candidate>& kept, double wanted) {
  double reached = 0;
  size_t count = 0;
  for (size_t ordered = 0, next = 64; reached < wanted && ordered < kept.size(); next *= 4) {
    next = std::min(next, kept.size());
    const auto begin = kept.begin() + static_cast<std::ptrdiff_t>(ordered);
    const auto end = kept.begin() + static_cast<std::ptrdiff_t>(next);
    if (end != kept.end()) std::nth_element(begin, end - 1, kept.end(), kBetter);
    std::sort(begin, end, kBetter);
    ordered = next;
    while (count < ordered && reached < wanted) reached += kept[count++].weight;
  }
  kept.resize(std::max<size_t>(count, 1));
}

}  // namespace

SamplerScratch::SamplerScratch(int32_t vocab_size)
    : vocab_size_(vocab_size),
      adjusted_(vocab_size),
      block_max_(logit_block_count(vocab_size)),
      block_sum_(logit_block_count(vocab_size)) {
  order_.reserve(block_max_.size());
  candidates_.reserve(vocab_size);
}

Sampler::Sampler(SamplingOptions options, int32_t vocab_size) : options_(std::move(options)) {
  top_logprobs_.reserve(options_.top_logprobs);
  if (options_.has_penalties()) {
    seen_index_.resize(vocab_size);
    seen_.reserve(vocab_size);
  }
}

void Sampler::observe_prompt(std::span<const int32_t> tokens) {
  if (seen_index_.empty()) return;
  for (const int32_t token : tokens) {
    if (seen_index_[token] != 0) continue;
    seen_.push_back({token, 0});
    seen_index_[token] = static_cast<int32_t>(seen_.size());
  }
}

void Sampler::observe_output(std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) note_output(token);
}

void Sampler::note_output(int32_t token) {
  if (seen_index_.empty()) return;
  observe_prompt({&token, 1});
  ++seen_[seen_index_[token] - 1].output_count;
}

void Sampler::adjust(std::span<float> logits, int64_t position) const {
  for (const Seen& seen : seen_) {
    float& logit = logits[seen.token];
    if (options_.repetition_penalty != 1.0F) {
      logit = logit > 0 ? logit / options_.repetition_penalty : logit * options_.repetition_penalty;
    }
    if (seen.output_count > 0) {
      logit -= options_.frequency_penalty * static_cast<float>(seen.output_count) +
               options_.presence_penalty;
    }
  }
  for (const auto& [token, bias] : options_.logit_bias) logits[token] += bias;
  if (!holds_back(position)) return;
  for (const int32_t token : options_.held_back) logits[token] = -INFINITY;
}

std::optional<kernels::DrawRequest> Sampler::plain_draw(int64_t position) const {
  if (options_.has_penalties() || adjusts(position) || options_.logprob ||
      options_.top_logprobs > 0) {
    return std::nullopt;
  }
  return kernels::DrawRequest{.temperature = options_.temperature,
                              .seed = options_.seed,
                              .stream = options_.stream,
                              .position = position,
                              .top_k = options_.top_k,
                              .top_p = options_.top_p,
                              .min_p = options_.min_p};
}

Sampled Sampler::sample(std::span<const float> logits, int64_t position, SamplerScratch& scratch,
                        std::span<const uint64_t> allowed) {
  CHECK(logits.size() == static_cast<size_t>(scratch.vocab_size_));
  const bool wants_logprob = options_.logprob || options_.top_logprobs > 0;
  LogitPeak peak = find_peak(logits, scratch.block_max_);
  if (!peak.valid) return {};
  const float log_total = wants_logprob ? report_logprobs(logits, peak.value, scratch) : 0.0F;
  std::span<const float> row = logits;
  if (adjusts(position) || !allowed.empty()) {
    std::copy(logits.begin(), logits.end(), scratch.adjusted_.begin());
    adjust(scratch.adjusted_, position);
    if (!allowed.empty()) apply_mask(scratch.adjusted_, allowed);
    row = scratch.adjusted_;
    peak = find_peak(row, scratch.block_max_);
    if (!peak.valid) return {};
  }
  Sampled result;
  result.valid = true;
  result.token = options_.temperature < kTemperatureMin
                     ? first_of_value(row, scratch.block_max_, peak.value)
                     : draw(row, peak.value, position, scratch);
  if (wants_logprob) result.logprob = logits[result.token] - log_total;
  note_output(result.token);
  return result;
}

float Sampler::report_logprobs(std::span<const float> logits, float peak, SamplerScratch& scratch) {
  const double total = sum_exponentials(logits, peak, 1.0F, scratch.block_sum_);
  const float log_total = peak + static_cast<float>(std::log(total));
  top_logprobs_.clear();
  if (options_.top_logprobs == 0) return log_total;
  const int64_t count =
      std::min<int64_t>(options_.top_logprobs, static_cast<int64_t>(logits.size()));
  std::vector<Candidate>& best = scratch.candidates_;
  best.clear();
  const float threshold = kth_block_max(scratch.block_max_, count, scratch.order_);
  scan_blocks(static_cast<int64_t>(logits.size()), scratch.block_max_, threshold,
              [&](int64_t, int64_t begin, int64_t end) {
                for (int64_t i = begin; i < end; ++i) {
                  if (logits[i] < threshold) continue;
                  best.push_back({logits[i], 0, static_cast<int32_t>(i)});
                }
              });
  std::partial_sort(best.begin(), best.begin() + count, best.end(), kBetter);
  for (int64_t i = 0; i < count; ++i) {
    top_logprobs_.push_back({best[i].token, best[i].logit - log_total});
  }
  return log_total;
}

int32_t Sampler::draw(std::span<const float> logits, float peak, int64_t position,
                      SamplerScratch& scratch) const {
  const float scale = 1.0F / options_.temperature;
  const double total = sum_exponentials(logits, peak, scale, scratch.block_sum_);
  const double unit = random_unit(options_.seed, static_cast<uint64_t>(position), options_.stream);
  if (options_.top_k == 0 && options_.top_p >= 1.0F && options_.min_p <= 0.0F) {
    return draw_from_all(logits, scratch.block_sum_, peak, scale, total, unit);
  }
  keep_best(logits, peak, total, scratch);
  double kept = 0;
  for (const Candidate& candidate : scratch.candidates_) kept += candidate.weight;
  double left = unit * kept;
  for (const Candidate& candidate : scratch.candidates_) {
    if (left < candidate.weight) return candidate.token;
    left -= candidate.weight;
  }
  return scratch.candidates_.back().token;
}

void Sampler::keep_best(std::span<const float> logits, float peak, double total,
                        SamplerScratch& scratch) const {
  const int64_t vocab_size = static_cast<int64_t>(logits.size());
  const int64_t k =
      options_.top_k == 0 ? vocab_size : std::min<int64_t>(options_.top_k, vocab_size);
  // Below this weight a token cannot be kept. Without top-k and min-p: tokens that each weigh
  // less than (1 - p) total / V weigh less than 1 - p together, so the nucleus is among the
  // others; half of it leaves room for rounding.
  float weight_min = options_.min_p;
  if (k == vocab_size && options_.min_p <= 0.0F) {
    weight_min =
        static_cast<float>(0.5 * (1.0 - options_.top_p) * total / static_cast<double>(vocab_size));
  }
  float threshold = kth_block_max(scratch.block_max_, k, scratch.order_);
  if (weight_min > 0) {  // the same bound for logits, a little lower: weights decide
    threshold = std::max(threshold, peak + options_.temperature * (std::log(weight_min) - 1e-3F));
  }
  std::vector<Candidate>& kept = scratch.candidates_;
  kept.clear();
  std::array<float, kLogitBlock> weights;
  scan_blocks(vocab_size, scratch.block_max_, threshold,
              [&](int64_t block, int64_t begin, int64_t end) {
                block_exponentials(logits, block, peak, 1.0F / options_.temperature, weights);
                for (int64_t i = begin; i < end; ++i) {
                  const float weight = weights[i - begin];
                  if (logits[i] < threshold || weight < weight_min || weight <= 0) continue;
                  kept.push_back({logits[i], weight, static_cast<int32_t>(i)});
                }
              });
  if (static_cast<int64_t>(kept.size()) > k) {
    std::nth_element(kept.begin(), kept.begin() + (k - 1), kept.end(), kBetter);
    kept.resize(k);
  }
  if (options_.top_p < 1.0F) {
    double mass = 0;
    for (const Candidate& candidate : kept) mass += candidate.weight;
    // Where top-k and min-p left everything in, the tail that was not even collected counts too.
    if (k == vocab_size && options_.min_p <= 0.0F) mass = total;
    keep_nucleus(kept, options_.top_p * mass);
  }
  // A draw goes by token, as it does over a whole row: a device need not sort.
  std::sort(kept.begin(), kept.end(),
            [](const Candidate& a, const Candidate& b) { return a.token < b.token; });
}

}  // namespace galley::engine
