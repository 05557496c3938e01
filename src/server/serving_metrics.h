// What the server counts, and how Prometheus reads it.
//
// The names, shapes and buckets that vLLM publishes are used where the meaning
// is the same, so that dashboards and autoscalers need no change; everything else
// starts with "galley:". Counters only grow, and nothing here can fail a request.
// Belongs to the loop's thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "net/server.h"
#include "serve/kitchen_state.h"

namespace galley::server {

// Counts in ranges: values up to each bound, and all.
class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds)
      : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}

  void observe(double value, uint64_t times = 1);

  const std::vector<double>& bounds() const { return bounds_; }
  uint64_t count_up_to(size_t bound) const;
  uint64_t count() const { return count_up_to(bounds_.size()); }
  double sum() const { return sum_; }

 private:
  std::vector<double> bounds_;
  std::vector<uint64_t> counts_;  // of each range; the last is beyond all bounds
  double sum_ = 0;
};

// A request that reached the engine, when it ended.
struct FinishedRequest {
  std::string_view finish;  // "stop", "length", "abort", "error"
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t replayed_tokens = 0;
  int64_t output_tokens = 0;
  int64_t preemptions = 0;
  int64_t choices = 1;
  int64_t output_tokens_max = 0;
  std::string_view miss_reason = {};
  // Seconds; below nothing: never got so far.
  double queue_s = -1;
  double prefill_s = -1;
  double first_token_s = -1;
  double decode_s = -1;
  double total_s = 0;
};

class ServingMetrics {
 public:
  explicit ServingMetrics(std::string model_name);

  void count_response(std::string_view route, int status);
  void count_rejection(std::string_view reason);
  void observe(const FinishedRequest& request);
  void observe_token_gap(double seconds) { token_gap_.observe(seconds); }

  // What the web page shows of the same counts.
  void fill(serve::KitchenTotals& totals) const;

  // The text format. Gauges are read now; without an engine the model is still loading.
  std::string text(const engine::EngineStats* engine, const net::ServerCounts& connections,
                   bool ready) const;

 private:
  std::string model_name_;
  // Labels are names of this program, never a client's text, so their number is bounded.
  std::map<std::pair<std::string, int>, uint64_t> responses_;
  std::map<std::string, uint64_t, std::less<>> rejections_;
  std::map<std::string, uint64_t, std::less<>> finished_;
  std::map<std::string, uint64_t, std::less<>> misses_;
  uint64_t prompt_tokens_ = 0;
  uint64_t cached_tokens_ = 0;
  uint64_t replayed_tokens_ = 0;
  uint64_t output_tokens_ = 0;
  uint64_t preemptions_ = 0;
  Histogram first_token_;
  Histogram token_gap_;
  Histogram total_;
  Histogram queue_;
  Histogram prefill_;
  Histogram decode_;
  Histogram prompt_length_;
  Histogram output_length_;
  Histogram choices_;
  Histogram output_max_;
};

}  // namespace galley::server
