// What a load test saw, and its summary: plain values, no sockets.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace galley::tools {

// One request. Times in seconds; latencies count from when the request was due, so that a client
// that could not send in time does not flatter the server.
struct LoadSample {
  bool failed = false;
  std::string failure;
  double sent_late_s = 0;  // every connection was busy
  double first_token_s = 0;
  double total_s = 0;
  std::vector<double> gaps_s;  // between the events that carried text
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t output_tokens = 0;
};

struct LoadTarget {
  double first_token_s = 1.0;
  double per_token_s = 0.1;
};

// Of the p-th part, 0 < p <= 1: the smallest value that p of all do not exceed. 0 of none.
double percentile(std::vector<double> values, double p);

struct Spread {
  double median = 0;
  double p90 = 0;
  double p99 = 0;
  double most = 0;
};
Spread spread_of(const std::vector<double>& values);

struct LoadSummary {
  int64_t requests = 0;
  int64_t failed = 0;
  std::string first_failure;
  double duration_s = 0;
  double requests_per_s = 0;
  double output_tokens_per_s = 0;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t output_tokens = 0;
  Spread first_token_s;
  Spread gap_s;  // of all gaps of all requests
  Spread total_s;
  Spread sent_late_s;
  double good_share = 0;  // requests within the target, failed ones not
  double good_requests_per_s = 0;
};

// Long prompts whose prefill is measured: alone, and beside other load.
struct PrefillSummary {
  int64_t prompts = 0;  // beside the load
  int64_t failed = 0;   // alone or not
  std::string first_failure;
  int64_t tokens_each = 0;  // the median
  // Medians of tokens to compute over the time to the first token.
  double lone_tokens_per_s = 0;
  double tokens_per_s = 0;
  double kept_share = 0;  // of the lone rate
  Spread first_token_s;
  Spread sent_late_s;
};

PrefillSummary summarise_prefill(const std::vector<LoadSample>& alone,
                                 const std::vector<LoadSample>& beside);

LoadSummary summarise(const std::vector<LoadSample>& samples, double duration_s,
                      const LoadTarget& target);

}  // namespace galley::tools
