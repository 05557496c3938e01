// What the prefix cache finds of a recorded hour of traffic: the real scheduler
// over a step that only costs time, prompts made of the trace's block ids.
//
//   trace_hits conversation_trace.jsonl [shrink]
//
// A trace of the Mooncake format (timestamp in ms, input_length, output_length,
// hash_ids of 512-token blocks; equal ids are equal prefixes). Lengths are divided
// by `shrink` (8), so that a block is a page of nano's 64 tokens, and cut to nano's
// context. Prints a table: pages, share of prompt tokens found, bound, reasons.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_set>

#include "engine/scheduler.h"

namespace galley::engine {
namespace {

constexpr int32_t kBlockTokens = 512;
constexpr int32_t kReasonCount = 7;
// Of a step on two cores, roughly; only the order of events depends on it.
constexpr double kStepSeconds = 0.004;
constexpr double kRowSeconds = 0.0001;

struct Arrival {
  double at = 0;  // seconds
  std::vector<int32_t> prompt;
  int32_t output_tokens = 1;
};

GeneratorOptions make_options(int32_t page_count, PrefixReplay prefix, int32_t snapshots) {
  GeneratorOptions options;
  options.sequences_max = 32;
  options.waiting_max = 1 << 15;
  options.page_tokens = 64;
  options.page_count = page_count;
  options.vocab_size = 1 << 30;
  options.positions_max = 8192;
  options.window = 64;
  options.layers = 12;
  options.decoder_source = 6;
  options.prefix = prefix;
  options.snapshot_blocks = snapshots;
  options.reuse_blocks = snapshots > 0 ? 1 : 0;
  options.slot_blocks = 2;
  return options;
}

std::vector<Arrival> read_trace(const char* path, int32_t shrink) {
  std::vector<Arrival> arrivals;
  std::ifstream file(path);
  const int32_t block = kBlockTokens / shrink;
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json json = nlohmann::json::parse(line);
    Arrival arrival;
    arrival.at = json["timestamp"].get<double>() / 1000;
    const auto tokens = std::clamp(json["input_length"].get<int32_t>() / shrink, 1, 7680);
    for (const int32_t id : json["hash_ids"]) {
      for (int32_t i = 0; i < block && std::ssize(arrival.prompt) < tokens; ++i) {
        arrival.prompt.push_back(id);
      }
    }
    arrival.output_tokens = std::clamp(json["output_length"].get<int32_t>() / shrink, 1, 500);
    arrivals.push_back(std::move(arrival));
  }
  return arrivals;
}

// Share of prompt tokens in whole pages that came before, had nothing ever been evicted.
double bound(const std::vector<Arrival>& arrivals, int32_t page_tokens) {
  std::unordered_set<std::string> seen;
  int64_t found = 0;
  int64_t all = 0;
  for (const Arrival& arrival : arrivals) {
    all += std::ssize(arrival.prompt);
    std::string prefix;
    bool hit = true;
    for (int64_t begin = 0; begin + page_tokens < std::ssize(arrival.prompt);
         begin += page_tokens) {
      prefix += std::to_string(arrival.prompt[static_cast<size_t>(begin)]) + ",";
      prefix += std::to_string(arrival.prompt[static_cast<size_t>(begin + page_tokens - 1)]) + ";";
      hit = hit && seen.contains(prefix);
      found += hit ? page_tokens : 0;
      if (!hit) seen.insert(prefix);
    }
  }
  return static_cast<double>(found) / static_cast<double>(all);
}

void replay(const std::vector<Arrival>& arrivals, int32_t page_count, PrefixReplay prefix,
            int32_t snapshots, double most) {
  Scheduler scheduler(make_options(page_count, prefix, snapshots));
  std::vector<SampledSequence> sampled;
  int64_t reasons[kReasonCount] = {};
  size_t next = 0;
  double now = 0;
  while (next < arrivals.size() || !scheduler.idle()) {
    if (scheduler.idle()) now = std::max(now, arrivals[next].at);
    for (; next < arrivals.size() && arrivals[next].at <= now; ++next) {
      GenerateRequest request;
      request.id = SequenceId{next + 1};
      request.prompt = arrivals[next].prompt;
      request.output_tokens_max = arrivals[next].output_tokens;
      if (!scheduler.submit(std::move(request))) std::exit(1);
    }
    const StepPlan plan =
        scheduler.plan(TimePoint() + std::chrono::milliseconds(static_cast<int64_t>(1000 * now)));
    sampled.clear();
    now += kStepSeconds;
    for (const PlannedSequence& one : plan.sequences) {
      now += kRowSeconds * static_cast<double>(one.rows.tokens.size());
      const auto token = static_cast<int32_t>((1 << 29) + static_cast<int32_t>(one.id));
      if (one.samples) sampled.push_back({one.id, one.rows.slot, {token, true, 0}, {}});
    }
    scheduler.commit({plan.step_id, sampled});
    for (const TokenEvent& event : scheduler.events()) {
      if (event.finish != FinishReason::kNone) ++reasons[static_cast<size_t>(event.usage.miss)];
    }
  }
  const SchedulerCounts& counts = scheduler.counts();
  const double found =
      static_cast<double>(counts.cached_tokens) / static_cast<double>(counts.prompt_tokens);
  std::printf(
      "| %7d | %-7s | %9d | %5.1f %% | %5.1f %% | %6.1f %% | %5lld | %9lld |", page_count,
      prefix == PrefixReplay::kExact ? "exact" : "bounded", snapshots, 100 * found,
      100 * found / most,
      100.0 * static_cast<double>(counts.replay_rows) / static_cast<double>(counts.prompt_tokens),
      static_cast<long long>(counts.snapshot_hits),
      static_cast<long long>(scheduler.cache().evictions()));
  for (int32_t reason = 0; reason < kReasonCount; ++reason) {
    if (reasons[reason] == 0) continue;
    std::printf(" %s %lld", miss_name(static_cast<MissReason>(reason)),
                static_cast<long long>(reasons[reason]));
  }
  std::printf(" |\n");
  std::fflush(stdout);
}

}  // namespace
}  // namespace galley::engine

int main(int argc, char** argv) {
  using namespace galley::engine;
  if (argc < 2) {
    std::fprintf(stderr, "usage: trace_hits TRACE.jsonl [shrink]\n");
    return 64;
  }
  const auto arrivals = read_trace(argv[1], argc > 2 ? std::atoi(argv[2]) : 8);
  const double most = bound(arrivals, 64);
  std::printf("%zu requests, unlimited cache: %.1f %% of prompt tokens\n", arrivals.size(),
              100 * most);
  std::printf(
      "| pages | replay | snapshots | found | of the bound | replayed | from snapshots | evictions "
      "| requests by miss |\n");
  for (const int32_t pages : {1024, 4096, 16384, 65536, 262144}) {
    replay(arrivals, pages, PrefixReplay::kBounded, 0, most);
  }
  for (const PrefixReplay prefix : {PrefixReplay::kBounded, PrefixReplay::kExact}) {
    for (const int32_t snapshots : {0, 64, 1024, 16384}) {
      replay(arrivals, 65536, prefix, snapshots, most);
    }
  }
  return 0;
}
