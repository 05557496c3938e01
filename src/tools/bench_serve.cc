// galley bench serve: puts a server under load and says what its users would have seen.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
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
// Background prompts: asked alone before the load begins, and connections for those beside it.
constexpr int32_t kLonePrompts = 3;
constexpr int32_t kBackgroundConnections = 16;

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
  float background_rate = 0;
  int32_t background_words = 2000;
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

struct Ask {
  std::string prompt;
  int32_t output_tokens = 0;
  uint64_t seed = 0;
};

Ask ask_of(const ServeLoad& load, int32_t number) {
  Ask ask{.prompt = {}, .output_tokens = load.output_tokens, .seed = load.seed};
  ask.seed += static_cast<uint64_t>(number);
  if (load.shared_words > 0) ask.prompt = words(load.seed, load.shared_words) + "\n";
  ask.prompt += words(ask.seed + 1, load.prompt_words);
  return ask;
}

// A long prompt with nothing in common with any other, for the sake of its prefill.
Ask background_ask(const ServeLoad& load, int32_t number) {
  const uint64_t seed = ~load.seed - static_cast<uint64_t>(number);
  return {.prompt = words(seed, load.background_words), .output_tokens = 1, .seed = load.seed};
}

std::string body_of(const ServeLoad& load, const Ask& ask) {
  const std::string& prompt = ask.prompt;
  Json json;
  json["model"] = load.model;
  if (load.api == "chat") {
    json["messages"] = Json::array({{{"role", "user"}, {"content", prompt}}});
  } else {
    json["prompt"] = prompt;
  }
  json["max_tokens"] = ask.output_tokens;
  json["temperature"] = load.temperature;
  json["seed"] = ask.seed;
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

LoadSample measure(net::HttpClient& client, const ServeLoad& load, const Ask& ask,
                   Clock::time_point due) {
  LoadSample sample;
  sample.sent_late_s = std::max(0.0, seconds_since(due));
  AnswerWatch watch(sample, due);
  net::EventReader reader([&](std::string_view data) { watch.take(data); });
  std::string begin;  // of the body: what an error says
  const net::ClientRequest request = {
      .method = "POST",
      .path = load.api == "chat" ? "/v1/chat/completions" : "/v1/completions",
      .body = body_of(load, ask),
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

// Requests of one kind, asked over some connections until there are no more.
class Askers {
 public:
  Askers(const ServeLoad& load, const net::HttpUrl& url) : load_(load), url_(url) {}

  std::vector<LoadSample> run_load() {
    const std::vector<double> due = due_times(load_);
    Progress progress({.unit = "requests", .total = load_.requests});
    std::vector<LoadSample> samples = run(
        std::min(load_.concurrency, load_.requests),
        [&](int32_t number) {
          std::optional<Due> one;
          if (number >= load_.requests) return one;
          // Without a rate a request is due when a connection is free for it.
          if (load_.rate > 0) return std::optional(Due{due[static_cast<size_t>(number)]});
          return std::optional(Due{});
        },
        ask_of, &progress);
    progress.finish(std::ssize(samples));
    return samples;
  }

  // One after the other, with nothing else to do.
  std::vector<LoadSample> run_lone_prompts() {
    return run(
        1,
        [](int32_t number) { return number < kLonePrompts ? std::optional(Due{}) : std::nullopt; },
        background_ask, nullptr);
  }

  // At a steady rate, until `over`.
  std::vector<LoadSample> run_background(const std::atomic<bool>& over) {
    return run(
        kBackgroundConnections,
        [&](int32_t number) {
          const Due due{static_cast<double>(number) / static_cast<double>(load_.background_rate)};
          return sleep_until(time_of(due), &over) ? std::optional(due) : std::nullopt;
        },
        [](const ServeLoad& load, int32_t number) {
          return background_ask(load, kLonePrompts + number);
        },
        nullptr);
  }

  double seconds() const { return seconds_; }

 private:
  struct Due {
    std::optional<double> at_s = {};  // none: now
  };

  Clock::time_point time_of(const Due& due) const {
    if (!due.at_s) return Clock::now();
    return begin_ +
           std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(*due.at_s));
  }

  // False: interrupted, or over before it was time.
  static bool sleep_until(Clock::time_point when, const std::atomic<bool>* over = nullptr) {
    constexpr auto kSlice = std::chrono::milliseconds(50);  // so that Ctrl-C is seen
    while (!interrupted() && (over == nullptr || !*over)) {
      if (Clock::now() >= when) return true;
      std::this_thread::sleep_until(std::min(when, Clock::now() + kSlice));
    }
    return false;
  }

  template <class NextDue, class MakeAsk>
  std::vector<LoadSample> run(int32_t connections, NextDue&& next_due, MakeAsk&& make_ask,
                              Progress* progress) {
    std::vector<LoadSample> samples;
    std::mutex mutex;
    std::atomic<int32_t> next = 0;
    begin_ = Clock::now();
    const auto work = [&] {
      net::HttpClient client(
          url_, std::chrono::milliseconds(static_cast<int64_t>(load_.patience_s * 1000)));
      while (!interrupted()) {
        const int32_t number = next.fetch_add(1);
        const std::optional<Due> due = next_due(number);
        if (!due || !sleep_until(time_of(*due))) return;
        LoadSample sample = measure(client, load_, make_ask(load_, number), time_of(*due));
        if (interrupted()) return;  // cut short by us
        const std::scoped_lock lock(mutex);
        samples.push_back(std::move(sample));
        if (progress != nullptr) progress->update(std::ssize(samples));
      }
    };
    std::vector<std::thread> threads;
    for (int32_t i = 0; i < connections; ++i) threads.emplace_back(work);
    for (std::thread& thread : threads) thread.join();
    seconds_ = seconds_since(begin_);
    return samples;
  }

  const ServeLoad& load_;
  const net::HttpUrl& url_;
  Clock::time_point begin_;
  double seconds_ = 0;
};

struct Measured {
  LoadSummary load;
  std::optional<PrefillSummary> background;
};

Measured run_all(const ServeLoad& load, const net::HttpUrl& url) {
  Measured measured;
  std::vector<LoadSample> alone;
  std::vector<LoadSample> beside;
  std::atomic<bool> over = false;
  std::thread background;
  if (load.background_rate > 0) {
    alone = Askers(load, url).run_lone_prompts();
    background = std::thread([&] { beside = Askers(load, url).run_background(over); });
  }
  Askers askers(load, url);
  const std::vector<LoadSample> samples = askers.run_load();
  over = true;
  if (background.joinable()) {
    background.join();
    measured.background = summarise_prefill(alone, beside);
  }
  measured.load = summarise(samples, askers.seconds(),
                            {static_cast<double>(load.first_token_ms) / 1e3,
                             static_cast<double>(load.per_token_ms) / 1e3});
  return measured;
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

Json prefill_json(const ServeLoad& load, const PrefillSummary& prefill) {
  Json json;
  json["rate"] = load.background_rate;
  json["prompts"] = prefill.prompts;
  json["failed"] = prefill.failed;
  if (prefill.failed > 0) json["first_failure"] = prefill.first_failure;
  json["prompt_tokens_each"] = prefill.tokens_each;
  json["lone_tokens_per_s"] = prefill.lone_tokens_per_s;
  json["tokens_per_s"] = prefill.tokens_per_s;
  json["kept_share"] = prefill.kept_share;
  json["ttft_ms"] = spread_json(prefill.first_token_s);
  json["sent_late_ms"] = spread_json(prefill.sent_late_s);
  return json;
}

void print_json(const ServeLoad& load, const Measured& measured) {
  const LoadSummary& sum = measured.load;
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
  json["itl_p99_over_p50"] = sum.gap_s.median > 0 ? sum.gap_s.p99 / sum.gap_s.median : 0.0;
  if (measured.background) json["background"] = prefill_json(load, *measured.background);
  std::puts(json.dump().c_str());
}

void print_row(const char* name, const Spread& spread) {
  std::printf("  %-26s %9.1f %9.1f %9.1f %9.1f\n", name, 1e3 * spread.median, 1e3 * spread.p90,
              1e3 * spread.p99, 1e3 * spread.most);
}

void print_prefill(const PrefillSummary& prefill) {
  std::printf("%s background prompts of %s tokens, %s failed\n",
              format_count(prefill.prompts).c_str(), format_count(prefill.tokens_each).c_str(),
              format_count(prefill.failed).c_str());
  if (prefill.failed > 0) std::printf("  first failure: %s\n", prefill.first_failure.c_str());
  std::printf("  prefill %.0f tokens/s beside the load, %.0f alone: %.0f %% kept\n",
              prefill.tokens_per_s, prefill.lone_tokens_per_s, 100 * prefill.kept_share);
  print_row("time to first token", prefill.first_token_s);
}

void print_table(const ServeLoad& load, const Measured& measured) {
  const LoadSummary& sum = measured.load;
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
  if (sum.gap_s.median > 0) {
    std::printf("99 of 100 tokens come within %.2f times the median\n",
                sum.gap_s.p99 / sum.gap_s.median);
  }
  if (measured.background) print_prefill(*measured.background);
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
  command
      .setting(
          "--background-rate", load.background_rate,
          "Long prompts a second beside this load, whose prefill others have to bear; 0 = none")
      .range(0, 1e4)
      .value_name("R");
  command.setting("--background-words", load.background_words, "Words of each of these prompts")
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
      "  galley bench serve --background-rate 1              long prompts beside the streams\n"
      "\nAny server with OpenAI's streaming API can be asked. Latencies count from the moment a\n"
      "request was due. A background prompt's prefill is its tokens over the time to its first\n"
      "token; three are asked alone before the load begins.\n"
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
  const Measured measured = run_all(load, *url);
  load.json ? print_json(load, measured) : print_table(load, measured);
  if (interrupted()) return kExitInterrupted;
  const int64_t failed =
      measured.load.failed + (measured.background ? measured.background->failed : 0);
  return failed == 0 ? kExitOk : kExitFailed;
}

}  // namespace galley::tools
