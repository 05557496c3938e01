// Prefill of the released shape on two cards that share the experts, against the same two cards
// each with all of them, at the same rows a card: `galley bench --shape released --part ep2`.
//
// Random weights, one layer of each role aliased over 40 (synthetic_model.h). A rank is a thread
// with a card, a step alone and a step with the other rank. The two kinds take turns, so that the
// cards' clocks, which heat and a limit of power hold down, are the same for both; ranks begin
// every step together, and a step of both is over when the slower one is. The logits of both ranks
// are compared with those of their card alone, bit for bit. Where there is one card both ranks are
// on it and are alone one after the other: that shows what sharing costs a card beside its
// products, not the link.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <thread>

#include "base/random.h"
#include "cluster/expert_parallel.h"
#include "cluster/local_ranks.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device.h"
#include "model/step.h"
#include "tools/bench_case.h"
#include "tools/interrupt.h"
#include "tools/synthetic_model.h"

namespace galley::tools {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr int32_t kRows = 16'384;  // of a step, each card
constexpr int32_t kRanks = 2;
constexpr int32_t kWarmUps = 2;  // of each kind: first steps allocate, and a cold card is faster
constexpr int64_t kPrompts[] = {4096, 16'384};

// Of one prompt length: seconds of each sample, logits of the last step alone and shared, and what
// kernels waited for in all samples together.
struct RankResult {
  std::vector<double> alone;
  std::vector<double> shared;
  std::vector<float> alone_logits;
  std::vector<float> shared_logits;
  cluster::ExpertParallelOps::Waits waits;
};

// A card's cache and step, with all experts or its share of them.
class PrefillRank {
 public:
  PrefillRank(const model::Model& model, kernels::Ops& ops,
              const cluster::ExpertParallelOps* shared = nullptr)
      : model_(model), config_(model.config()), ops_(ops), shared_(shared) {}

  Result<void> make_step() {
    const int64_t longest = *std::ranges::max_element(kPrompts);
    const model::KvOptions kv;
    pages_each_ = TRY(model::KvLayout::create(config_, kv)).pages_for(longest);
    const auto sequences = static_cast<int32_t>(kRows / *std::ranges::min_element(kPrompts));
    const auto pages = static_cast<int32_t>(pages_each_ * sequences);
    cache_ = TRY(model::KvCache::create(config_, kv, pages, sequences, ops_.memory()));
    page_table_.resize(static_cast<size_t>(pages));
    std::iota(page_table_.begin(), page_table_.end(), 0);
    model::StepOptions options;
    options.rows_max = kRows;
    options.sequences_max = sequences;
    options.logit_rows_max = sequences;
    options.positions_max = longest;
    if (shared_ != nullptr) {
      options.expert_first = shared_->spread().first();
      options.expert_count = shared_->spread().each;
    }
    step_ = TRY(model::Step::create(model_, *cache_, ops_, options));
    return {};
  }

  // Its seconds.
  Result<double> run(int64_t prompt, uint64_t seed, std::vector<float>& logits) {
    if (interrupted()) return Error{ErrorCode::kCancelled, "interrupted"};
    const int64_t sequences = kRows / prompt;
    tokens_.resize(static_cast<size_t>(kRows));
    for (size_t i = 0; i < tokens_.size(); ++i) {
      tokens_[i] = static_cast<int32_t>(random_unit(seed, i) * config_.vocab_size);
    }
    const int64_t tail =
        model::decoder_floor(model::DecoderReplay::kWindowAndGlobal, config_.window, 0, prompt);
    std::vector<model::SequencePlan> plans(static_cast<size_t>(sequences));
    for (int64_t i = 0; i < sequences; ++i) {
      model::SequencePlan& plan = plans[static_cast<size_t>(i)];
      plan.slot = static_cast<int32_t>(i);
      plan.kind = model::RowKind::kPrefill;
      plan.tokens = std::span<const int32_t>(tokens_).subspan(static_cast<size_t>(i * prompt),
                                                              static_cast<size_t>(prompt));
      plan.page_table =
          std::span<const int32_t>(page_table_)
              .subspan(static_cast<size_t>(i * pages_each_), static_cast<size_t>(pages_each_));
      plan.tail_begin = tail;
      plan.tail_floor = tail;
      plan.logits_begin = prompt - 1;
    }
    const Clock::time_point start = Clock::now();
    const model::StepResult result = TRY(step_->run(plans));
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    logits.clear();
    for (int64_t row = 0; row < result.logits.rows; ++row) {
      const float* from = result.logits.row(row);
      logits.insert(logits.end(), from, from + result.logits.cols);
    }
    return seconds;
  }

 private:
  const model::Model& model_;
  const model::Config& config_;
  kernels::Ops& ops_;
  const cluster::ExpertParallelOps* const shared_;
  int64_t pages_each_ = 0;
  std::unique_ptr<model::KvCache> cache_;
  std::unique_ptr<model::Step> step_;
  std::vector<int32_t> page_table_;
  std::vector<int32_t> tokens_;
};

// One rank of two, on its own thread: one result a prompt length.
Result<std::vector<RankResult>> run_rank(const model::Model& model, int32_t rank, int32_t cards,
                                         cluster::LocalRanks& group, int32_t samples) {
  const std::unique_ptr<cluster::Collectives> self = group.join(rank);
  const int32_t card = rank % cards;
  const std::unique_ptr<kernels::Ops> lone = TRY(kernels::cuda::make_cuda_ops(card));
  const std::unique_ptr<kernels::Ops> inner = TRY(kernels::cuda::make_cuda_ops(card));
  for (int32_t other = 0; other < cards; ++other) {
    if (other != card) TRY(kernels::cuda::reach_device(other));
  }
  const std::unique_ptr<cluster::ExpertParallelOps> sharing =
      TRY(cluster::ExpertParallelOps::create(*inner, *self, model.config().routed_experts));
  PrefillRank alone(model, *lone);
  PrefillRank shared(model, *sharing, sharing.get());
  TRY(alone.make_step());
  TRY(shared.make_step());

  const auto seed = static_cast<uint64_t>(rank);
  std::vector<RankResult> results;
  for (const int64_t prompt : kPrompts) {
    RankResult& result = results.emplace_back();
    const auto run_alone = [&]() -> Result<double> {
      double seconds = 0;
      for (int32_t turn = 0; turn < kRanks; turn += cards) {  // one card: one after the other
        TRY(self->exchange(0));
        if (cards == kRanks || turn == rank) {
          seconds = TRY(alone.run(prompt, seed, result.alone_logits));
        }
      }
      return seconds;
    };
    const auto run_shared = [&]() -> Result<double> {
      TRY(self->exchange(0));
      const cluster::ExpertParallelOps::Waits before = sharing->waits();
      const double seconds = TRY(shared.run(prompt, seed, result.shared_logits));
      const cluster::ExpertParallelOps::Waits after = sharing->waits();
      result.waits.input_ns += after.input_ns - before.input_ns;
      result.waits.parts_ns += after.parts_ns - before.parts_ns;
      return seconds;
    };
    for (int32_t i = 0; i < kWarmUps; ++i) {
      TRY(run_alone());
      TRY(run_shared());
    }
    result.waits = {};
    for (int32_t sample = 0; sample < samples; ++sample) {
      const bool shared_first = sample % 2 == 1;
      if (shared_first) result.shared.push_back(TRY(run_shared()));
      result.alone.push_back(TRY(run_alone()));
      if (!shared_first) result.shared.push_back(TRY(run_shared()));
      std::fprintf(
          stderr, "galley bench: rank %d, prompts of %lld: alone %.1f ms, shared %.1f ms\n", rank,
          static_cast<long long>(prompt), 1e3 * result.alone.back(), 1e3 * result.shared.back());
    }
  }
  return results;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

Result<void> bench_device_pair(Backend& backend, const DeviceStepOptions& options) {
  const auto devices = TRY(kernels::cuda::list_devices());
  const auto cards = static_cast<int32_t>(std::min<int64_t>(std::ssize(devices), kRanks));
  const model::Config config = TRY(released_whole_config());
  std::fprintf(stderr, "galley bench: making 18 GB of random weights\n");
  const std::unique_ptr<SyntheticModel> synthetic =
      TRY(SyntheticModel::create(config, *backend.pool, alias_by_role(config)));
  const model::Model& model = synthetic->model();
  const int32_t samples = options.quick ? 3 : 7;
  backend.ops.reset();

  std::fprintf(stderr, "galley bench: two ranks, cards: %d\n", cards);
  cluster::LocalRanks group(kRanks);
  std::vector<std::optional<Result<std::vector<RankResult>>>> both(kRanks);
  {
    std::vector<std::jthread> threads;
    for (int32_t rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        both[static_cast<size_t>(rank)] = run_rank(model, rank, cards, group, samples);
      });
    }
  }
  // Whose error is the cause, and not that the other one ended.
  for (const auto& rank : both) {
    if (!*rank && rank->error().message.find("another rank") == std::string::npos) {
      return rank->error();
    }
  }
  for (const auto& rank : both) {
    if (!*rank) return rank->error();
  }

  for (size_t i = 0; i < std::size(kPrompts); ++i) {
    const RankResult& first = (**both[0])[i];
    const RankResult& second = (**both[1])[i];
    std::vector<double> slower;
    for (size_t sample = 0; sample < first.shared.size(); ++sample) {
      slower.push_back(std::max(first.shared[sample], second.shared[sample]));
    }
    const double two = median(slower);
    const double one[kRanks] = {median(first.alone), median(second.alone)};
    const double steps_alone =
        cards == kRanks ? 1 / one[0] + 1 / one[1] : kRanks / (one[0] + one[1]);  // a second
    const auto waited_ms = [&](uint64_t cluster::ExpertParallelOps::Waits::*kind) {
      const auto most = std::max(first.waits.*kind, second.waits.*kind);
      return 1e-6 * static_cast<double>(most) / samples;
    };
    const double input_ms = waited_ms(&cluster::ExpertParallelOps::Waits::input_ns);
    const double parts_ms = waited_ms(&cluster::ExpertParallelOps::Waits::parts_ns);
    const double ratio = kRanks / two / steps_alone;  // 1: nothing is lost
    Json json;
    json["case"] = "released_prefill_ep2";
    json["shape"] = "16k-token steps a rank, decoder replay (b), 192 experts a rank";
    json["prompt"] = kPrompts[i];
    json["sequences_a_rank"] = kRows / kPrompts[i];
    json["alone_ms"] = {rounded(1e3 * one[0]), rounded(1e3 * one[1])};
    json["cards"] = cards;
    json["two_ranks_ms"] = rounded(1e3 * two);
    json["tokens_per_s_alone"] = rounded(kRows * steps_alone);
    json["tokens_per_s_two_ranks"] = rounded(kRanks * kRows / two);
    json["of_cards_alone"] = rounded(ratio);
    if (cards == kRanks) {
      json["waited_for_rows_ms"] = rounded(input_ms);
      json["waited_for_results_ms"] = rounded(parts_ms);
      json["waited_share"] = rounded((input_ms + parts_ms) / (1e3 * two));
    }
    json["bits_of_one_card"] = same_bits(first.shared_logits, first.alone_logits) &&
                               same_bits(second.shared_logits, second.alone_logits);
    json["bar"] = "0.9 of two cards alone";
    json["met"] = cards == kRanks ? Json(ratio >= 0.9) : Json(nullptr);  // no link was measured
    json["device"] = devices[0].name;
    std::puts(json.dump().c_str());
    std::fflush(stdout);
  }
  return {};
}

}  // namespace galley::tools
