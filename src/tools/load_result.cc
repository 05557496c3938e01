#include "tools/load_result.h"

#include <algorithm>
#include <cmath>

namespace galley::tools {

double percentile(std::vector<double> values, double p) {
  if (values.empty()) return 0;
  const auto count = static_cast<double>(values.size());
  const auto rank = static_cast<size_t>(std::max(1.0, std::ceil(p * count)));
  const auto nth = values.begin() + static_cast<std::ptrdiff_t>(std::min(rank, values.size()) - 1);
  std::nth_element(values.begin(), nth, values.end());
  return *nth;
}

Spread spread_of(const std::vector<double>& values) {
  return {percentile(values, 0.5), percentile(values, 0.9), percentile(values, 0.99),
          percentile(values, 1.0)};
}

PrefillSummary summarise_prefill(const std::vector<LoadSample>& alone,
                                 const std::vector<LoadSample>& beside) {
  PrefillSummary sum;
  sum.prompts = std::ssize(beside);
  std::vector<double> rates[2];
  std::vector<double> tokens;
  std::vector<double> first;
  std::vector<double> late;
  for (const auto* samples : {&alone, &beside}) {
    for (const LoadSample& sample : *samples) {
      if (sample.failed) {
        if (sum.failed++ == 0) sum.first_failure = sample.failure;
        continue;
      }
      const auto fresh = static_cast<double>(sample.prompt_tokens - sample.cached_tokens);
      tokens.push_back(static_cast<double>(sample.prompt_tokens));
      rates[samples == &beside ? 1 : 0].push_back(fresh / std::max(1e-9, sample.first_token_s));
      if (samples == &alone) continue;
      first.push_back(sample.first_token_s);
      late.push_back(sample.sent_late_s);
    }
  }
  sum.tokens_each = static_cast<int64_t>(percentile(tokens, 0.5));
  sum.lone_tokens_per_s = percentile(rates[0], 0.5);
  sum.tokens_per_s = percentile(rates[1], 0.5);
  if (sum.lone_tokens_per_s > 0) sum.kept_share = sum.tokens_per_s / sum.lone_tokens_per_s;
  sum.first_token_s = spread_of(first);
  sum.sent_late_s = spread_of(late);
  return sum;
}

LoadSummary summarise(const std::vector<LoadSample>& samples, double duration_s,
                      const LoadTarget& target) {
  LoadSummary sum;
  sum.requests = std::ssize(samples);
  sum.duration_s = duration_s;
  std::vector<double> first;
  std::vector<double> gaps;
  std::vector<double> total;
  std::vector<double> late;
  int64_t good = 0;
  for (const LoadSample& sample : samples) {
    late.push_back(sample.sent_late_s);
    if (sample.failed) {
      if (sum.failed++ == 0) sum.first_failure = sample.failure;
      continue;
    }
    first.push_back(sample.first_token_s);
    total.push_back(sample.total_s);
    gaps.insert(gaps.end(), sample.gaps_s.begin(), sample.gaps_s.end());
    sum.prompt_tokens += sample.prompt_tokens;
    sum.cached_tokens += sample.cached_tokens;
    sum.output_tokens += sample.output_tokens;
    const auto later = static_cast<double>(std::max<int64_t>(1, sample.output_tokens - 1));
    const double per_token = (sample.total_s - sample.first_token_s) / later;
    good += sample.first_token_s <= target.first_token_s && per_token <= target.per_token_s;
  }
  sum.first_token_s = spread_of(first);
  sum.gap_s = spread_of(gaps);
  sum.total_s = spread_of(total);
  sum.sent_late_s = spread_of(late);
  if (sum.requests > 0) {
    sum.good_share = static_cast<double>(good) / static_cast<double>(sum.requests);
  }
  if (duration_s > 0) {
    sum.requests_per_s = static_cast<double>(sum.requests - sum.failed) / duration_s;
    sum.output_tokens_per_s = static_cast<double>(sum.output_tokens) / duration_s;
    sum.good_requests_per_s = static_cast<double>(good) / duration_s;
  }
  return sum;
}

}  // namespace galley::tools
