// Names of requests, traces, log lines, histograms and the self-test's judgement: each on values.
#include "server/trace_context.h"

#include <gtest/gtest.h>

#include "server/event_log.h"
#include "server/self_test.h"
#include "server/serving_metrics.h"

namespace galley::server {
namespace {

constexpr std::string_view kTrace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

TEST(TraceContext, PassesOnWhatIsWellFormed) {
  const auto trace = parse_traceparent(kTrace);
  ASSERT_TRUE(trace);
  EXPECT_EQ(trace->trace_id, "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(trace->flags, "01");
  EXPECT_EQ(format_traceparent(*trace), kTrace);
  // A later version with more fields.
  EXPECT_TRUE(parse_traceparent("01" + std::string(kTrace.substr(2)) + "-more"));
}

TEST(TraceContext, IgnoresTheRest) {
  std::string zero(kTrace);
  zero.replace(3, 32, 32, '0');
  std::string upper(kTrace);
  upper[4] = 'A';
  std::string version(kTrace);
  version.replace(0, 2, "ff");
  for (const std::string& text :
       {std::string(), std::string(kTrace.substr(1)), std::string(kTrace) + "-more", zero, upper,
        version, std::string(55, '-')}) {
    EXPECT_FALSE(parse_traceparent(text)) << text;
  }
}

TEST(RequestId, OnlyShortPrintableOnesAreKept) {
  EXPECT_TRUE(is_request_id("abc-123:x"));
  EXPECT_FALSE(is_request_id(""));
  EXPECT_FALSE(is_request_id("a b"));
  EXPECT_FALSE(is_request_id("a\"b"));
  EXPECT_FALSE(is_request_id(std::string(129, 'a')));
  std::mt19937_64 random(1);
  EXPECT_EQ(random_hex(random).size(), 32U);
  EXPECT_NE(random_hex(random), random_hex(random));
}

TEST(LogEvent, OneLineWhateverIsInIt) {
  LogEvent event("x");
  event.add("a", "plain").add("b", "two words").add("c", "q\"\n\x01").add("d", int64_t{7});
  EXPECT_EQ(event.text(), "event=x a=plain b=\"two words\" c=\"q\\\"  \" d=7");
  EXPECT_LT(LogEvent("x").add("a", std::string(5000, 'y')).text().size(), 600U);
}

TEST(Histogram, CountsUpToEachBound) {
  Histogram histogram({1, 10});
  for (const double value : {0.5, 1.0, 5.0, 100.0}) histogram.observe(value);
  EXPECT_EQ(histogram.count_up_to(0), 2U);
  EXPECT_EQ(histogram.count_up_to(1), 3U);
  EXPECT_EQ(histogram.count(), 4U);
  EXPECT_EQ(histogram.sum(), 106.5);
}

// Dashboards and autoscalers ask for these names; a changed one reads as nothing.
TEST(ServingMetrics, NamesAreAContract) {
  ServingMetrics metrics("m");
  metrics.observe({.finish = "stop", .prompt_tokens = 7, .output_tokens = 3, .first_token_s = 0.1});
  const engine::EngineStats stats;
  const std::string text = metrics.text(&stats, {}, true);
  for (const char* line :
       {"vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 0", "vllm:num_requests_waiting{",
        "vllm:kv_cache_usage_perc{", "vllm:prefix_cache_queries_total{",
        "vllm:prefix_cache_hits_total{",
        "vllm:prompt_tokens_total{engine=\"0\",model_name=\"m\"} 7",
        "vllm:generation_tokens_total{engine=\"0\",model_name=\"m\"} 3",
        "vllm:request_success_total{engine=\"0\",model_name=\"m\",finished_reason=\"stop\"} 1",
        "vllm:time_to_first_token_seconds_bucket{", "vllm:inter_token_latency_seconds_bucket{",
        "vllm:e2e_request_latency_seconds_sum{", "vllm:request_queue_time_seconds_count{",
        "vllm:num_preemptions_total{", "# TYPE vllm:time_to_first_token_seconds histogram"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line;
  }
}

SelfTestAnswer good(float shift) {
  SelfTestAnswer answer;
  answer.tokens = {1, 2, 3};
  answer.logprobs = {-0.1F - shift, -0.2F, -0.3F};
  answer.spreads = {5, 6, 7};
  return answer;
}

TEST(SelfTest, TellsBrokenFromWorking) {
  const auto verdict = [](SelfTestAnswer a, SelfTestAnswer b) {
    const SelfTestAnswer answers[] = {std::move(a), std::move(b)};
    const auto result = judge_self_test(answers);
    return result ? std::string() : result.error().message;
  };
  EXPECT_EQ(verdict(good(0), good(1)), "");
  SelfTestAnswer failed = good(0);
  failed.failed = true;
  EXPECT_NE(verdict(good(1), failed).find("no numbers"), std::string::npos);
  SelfTestAnswer flat = good(0);
  flat.spreads = {0, 0, 0};
  EXPECT_NE(verdict(good(1), flat).find("equally likely"), std::string::npos);
  SelfTestAnswer stuck = good(0);
  stuck.tokens = {4, 4, 4};
  EXPECT_EQ(verdict(good(1), stuck), "");  // a loop of a small model is no fault
  stuck.logprobs = {-1, -1, -1};
  EXPECT_NE(verdict(good(1), stuck).find("token 4"), std::string::npos);
  EXPECT_NE(verdict(good(0), good(0)).find("different prompts"), std::string::npos);
}

}  // namespace
}  // namespace galley::server
