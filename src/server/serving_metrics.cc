#include "server/serving_metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <numeric>
#include <sstream>
#include <utility>

namespace galley::server {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

// The buckets of vLLM's histograms of the same names.
std::vector<double> request_seconds() {
  return {0.3,  0.5,  0.8,  1.0,  1.5,   2.0,   2.5,   5.0,   10.0,   15.0,  20.0,
          30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0};
}

std::vector<double> first_token_seconds() {
  return {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,  0.25,  0.5,   0.75,
          1.0,   2.5,   5.0,  7.5,  10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0};
}

std::vector<double> token_gap_seconds() {
  return {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,  0.3,  0.4, 0.5,
          0.75, 1.0,   2.5,  5.0,   7.5, 10.0, 20.0, 40.0, 80.0};
}

// 1, 2, 5, 10 ... up to a million: no context is longer.
std::vector<double> token_counts() {
  std::vector<double> bounds;
  for (double decade = 1; decade <= 1e6; decade *= 10) {
    for (const double digit : {1.0, 2.0, 5.0}) {
      if (decade * digit <= 1e6) bounds.push_back(decade * digit);
    }
  }
  return bounds;
}

class Families {
 public:
  explicit Families(const std::string& model_name)
      : common_{{"engine", "0"}, {"model_name", model_name}} {}

  void counter(const std::string& name, const std::string& help, double value) {
    counters(name, help, {{{}, value}});
  }

  void counters(const std::string& name, const std::string& help,
                const std::vector<std::pair<Labels, double>>& values) {
    MetricFamily& family = add(name, help, MetricType::Counter);
    for (const auto& [labels, value] : values) {
      ClientMetric& metric = family.metric.emplace_back();
      metric.label = with_common(labels);
      metric.counter.value = value;
    }
  }

  void gauge(const std::string& name, const std::string& help, double value) {
    ClientMetric& metric = add(name, help, MetricType::Gauge).metric.emplace_back();
    metric.label = common_;
    metric.gauge.value = value;
  }

  void histogram(const std::string& name, const std::string& help, const Histogram& histogram) {
    ClientMetric& metric = add(name, help, MetricType::Histogram).metric.emplace_back();
    metric.label = common_;
    metric.histogram.sample_count = histogram.count();
    metric.histogram.sample_sum = histogram.sum();
    for (size_t i = 0; i < histogram.bounds().size(); ++i) {
      metric.histogram.bucket.push_back({histogram.count_up_to(i), histogram.bounds()[i]});
    }
  }

  std::string text() const {
    std::ostringstream out;
    prometheus::TextSerializer().Serialize(out, families_);
    return out.str();
  }

 private:
  MetricFamily& add(const std::string& name, const std::string& help, MetricType type) {
    MetricFamily& family = families_.emplace_back();
    family.name = name;
    family.help = help;
    family.type = type;
    return family;
  }

  Labels with_common(const Labels& labels) const {
    Labels all = common_;
    all.insert(all.end(), labels.begin(), labels.end());
    return all;
  }

  Labels common_;
  std::vector<MetricFamily> families_;
};

std::vector<std::pair<Labels, double>> by_label(
    const std::string& label, const std::map<std::string, uint64_t, std::less<>>& counts) {
  std::vector<std::pair<Labels, double>> values;
  for (const auto& [name, count] : counts) {
    values.push_back({{{label, name}}, static_cast<double>(count)});
  }
  return values;
}

void add_engine(const engine::EngineStats& stats, Families& families) {
  families.gauge("vllm:num_requests_running", "Sequences in the running batch.", stats.running);
  families.gauge("vllm:num_requests_waiting", "Sequences accepted and not running.", stats.waiting);
  const double held = stats.page_count > 0 ? 1.0 - static_cast<double>(stats.pages_free) /
                                                       static_cast<double>(stats.page_count)
                                           : 0.0;
  families.gauge("vllm:kv_cache_usage_perc", "Share of the KV pages in use; 1 = all.", held);
  families.counter("galley:engine_steps_total", "Steps of the engine.",
                   static_cast<double>(stats.steps));
  families.counter("galley:engine_step_seconds_total", "Time of all steps together.",
                   std::chrono::duration<double>(stats.step_time).count());
  families.counters("galley:engine_rows_total", "Rows computed, by kind.",
                    {{{{"kind", "prefill"}}, static_cast<double>(stats.rows.prefill_rows)},
                     {{{"kind", "replay"}}, static_cast<double>(stats.rows.replay_rows)},
                     {{{"kind", "recomputed"}}, static_cast<double>(stats.rows.recomputed_rows)},
                     {{{"kind", "decode"}}, static_cast<double>(stats.rows.decode_rows)},
                     {{{"kind", "wasted"}}, static_cast<double>(stats.rows.wasted_rows)}});
  families.counter("galley:cache_evictions_total", "Pages of the prefix cache given up.",
                   static_cast<double>(stats.evictions));
  families.counter("galley:cache_expiries_total", "Pages of the prefix cache unused for too long.",
                   static_cast<double>(stats.expiries));
  families.counter("galley:snapshot_hits_total",
                   "Prompts that went on from a snapshot and replayed nothing.",
                   static_cast<double>(stats.rows.snapshot_hits));
  families.counter("galley:snapshots_total", "States at page boundaries that were kept.",
                   static_cast<double>(stats.rows.snapshots));
  families.counter("galley:spills_total", "Preempted sequences whose state went to the host.",
                   static_cast<double>(stats.rows.spills));
  families.counter("galley:resumes_total", "Preempted sequences that went on where they were.",
                   static_cast<double>(stats.rows.resumes));
  families.gauge("galley:snapshot_bytes", "Snapshot memory in use.",
                 static_cast<double>(stats.snapshot_bytes));
  families.gauge("galley:snapshot_bytes_max", "Snapshot memory at most.",
                 static_cast<double>(stats.snapshot_bytes_max));
  families.gauge("galley:engine_since_progress_seconds",
                 "Since the last step ended while there is work; 0 when idle.",
                 std::chrono::duration<double>(stats.since_progress).count());
}

}  // namespace

void Histogram::observe(double value, uint64_t times) {
  const auto bound = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  counts_[static_cast<size_t>(bound - bounds_.begin())] += times;
  sum_ += value * static_cast<double>(times);
}

uint64_t Histogram::count_up_to(size_t bound) const {
  return std::accumulate(counts_.begin(), counts_.begin() + static_cast<std::ptrdiff_t>(bound) + 1,
                         uint64_t{0});
}

ServingMetrics::ServingMetrics(std::string model_name)
    : model_name_(std::move(model_name)),
      first_token_(first_token_seconds()),
      token_gap_(token_gap_seconds()),
      total_(request_seconds()),
      queue_(request_seconds()),
      prefill_(request_seconds()),
      decode_(request_seconds()),
      prompt_length_(token_counts()),
      output_length_(token_counts()),
      choices_({1, 2, 5, 10, 20}),
      output_max_(token_counts()) {
  // A series that is there from the start can be watched before its first event.
  for (const char* reason : {"stop", "length", "abort", "error"}) finished_[reason] = 0;
}

void ServingMetrics::count_response(std::string_view route, int status) {
  ++responses_[{std::string(route), status}];
}

void ServingMetrics::count_rejection(std::string_view reason) {
  ++rejections_[std::string(reason)];
}

void ServingMetrics::observe(const FinishedRequest& request) {
  ++finished_[std::string(request.finish)];
  prompt_tokens_ += static_cast<uint64_t>(request.prompt_tokens);
  cached_tokens_ += static_cast<uint64_t>(request.cached_tokens);
  replayed_tokens_ += static_cast<uint64_t>(request.replayed_tokens);
  output_tokens_ += static_cast<uint64_t>(request.output_tokens);
  preemptions_ += static_cast<uint64_t>(request.preemptions);
  if (!request.miss_reason.empty()) ++misses_[std::string(request.miss_reason)];
  prompt_length_.observe(static_cast<double>(request.prompt_tokens));
  output_length_.observe(static_cast<double>(request.output_tokens));
  choices_.observe(static_cast<double>(request.choices));
  output_max_.observe(static_cast<double>(request.output_tokens_max));
  total_.observe(request.total_s);
  if (request.first_token_s >= 0) first_token_.observe(request.first_token_s);
  if (request.queue_s >= 0) queue_.observe(request.queue_s);
  if (request.prefill_s >= 0) prefill_.observe(request.prefill_s);
  if (request.decode_s >= 0) decode_.observe(request.decode_s);
}

void ServingMetrics::fill(serve::KitchenTotals& totals) const {
  totals.prompt_tokens = static_cast<int64_t>(prompt_tokens_);
  totals.cached_tokens = static_cast<int64_t>(cached_tokens_);
  totals.replayed_tokens = static_cast<int64_t>(replayed_tokens_);
  for (const auto& [reason, count] : finished_) {
    totals.finished.emplace_back(reason, static_cast<int64_t>(count));
  }
  for (const auto& [reason, count] : misses_) {
    totals.misses.emplace_back(reason, static_cast<int64_t>(count));
  }
}

std::string ServingMetrics::text(const engine::EngineStats* engine,
                                 const net::ServerCounts& connections, bool ready) const {
  Families families(model_name_);
  if (engine != nullptr) add_engine(*engine, families);
  families.gauge("galley:ready", "1 when the server takes requests.", ready ? 1 : 0);
  families.gauge("galley:connections", "Open connections of clients.",
                 static_cast<double>(connections.connections));
  families.counter("galley:connections_refused_total", "Connections refused for want of room.",
                   static_cast<double>(connections.refused));
  families.counter("galley:connections_timed_out_total", "Connections cut for being too slow.",
                   static_cast<double>(connections.timed_out));
  std::vector<std::pair<Labels, double>> responses;
  for (const auto& [key, count] : responses_) {
    responses.push_back(
        {{{"route", key.first}, {"code", std::to_string(key.second)}}, static_cast<double>(count)});
  }
  families.counters("galley:http_responses_total", "Answers by route and status.", responses);
  families.counters("galley:admission_rejections_total", "Requests refused, by reason.",
                    by_label("reason", rejections_));
  families.counters("vllm:request_success_total", "Finished requests, by reason.",
                    by_label("finished_reason", finished_));
  families.counter("vllm:prompt_tokens_total", "Prompt tokens of finished requests.",
                   static_cast<double>(prompt_tokens_));
  families.counter("vllm:generation_tokens_total", "Tokens generated.",
                   static_cast<double>(output_tokens_));
  families.counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the cache.",
                   static_cast<double>(prompt_tokens_));
  families.counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the cache.",
                   static_cast<double>(cached_tokens_));
  families.counter("galley:replayed_tokens_total", "Cached tokens computed again for the windows.",
                   static_cast<double>(replayed_tokens_));
  families.counters("galley:prefix_cache_misses_total",
                    "Requests by why no more of the prompt was cached.",
                    by_label("reason", misses_));
  families.counter("vllm:num_preemptions_total", "Sequences that had to make room.",
                   static_cast<double>(preemptions_));
  families.histogram("vllm:time_to_first_token_seconds", "From arrival to the first token.",
                     first_token_);
  families.histogram("vllm:inter_token_latency_seconds", "Between two tokens of a sequence.",
                     token_gap_);
  families.histogram("vllm:e2e_request_latency_seconds", "From arrival to the last token.", total_);
  families.histogram("vllm:request_queue_time_seconds", "From arrival to the first step.", queue_);
  families.histogram("vllm:request_prefill_time_seconds", "From the first step to the first token.",
                     prefill_);
  families.histogram("vllm:request_decode_time_seconds", "From the first token to the last.",
                     decode_);
  families.histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", prompt_length_);
  families.histogram("vllm:request_generation_tokens", "Tokens generated for a request.",
                     output_length_);
  families.histogram("vllm:request_params_n", "Answers asked for.", choices_);
  families.histogram("vllm:request_params_max_tokens", "Most tokens asked for.", output_max_);
  return families.text();
}

}  // namespace galley::server
