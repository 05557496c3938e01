// galley bench serve: puts a server under load and says what its users would have seen.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "net/event_reader.h"
#include "net/http_client.h"
#include "tools/command.h"
#include "tools/exit_code.h"
#include "tools/interrupt.h"
#include "tools/load_result.h"
#include "tools/progress.h"
#include "tools/verbs.h"

namespace galley::tools {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr size_t kErrorBytesMax = 300;

struct ServeLoad {
  std::string url = "http://127.0.0.1:8000";
  std::string api = "chat";
  std::string api_key;
  std::string model;
  int32_t requests = 200;
  float rate = 0;
  int32_t concurrency = 32;
  int32_t prompt_words = 100;
  int32_t shared_words = 0;
  int32_t output_tokens = 64;
  float temperature = 0.7F;
  uint64_t seed = 0;
  float first_token_ms = 1000;
  float per_token_ms = 100;
  float patience_s = 120;
  bool json = false;
};

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Words of a seed: the same load for the same settings, on any machine.
std::string words(uint64_t seed, int32_t count) {
  static constexpr const char* kWords[] = {
      "the",  "a",     "little", "house", "garden", "boat",  "river", "night", "morning", "friend",
      "went", "found", "said",   "asked", "saw",    "under", "over",  "near",  "red",     "green",
      "old",  "small", "happy",  "tired", "fox",    "bird",  "king",  "child", "and",     "but"};
  std::mt19937_64 random(seed);
  std::string text;
  for (int32_t i = 0; i < count; ++i) {
    if (i > 0) text += ' ';
    text += kWords[random() % std::size(kWords)];
  }
  return text;
}

std::string body_of(const ServeLoad& load, int32_t number) {
  std::string prompt;
  if (load.shared_words > 0) prompt = words(load.seed, load.shared_words) + "\n";
  prompt += words(load.seed + 1 + static_cast<uint64_t>(number), load.prompt_words);
  Json json;
  json["model"] = load.model;
  if (load.api == "chat") {
    json["messages"] = Json::array({{{"role", "user"}, {"content", prompt}}});
  } else {
    json["prompt"] = prompt;
  }
  json["max_tokens"] = load.output_tokens;
  json["temperature"] = load.temperature;
  json["seed"] = load.seed + static_cast<uint64_t>(number);
  json["stream"] = true;
  json["stream_options"] = {{"include_usage", true}};
  return json.dump();
}

int64_t integer_at(const Json& json, const char* name) {
  const auto found = json.find(name);
  return found != json.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

// One answer as it streams in.
class AnswerWatch {
 public:
  AnswerWatch(LoadSample& sample, Clock::time_point due) : sample_(&sample), due_(due) {}

  void take(std::string_view data) {
    if (data == "[DONE]") {
      done_ = true;
      return;
    }
    const Json event = Json::parse(data, nullptr, false);
    if (!event.is_object()) return fail("an event is not a JSON object");
    if (const auto error = event.find("error"); error != event.end()) return fail(error->dump());
    if (const auto usage = event.find("usage"); usage != event.end() && usage->is_object()) {
      sample_->prompt_tokens = integer_at(*usage, "prompt_tokens");
      sample_->output_tokens = integer_at(*usage, "completion_tokens");
      sample_->cached_tokens = integer_at(*usage, "prompt_cache_hit_tokens");
    }
    if (has_text(event)) note_text();
  }

  void fail(std::string_view why) {
    if (sample_->failed) return;
    sample_->failed = true;
    sample_->failure = std::string(why.substr(0, kErrorBytesMax));
  }

  bool done() const { return done_; }

 private:
  static bool has_text(const Json& event) {
    const auto choices = event.find("choices");
    if (choices == event.end() || !choices->is_array()) return false;
    for (const Json& choice : *choices) {
      if (!choice.is_object()) continue;
      const auto filled = [](const Json& at, const char* name) {
        const auto found = at.find(name);
        if (found == at.end()) return false;
        return found->is_string() ? !found->get_ref<const std::string&>().empty()
                                  : found->is_array() && !found->empty();
      };
      if (filled(choice, "text")) return true;
      const auto delta = choice.find("delta");
      if (delta == choice.end() || !delta->is_object()) continue;
      for (const char* name : {"content", "reasoning_content", "tool_calls"}) {
        if (filled(*delta, name)) return true;
      }
    }
    return false;
  }

  void note_text() {
    const double now = seconds_since(due_);
    if (texts_++ == 0) {
      sample_->first_token_s = now;
    } else {
      sample_->gaps_s.push_back(now - last_s_);
    }
    last_s_ = now;
  }

  LoadSample* sample_;
  Clock::time_point due_;
  bool done_ = false;
  int64_t texts_ = 0;
  double last_s_ = 0;
};

LoadSample ask(net::HttpClient& client, const ServeLoad& load, int32_t number,
               Clock::time_point due) {
  LoadSample sample;
  sample.sent_late_s = std::max(0.0, seconds_since(due));
  AnswerWatch watch(sample, due);
  net::EventReader reader([&](std::string_view data) { watch.take(data); });
  std::string begin;  // of the body: what an error says
  const net::ClientRequest request = {
      .method = "POST",
      .path = load.api == "chat" ? "/v1/chat/completions" : "/v1/completions",
      .body = body_of(load, number),
      .bearer = load.api_key};
  const auto status = client.request(request, [&](std::string_view piece) {
    if (begin.size() < kErrorBytesMax) begin += piece.substr(0, kErrorBytesMax - begin.size());
    return reader.push(piece) && !interrupted();
  });
  sample.total_s = seconds_since(due);
  if (!status) {
    watch.fail(status.error().message);
  } else if (*status != 200) {
    watch.fail("status " + std::to_string(*status) + ": " + begin);
  } else if (!watch.done()) {
    watch.fail("the stream ended without [DONE]");
  }
  return sample;
}

// When each request is due, in seconds: a Poisson process, or all at once.
std::vector<double> due_times(const ServeLoad& load) {
  std::mt19937_64 random(load.seed ^ 0x9E3779B97F4A7C15U);
  std::vector<double> due;
  double at = 0;
  for (int32_t i = 0; i < load.requests; ++i) {
    due.push_back(at);
    if (load.rate <= 0) continue;
    const double uniform = (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53;
    at -= std::log(uniform) / static_cast<double>(load.rate);
  }
  return due;
}

void sleep_until(Clock::time_point when) {
  constexpr auto kSlice = std::chrono::milliseconds(50);  // so that Ctrl-C is seen
  while (!interrupted() && Clock::now() < when) {
    std::this_thread::sleep_until(std::min(when, Clock::now() + kSlice));
  }
}

std::vector<LoadSample> run_load(const ServeLoad& load, const net::HttpUrl& url,
                                 double& duration_s) {
  const std::vector<double> due = due_times(load);
  std::vector<LoadSample> samples;
  std::mutex mutex;
  Progress progress({.unit = "requests", .total = load.requests});
  std::atomic<int32_t> next = 0;
  const auto begin = Clock::now();
  const auto work = [&] {
    net::HttpClient client(url,
                           std::chrono::milliseconds(static_cast<int64_t>(load.patience_s * 1000)));
    while (!interrupted()) {
      const int32_t number = next.fetch_add(1);
      if (number >= load.requests) return;
      const double due_s = due[static_cast<size_t>(number)];
      auto when =
          begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(due_s));
      sleep_until(when);
      if (interrupted()) return;
      // Without a rate a request is due when a connection is free for it.
      if (load.rate <= 0) when = Clock::now();
      LoadSample sample = ask(client, load, number, when);
      if (interrupted()) return;  // cut short by us
      const std::scoped_lock lock(mutex);
      samples.push_back(std::move(sample));
      progress.update(std::ssize(samples));
    }
  };
  std::vector<std::thread> threads;
  for (int32_t i = 0; i < std::min(load.concurrency, load.requests); ++i) {
    threads.emplace_back(work);
  }
  for (std::thread& thread : threads) thread.join();
  duration_s = seconds_since(begin);
  progress.finish(std::ssize(samples));
  return samples;
}

// The first model that the server names.
Result<std::string> served_model(const ServeLoad& load, const net::HttpUrl& url) {
  net::HttpClient client(url, std::chrono::seconds(10));
  std::string body;
  const int status = TRY(
      client.request({.path = "/v1/models", .bearer = load.api_key}, [&](std::string_view piece) {
        body += piece;
        return body.size() < (size_t{1} << 20);
      }));
  if (status != 200) {
    return Error{ErrorCode::kInvalid, load.url + "/v1/models: status " + std::to_string(status) +
                                          ": " + body.substr(0, kErrorBytesMax)};
  }
  const Json json = Json::parse(body, nullptr, false);
  if (json.is_object() && json.contains("data") && json["data"].is_array()) {
    for (const Json& model : json["data"]) {
      if (model.is_object() && model.contains("id") && model["id"].is_string()) {
        return model["id"].get<std::string>();
      }
    }
  }
  return Error{ErrorCode::kInvalid, load.url + "/v1/models names no model; give --model-name"};
}

Json spread_json(const Spread& spread) {
  const auto ms = [](double seconds) { return std::round(seconds * 1e5) / 100; };
  return {{"p50", ms(spread.median)},
          {"p90", ms(spread.p90)},
          {"p99", ms(spread.p99)},
          {"max", ms(spread.most)}};
}

void print_json(const ServeLoad& load, const LoadSummary& sum) {
  Json json;
  json["case"] = "serve_load";
  json["model"] = load.model;
  json["api"] = load.api;
  json["rate"] = load.rate;
  json["concurrency"] = load.concurrency;
  json["requests"] = sum.requests;
  json["failed"] = sum.failed;
  if (sum.failed > 0) json["first_failure"] = sum.first_failure;
  json["duration_s"] = sum.duration_s;
  json["requests_per_s"] = sum.requests_per_s;
  json["output_tokens_per_s"] = sum.output_tokens_per_s;
  json["prompt_tokens"] = sum.prompt_tokens;
  json["cached_tokens"] = sum.cached_tokens;
  json["output_tokens"] = sum.output_tokens;
  json["ttft_ms"] = spread_json(sum.first_token_s);
  json["itl_ms"] = spread_json(sum.gap_s);
  json["total_ms"] = spread_json(sum.total_s);
  json["sent_late_ms"] = spread_json(sum.sent_late_s);
  json["good_share"] = sum.good_share;
  json["good_requests_per_s"] = sum.good_requests_per_s;
  std::puts(json.dump().c_str());
}

void print_row(const char* name, const Spread& spread) {
  std::printf("  %-26s %9.1f %9.1f %9.1f %9.1f\n", name, 1e3 * spread.median, 1e3 * spread.p90,
              1e3 * spread.p99, 1e3 * spread.most);
}

void print_table(const ServeLoad& load, const LoadSummary& sum) {
  std::printf("%s requests in %.1f s, %s failed\n", format_count(sum.requests).c_str(),
              sum.duration_s, format_count(sum.failed).c_str());
  if (sum.failed > 0) std::printf("  first failure: %s\n", sum.first_failure.c_str());
  std::printf("%.2f requests/s, %.1f output tokens/s; prompt %s tokens, %s of them cached\n",
              sum.requests_per_s, sum.output_tokens_per_s, format_count(sum.prompt_tokens).c_str(),
              format_count(sum.cached_tokens).c_str());
  std::printf("  %-26s %9s %9s %9s %9s\n", "ms", "p50", "p90", "p99", "max");
  print_row("time to first token", sum.first_token_s);
  print_row("time between tokens", sum.gap_s);
  print_row("whole answer", sum.total_s);
  if (load.rate > 0) print_row("sent late by this client", sum.sent_late_s);
  std::printf(
      "goodput %.2f requests/s: %.1f %% had their first token in %.0f ms and %.0f ms a "
      "token after it\n",
      sum.good_requests_per_s, 100 * sum.good_share, static_cast<double>(load.first_token_ms),
      static_cast<double>(load.per_token_ms));
}

void add_load_settings(Command& command, ServeLoad& load) {
  command.setting("--url", load.url, "Server under test").value_name("URL");
  command.setting("--api", load.api, "Which endpoint: chat or completions")
      .choices({"chat", "completions"})
      .value_name("API");
  command.setting("--api-key", load.api_key, "Sent as a bearer token").value_name("KEY");
  command.setting("--model-name", load.model, "Model to ask for (default: the first one served)")
      .value_name("NAME");
  command.setting("-n,--requests", load.requests, "Requests in all").range(1, 1e7).value_name("N");
  command.setting("--rate", load.rate, "Requests a second, Poisson; 0 = as fast as answers come")
      .range(0, 1e6)
      .value_name("R");
  command.setting("--concurrency", load.concurrency, "Connections, hence requests at a time")
      .range(1, 1024)
      .value_name("N");
  command.setting("--prompt-words", load.prompt_words, "Words of each prompt of its own")
      .range(1, 1e6)
      .value_name("N");
  command.setting("--shared-words", load.shared_words, "Words that all prompts begin with")
      .range(0, 1e6)
      .value_name("N");
  command.setting("--max-tokens", load.output_tokens, "Longest answer in tokens")
      .range(1, 1e6)
      .value_name("N");
  command.setting("-t,--temperature", load.temperature, "0 = always the best token").range(0, 100);
  command.setting("--seed", load.seed, "The same seed asks the same").value_name("N");
  command.setting("--good-ttft-ms", load.first_token_ms, "Goodput: longest wait for a first token")
      .range(0, 1e7)
      .value_name("MS");
  command.setting("--good-itl-ms", load.per_token_ms, "Goodput: longest mean time of later tokens")
      .range(0, 1e7)
      .value_name("MS");
  command.setting("--patience", load.patience_s, "Give up when the server is silent for so long")
      .range(0.1, 86400)
      .value_name("S");
}

}  // namespace

int run_bench_serve(int argc, char** argv) {
  ServeLoad load;
  Command command(
      "bench serve", "Puts a running server under load: latencies, rates and goodput.",
      "  galley bench serve                                  32 connections, as fast as it goes\n"
      "  galley bench serve --rate 20 -n 1000 --json | jq .ttft_ms.p99\n"
      "  galley bench serve --shared-words 400               every prompt begins alike\n"
      "\nAny server with OpenAI's streaming API can be asked. Latencies count from the moment a\n"
      "request was due.\n"
      "\nExit codes: 0 every request was answered, 1 some failed, 64 wrong usage, 130 "
      "interrupted\n(what was measured is printed).\n");
  add_load_settings(command, load);
  command.argument("--json", load.json, "One JSON object on stdout instead of the table");
  if (const std::optional<int> code = command.parse(argc, argv)) return *code;
  listen_for_interrupt();
  const auto url = net::parse_http_url(load.url);
  if (!url) return command.fail(url.error());
  if (load.model.empty()) {
    auto model = served_model(load, *url);
    if (!model) return command.fail(model.error());
    load.model = std::move(*model);
  }
  double duration_s = 0;
  const std::vector<LoadSample> samples = run_load(load, *url, duration_s);
  const LoadSummary sum = summarise(samples, duration_s,
                                    {static_cast<double>(load.first_token_ms) / 1e3,
                                     static_cast<double>(load.per_token_ms) / 1e3});
  load.json ? print_json(load, sum) : print_table(load, sum);
  if (interrupted()) return kExitInterrupted;
  return sum.failed == 0 ? kExitOk : kExitFailed;
}

}  // namespace galley::tools
