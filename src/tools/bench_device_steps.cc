// Whole steps of the released shape on a card: prefill, decode as one rank of 64, and decode of a
// few sequences with all experts.
//
// Random weights, one layer of each role aliased over 40 (synthetic_model.h): every layer reads
// more than the L2 holds, and the layer loop, the cache and the head are those of the whole model.
// Steps follow each other as the engine submits them, the next one while one runs, with the tokens
// that were drawn on the card; their time is that between two results on the host. Verify rows,
// whose tokens a host would choose, are timed from their plan to their logits in host memory.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>

#include "base/random.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/kernel_bench.h"
#include "model/step.h"
#include "tools/bench_case.h"
#include "tools/exchange_cost.h"
#include "tools/interrupt.h"
#include "tools/progress.h"
#include "tools/rank_ops.h"
#include "tools/step_work.h"
#include "tools/synthetic_model.h"
#include "tools/throughput_at.h"

namespace galley::tools {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr int32_t kPrefillRows = 16'384;
constexpr int32_t kSequencesMax = 256;
constexpr int32_t kVerifyRows = 6;  // five drafts and the row before them
constexpr int64_t kContextMax = 65'536;
constexpr int32_t kTemplatePages = 64;
constexpr int32_t kRankExperts = 7;  // six of 384 a rank, and one more that is replicated
constexpr int32_t kRanks = 64;

// Of others, on their machines (docs/benchmarks.md).
constexpr const char* kPrefillPeer = "DeepInfer, SM100: 60,000 to 82,000 tokens/s";
constexpr const char* kDecodePeer =
    "DeepInfer, SM100: 15,700 tokens/s/GPU at 240 tokens/s/user, 26,000 at 100";

double rounded(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return std::strtod(text, nullptr);
}

// One sequence's rows of a step.
struct Rows {
  int32_t slot = 0;
  int64_t first_position = 0;
  int64_t count = 1;
  int64_t tail_begin = 0;
  int64_t logits = 1;  // of the last rows
};

class DeviceSteps {
 public:
  DeviceSteps(const model::Model& model, Backend& backend, const DeviceStepOptions& options,
              const kernels::cuda::KernelFloors& floors, std::string device)
      : model_(model),
        config_(model.config()),
        ops_(*backend.ops),
        pool_(*backend.pool),
        options_(options),
        work_(config_),
        peaks_{.bytes_per_s = floors.bytes_per_s,
               .fp8_operations_per_s = floors.fp8_operations_per_s,
               .bf16_operations_per_s = floors.fp8_operations_per_s / 2},
        device_(std::move(device)) {}

  // Prefill last: it leaves a hot card, on which few rows are slower for a second or two.
  Result<void> run() {
    TRY(make_cache());
    if (options_.wants("small")) {
      TRY(make_step(ops_, kSequencesMax, kSequencesMax, 0));
      for (const int32_t sequences : {1, 2, 4, 8}) TRY(decode_few(sequences));
      step_.reset();
    }
    if (options_.wants("rank")) TRY(decode_ranks());
    if (options_.wants("prefill")) {
      TRY(make_step(ops_, kPrefillRows, kSequencesMax, 0));
      for (const int64_t prompt : {4096, 16'384, 65'536}) TRY(prefill(prompt));
      step_.reset();
    }
    return {};
  }

 private:
  // Random records in every page and slot: a few made here, the others copied on the card.
  Result<void> make_cache() {
    model::KvOptions kv;
    kv.verify_rows_max = kVerifyRows + 2;
    pages_each_ = TRY(model::KvLayout::create(config_, kv)).pages_for(kContextMax);
    const auto pages = static_cast<int32_t>(pages_each_ * kSequencesMax);
    const std::unique_ptr<model::KvCache> made =
        TRY(model::KvCache::create(config_, kv, kTemplatePages, 1, kernels::host_memory()));
    fill_cache(config_, *made, pool_);
    cache_ = TRY(model::KvCache::create(config_, kv, pages, kSequencesMax, ops_.memory()));
    const model::KvLayout& layout = cache_->layout();
    for (int32_t page = 0; page < kTemplatePages; ++page) {
      ops_.memory().write(cache_->page(page), made->page(page), layout.page_stride);
    }
    ops_.memory().write(cache_->slot(0), made->slot(0), layout.slot_bytes);
    std::vector<kernels::RowCopy> copies;
    for (int32_t page = kTemplatePages; page < pages; ++page) {
      copies.push_back(
          {cache_->page(page % kTemplatePages), cache_->page(page), layout.page_stride});
    }
    for (int32_t slot = 1; slot < kSequencesMax; ++slot) {
      copies.push_back({cache_->slot(0), cache_->slot(slot), layout.slot_bytes});
    }
    constexpr size_t kBatch = 16'384;
    for (size_t begin = 0; begin < copies.size(); begin += kBatch) {
      ops_.begin_step();
      ops_.copy(std::span(copies).subspan(begin, std::min(kBatch, copies.size() - begin)));
      TRY(ops_.finish());
    }
    page_table_.resize(static_cast<size_t>(pages));
    std::iota(page_table_.begin(), page_table_.end(), 0);
    return {};
  }

  Result<void> make_step(kernels::Ops& ops, int32_t rows, int32_t logit_rows, int32_t experts) {
    model::StepOptions options;
    options.rows_max = rows;
    options.sequences_max = kSequencesMax;
    options.logit_rows_max = logit_rows;
    options.positions_max = kContextMax;
    options.expert_count = experts;
    options.on_upload = show_upload();
    step_.reset();
    step_ = TRY(model::Step::create(model_, *cache_, ops, options));
    std::fprintf(stderr, "galley bench: folded weights: %lld values rounded, %lld blocks kept\n",
                 static_cast<long long>(step_->folded_values_rounded()),
                 static_cast<long long>(step_->folded_misfits()));
    return {};
  }

  // What requests without cuts and penalties ask for: the draw is part of the step.
  static constexpr kernels::DrawRequest kDraw = {.temperature = 1.0F, .seed = 7};

  // The plans of a step and what they borrow.
  struct Planned {
    std::vector<int32_t> tokens;
    std::vector<model::SequencePlan> plans;
  };

  // `drawn`: each sequence's only token is what its row of the step before draws.
  void plan_step(std::span<const Rows> rows, model::RowKind kind, bool drawn, Planned& step) {
    int64_t count = 0;
    for (const Rows& one : rows) count += one.count;
    constexpr int64_t kLookBack = 3;
    step.tokens.resize(static_cast<size_t>(count + kLookBack));
    const std::span<int32_t> tokens = step.tokens;
    for (int32_t& token : tokens) {
      token = static_cast<int32_t>(random_unit(1, draws_++) * config_.vocab_size);
    }
    step.plans.clear();
    int64_t begin = kLookBack;
    for (const Rows& one : rows) {
      model::SequencePlan plan;
      plan.slot = one.slot;
      plan.kind = kind;
      plan.first_position = one.first_position;
      plan.tokens = tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(one.count));
      if (drawn) plan.token_row = static_cast<int32_t>(std::ssize(step.plans));
      if (one.first_position > 0) {
        plan.look_back =
            tokens.subspan(static_cast<size_t>(begin - kLookBack), static_cast<size_t>(kLookBack));
      }
      plan.page_table = std::span<const int32_t>(page_table_)
                            .subspan(static_cast<size_t>(one.slot * pages_each_),
                                     static_cast<size_t>(pages_each_));
      plan.tail_begin = one.tail_begin;
      plan.tail_floor = one.tail_begin;
      if (one.logits > 0) plan.logits_begin = one.count - one.logits;
      plan.draw = &kDraw;
      step.plans.push_back(plan);
      begin += one.count;
    }
  }

  // How the steps of a measurement follow each other.
  enum class Pace : uint8_t {
    kAlone,  // each from its plan to its result
    kKnown,  // submitted ahead, with tokens that are known
    kDrawn,  // submitted ahead, with the tokens that the step before draws
  };

  // Median over samples of the seconds that some steps take together.
  Result<double> median(std::span<const std::vector<Rows>> steps, model::RowKind kind, Pace pace,
                        int32_t warm_ups, int32_t samples) {
    std::vector<double> seconds;
    Clock::time_point last = Clock::now();
    const int64_t count = std::ssize(steps);
    const auto collect = [&](int64_t number) -> Result<void> {
      TRY(step_->collect());
      if ((number + 1) % count != 0) return {};
      const Clock::time_point now = Clock::now();
      if (number / count >= warm_ups && std::ssize(seconds) < samples) {
        seconds.push_back(std::chrono::duration<double>(now - last).count());
      }
      last = now;
      return {};
    };
    // Steps submitted ahead: as many behind the last sample as in front of it, since a large step's
    // host takes its time before it collects.
    const int64_t all = (warm_ups + samples + (pace == Pace::kAlone ? 0 : 1)) * count;
    for (int64_t number = 0; number < all; ++number) {
      if (interrupted()) return Error{ErrorCode::kCancelled, "interrupted"};
      Planned& step = planned_[number % 2];
      plan_step(steps[static_cast<size_t>(number % count)], kind,
                pace == Pace::kDrawn && number > 0, step);
      if (pace == Pace::kAlone && number % count == 0) last = Clock::now();
      TRY(step_->submit(step.plans));
      if (pace == Pace::kAlone) TRY(collect(number));
      if (step_->in_flight() == 2) TRY(collect(number - 1));
    }
    if (step_->in_flight() > 0) TRY(collect(all - 1));
    std::ranges::nth_element(seconds, seconds.begin() + samples / 2);
    return seconds[static_cast<size_t>(samples / 2)];
  }

  Result<void> prefill(int64_t prompt) {
    const int64_t sequences = std::max<int64_t>(1, kPrefillRows / prompt);
    const int64_t chunk = std::min<int64_t>(prompt, kPrefillRows);
    const int64_t tail =
        model::decoder_floor(model::DecoderReplay::kWindowAndGlobal, config_.window, 0, prompt);
    std::vector<std::vector<Rows>> steps;
    Floor floor;
    for (int64_t begin = 0; begin < prompt; begin += chunk) {
      const bool last = begin + chunk == prompt;
      std::vector<Rows>& rows = steps.emplace_back();
      for (int64_t i = 0; i < sequences; ++i) {
        rows.push_back({.slot = static_cast<int32_t>(i),
                        .first_position = begin,
                        .count = chunk,
                        .tail_begin = std::max(begin, tail),
                        .logits = last ? 1 : 0});
      }
      const int64_t tail_rows = last ? sequences * config_.window : 0;
      const auto cut = static_cast<double>(config_.decoder_source());
      const double touched =
          cut * StepWork::distinct_experts(config_, static_cast<double>(kPrefillRows)) +
          (config_.layers - cut) *
              StepWork::distinct_experts(config_, static_cast<double>(tail_rows));
      const Floor step = floor_of(work_.of({.rows = sequences * chunk,
                                            .sequences = sequences,
                                            .logit_rows = last ? sequences : 0,
                                            .first_position = begin,
                                            .experts_touched = touched,
                                            .tail_rows = tail_rows}),
                                  peaks_);
      floor.bytes_s += step.bytes_s;
      floor.operations_s += step.operations_s;
    }
    const int32_t samples = options_.quick ? 1 : 3;
    const double seconds = TRY(median(steps, model::RowKind::kPrefill, Pace::kKnown, 2, samples));
    const double tokens_per_s = static_cast<double>(sequences * prompt) / seconds;
    Json json = begin_case("prefill", "16k-token steps, decoder replay (b)");
    json["prompt"] = prompt;
    json["sequences"] = sequences;
    json["ms"] = rounded(1e3 * seconds);
    json["tokens_per_s"] = rounded(tokens_per_s);
    end_case(json, seconds, floor, "34,000 tokens/s, aim 42,000", tokens_per_s >= 34'000);
    json["peer"] = kPrefillPeer;
    print(json);
    return {};
  }

  std::vector<std::vector<Rows>> decode_rows(int32_t sequences, int32_t each, int64_t context,
                                             bool logits) const {
    std::vector<std::vector<Rows>> steps(1);
    for (int32_t i = 0; i < sequences; ++i) {
      steps[0].push_back({.slot = i,
                          .first_position = context - each,
                          .count = each,
                          .tail_begin = 0,
                          .logits = logits ? each : 0});
    }
    return steps;
  }

  Result<void> decode_few(int32_t sequences) {
    constexpr int64_t kContext = 4096;
    const auto rows = decode_rows(sequences, 1, kContext, true);
    const double seconds =
        TRY(median(rows, model::RowKind::kDecode, Pace::kDrawn, 8, options_.quick ? 9 : 31));
    const Floor floor =
        floor_of(work_.of({.rows = sequences,
                           .sequences = sequences,
                           .logit_rows = sequences,
                           .first_position = kContext - 1,
                           .experts_touched =
                               config_.layers * StepWork::distinct_experts(
                                                    config_, static_cast<double>(sequences))}),
                 peaks_);
    Json json = begin_case("decode_few", "all 40 layers, 384 experts, two sets of them aliased");
    json["sequences"] = sequences;
    json["context"] = kContext;
    json["ms"] = rounded(1e3 * seconds);
    json["tokens_per_s_user"] = rounded(1 / seconds);
    end_case(json, seconds, floor, "1.6 times the bytes' floor", seconds <= 1.6 * floor.bytes_s);
    print(json);
    return {};
  }

  Result<void> decode_ranks() {
    const int32_t rows = kSequencesMax * kVerifyRows;
    const std::unique_ptr<RankOps> rank =
        TRY(RankOps::create(ops_, kRankExperts, config_.experts_per_token, rows));
    TRY(make_step(*rank, rows, rows, kRankExperts));
    for (const int64_t context : {int64_t{4096}, kContextMax}) {
      for (const int32_t each : {1, kVerifyRows}) {
        std::vector<BatchTime> times;
        for (const int32_t sequences : {64, 128, 256}) {
          times.push_back(TRY(decode_rank(sequences, each, context)));
        }
        report_throughput(times, each, context);
      }
    }
    step_.reset();
    return {};
  }

  Result<BatchTime> decode_rank(int32_t sequences, int32_t each, int64_t context) {
    const auto kind = each > 1 ? model::RowKind::kVerify : model::RowKind::kDecode;
    const int32_t samples = options_.quick ? 5 : 9;
    const double seconds = TRY(median(decode_rows(sequences, each, context, true), kind,
                                      each > 1 ? Pace::kAlone : Pace::kDrawn, 8, samples));
    const double without_logits = TRY(median(decode_rows(sequences, each, context, false), kind,
                                             each > 1 ? Pace::kAlone : Pace::kKnown, 8, samples));
    const int64_t rows = int64_t{sequences} * each;
    const Work work =
        work_.of({.rows = rows,
                  .sequences = sequences,
                  .logit_rows = rows,
                  .first_position = context - each,
                  .experts_touched = static_cast<double>(config_.layers * kRankExperts)});
    const Floor floor = floor_of(work, peaks_);
    Work rest = work;
    std::erase_if(rest.parts, [](const PartWork& part) { return part.name == "head"; });
    const Floor rest_floor = floor_of(rest, peaks_);
    const ExchangeCost exchange = exchange_cost(config_, rows, options_.rates);
    const double tokens_each = each > 1 ? static_cast<double>(options_.accepted) : 1.0;
    const double overlapped = std::max(seconds, exchange.seconds);
    Json json = begin_case("decode_rank", "one rank of 64, 7 experts a layer, all 40 layers");
    json["sequences"] = sequences;
    json["rows_each"] = each;
    json["context"] = context;
    json["ms"] = rounded(1e3 * seconds);
    json["without_logits_ms"] = rounded(1e3 * without_logits);
    json["without_logits_ratio"] = rounded(without_logits / rest_floor.s());
    json["exchange_ms"] = rounded(1e3 * exchange.seconds);
    json["exchange"] = "by arithmetic, not measured: bytes over NVLink and RDMA, all overlapped";
    json["tokens_a_step"] = tokens_each;
    json["tokens_per_s_user"] = rounded(tokens_each / overlapped);
    json["tokens_per_s_gpu"] = rounded(sequences * tokens_each / overlapped);
    const double bar = each > 1 ? 1.8 : 1.6;
    end_case(json, seconds, floor, each > 1 ? "1.8 times the floor" : "1.6 times the floor",
             seconds <= bar * floor.s());
    print(json);
    return BatchTime{.sequences = static_cast<double>(sequences),
                     .seconds = overlapped,
                     .tokens_each = tokens_each};
  }

  void report_throughput(std::span<const BatchTime> times, int32_t each, int64_t context) const {
    Json json = begin_case("throughput", "one rank of 64, between the measured batches");
    json["rows_each"] = each;
    json["context"] = context;
    for (const int32_t speed : {240, 100}) {
      const auto tokens = throughput_at(times, speed);
      const std::string key = "tokens_per_s_gpu_at_" + std::to_string(speed) + "_per_user";
      json[key] = tokens ? Json(rounded(*tokens)) : Json(nullptr);
    }
    json["peer"] = kDecodePeer;
    print(json);
  }

  Json begin_case(const char* name, const char* shape) const {
    Json json;
    json["case"] = std::string("released_") + name;
    json["shape"] = shape;
    return json;
  }
  void end_case(Json& json, double seconds, const Floor& floor, const char* bar, bool met) const {
    json["floor_ms"] = rounded(1e3 * floor.s());
    json["floor"] = floor.bytes_s >= floor.operations_s ? "bytes" : "operations";
    json["bytes_floor_ms"] = rounded(1e3 * floor.bytes_s);
    json["operations_floor_ms"] = rounded(1e3 * floor.operations_s);
    json["ratio"] = rounded(seconds / floor.s());
    json["bar"] = bar;
    json["met"] = met;
    json["read_bytes_per_s"] = rounded(peaks_.bytes_per_s);
    json["fp8_operations_per_s"] = rounded(peaks_.fp8_operations_per_s);
    json["device"] = device_;
  }
  static void print(const Json& json) {
    std::puts(json.dump().c_str());
    std::fflush(stdout);
  }

  const model::Model& model_;
  const model::Config& config_;
  kernels::Ops& ops_;
  ThreadPool& pool_;
  const DeviceStepOptions& options_;
  const StepWork work_;
  const Peaks peaks_;
  const std::string device_;
  int64_t pages_each_ = 0;
  std::unique_ptr<model::KvCache> cache_;
  std::unique_ptr<model::Step> step_;
  std::vector<int32_t> page_table_;
  Planned planned_[2];  // of the steps in flight
  uint64_t draws_ = 0;
};

}  // namespace

Result<void> bench_device_steps(Backend& backend, const DeviceStepOptions& options) {
  const kernels::cuda::DeviceProperties device = TRY(kernels::cuda::open_device(0));
  std::fprintf(stderr, "galley bench: measuring the floors of %s\n", device.name.c_str());
  const kernels::cuda::KernelFloors floors = TRY(kernels::cuda::measure_kernel_floors());
  const model::Config config = TRY(released_whole_config());
  std::fprintf(stderr, "galley bench: making 18 GB of random weights\n");
  const std::unique_ptr<SyntheticModel> synthetic =
      TRY(SyntheticModel::create(config, *backend.pool, alias_by_role(config)));
  return DeviceSteps(synthetic->model(), backend, options, floors, device.name).run();
}

}  // namespace galley::tools
