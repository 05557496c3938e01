// Two layers of the released dimensions with random weights: their weights
// exceed any cache, so they run as the whole model does.
#include <cstdio>
#include <set>

#include "base/random.h"
#include "engine/local_executor.h"
#include "model/step.h"
#include "tools/bench_case.h"
#include "tools/interrupt.h"
#include "tools/step_work.h"
#include "tools/synthetic_model.h"

namespace galley::tools {
namespace {

constexpr int32_t kSequencesMax = 8;
constexpr int32_t kPrefillRows = 512;

// Which experts a step touched, over all layers.
class ExpertCount final : public model::StepObserver {
 public:
  void router(int32_t layer, const model::ObservedRows&, kernels::Rows<const int32_t> experts,
              F32Rows, std::span<const float>) override {
    for (int64_t row = 0; row < experts.rows; ++row) {
      for (int64_t i = 0; i < experts.cols; ++i) touched_.insert({layer, experts.row(row)[i]});
    }
  }
  size_t touched() const { return touched_.size(); }

 private:
  std::set<std::pair<int32_t, int32_t>> touched_;
};

class ReleasedBench {
 public:
  ReleasedBench(const SyntheticModel& synthetic, const Floors& floors,
                const ReleasedOptions& options, const ReportCase& report)
      : model_(synthetic.model()), floors_(floors), options_(options), report_(report) {}

  Result<void> prepare(Backend& backend) {
    const engine::GeneratorOptions sizes =
        engine::generator_options(model_.config(), kSequencesMax, kPrefillRows, options_.context);
    model::KvOptions kv;
    kv.page_tokens = sizes.page_tokens;
    cache_ = TRY(model::KvCache::create(model_.config(), kv, sizes.page_count, kSequencesMax,
                                        backend.ops->memory()));
    model::StepOptions step;
    step.rows_max = kPrefillRows;
    step.sequences_max = kSequencesMax;
    step.logit_rows_max = kSequencesMax;
    step.replay = model::DecoderReplay::kOff;
    step_ = TRY(model::Step::create(model_, *cache_, *backend.ops, step));
    threads_ = backend.pool->thread_count();
    fill_cache(model_.config(), *cache_, *backend.pool);
    const int64_t pages = cache_->layout().pages_for(options_.context);
    for (int64_t page = 0; page < pages * kSequencesMax; ++page) {
      page_table_.push_back(static_cast<int32_t>(page));
    }
    return {};
  }

  Result<void> measure(const std::string& name, int32_t sequences, int64_t rows_each,
                       const std::string& bar) {
    std::vector<double> touched;
    Error failure = {ErrorCode::kInvalid, ""};
    const auto once = [&]() -> double {
      plan(sequences, rows_each);
      // The same rows twice: first to see which experts they take, then against the clock.
      // Hundreds of rows take nearly all of them every time: looking once is enough.
      if (rows_each == 1 || touched.empty()) {
        ExpertCount count;
        const Result<model::StepResult> seen = step_->run(plans_, &count);
        if (!seen) failure = seen.error();
        touched.push_back(static_cast<double>(count.touched()));
      }
      const auto begin = std::chrono::steady_clock::now();
      const Result<model::StepResult> result = step_->run(plans_);
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    };
    BenchCase bench;
    bench.name = name;
    bench.shape = "released, Full and Reuse layer, " +
                  std::to_string(model_.config().routed_experts) + " experts each";
    bench.rows = sequences * rows_each;
    bench.sequences = sequences;
    bench.context = options_.context;
    bench.threads = threads_;
    bench.samples = rows_each > 1 ? std::max(3, options_.samples / 3) : options_.samples;
    bench.median_s = median_seconds(rows_each > 1 ? 1 : 3, bench.samples, once);
    if (!failure.message.empty()) return failure;
    if (interrupted()) return Error{ErrorCode::kCancelled, "interrupted"};
    double sum = 0;
    for (const double value : touched) sum += value;
    const Work work = StepWork(model_.config())
                          .of({.rows = bench.rows,
                               .sequences = sequences,
                               .logit_rows = sequences,
                               .first_position = options_.context - rows_each,
                               .experts_touched = sum / static_cast<double>(touched.size())});
    bench.bytes = work.bytes();
    bench.operations = work.operations();
    bench.bar = bar;
    report_(bench);
    return {};
  }

  // Whether the bar is met is said with the floors at hand.
  const Floors& floors() const { return floors_; }

 private:
  void plan(int32_t sequences, int64_t rows_each) {
    tokens_.resize(static_cast<size_t>(sequences * rows_each));
    for (int32_t& token : tokens_) {
      token = static_cast<int32_t>(random_unit(1, draws_++) * model_.config().vocab_size);
    }
    const int64_t pages = cache_->layout().pages_for(options_.context);
    plans_.clear();
    for (int32_t i = 0; i < sequences; ++i) {
      model::SequencePlan plan;
      plan.slot = i;
      plan.kind = rows_each > 1 ? model::RowKind::kPrefill : model::RowKind::kDecode;
      plan.first_position = options_.context - rows_each;
      plan.tokens = std::span<const int32_t>(tokens_).subspan(static_cast<size_t>(i * rows_each),
                                                              static_cast<size_t>(rows_each));
      plan.page_table = std::span<const int32_t>(page_table_)
                            .subspan(static_cast<size_t>(i * pages), static_cast<size_t>(pages));
      plan.logits_begin = rows_each - 1;
      plans_.push_back(plan);
    }
  }

  const model::Model& model_;
  const Floors& floors_;
  const ReleasedOptions& options_;
  const ReportCase& report_;
  int32_t threads_ = 0;
  std::unique_ptr<model::KvCache> cache_;
  std::unique_ptr<model::Step> step_;
  std::vector<int32_t> page_table_;
  std::vector<int32_t> tokens_;
  std::vector<model::SequencePlan> plans_;
  uint64_t draws_ = 0;
};

}  // namespace

Result<void> bench_released(Backend& backend, const Floors& floors, const ReleasedOptions& options,
                            const ReportCase& report) {
  const model::Config one = TRY(released_layers_config(1 + 6));
  const auto experts = static_cast<int32_t>(
      std::max<int64_t>(one.experts_per_token, options.expert_bytes_max / 2 / expert_bytes(one)));
  const model::Config config = TRY(released_layers_config(experts));
  std::fprintf(stderr, "galley bench: making %d experts a layer of the released shape\n", experts);
  const std::unique_ptr<SyntheticModel> synthetic =
      TRY(SyntheticModel::create(config, *backend.pool));
  ReleasedBench bench(*synthetic, floors, options, report);
  TRY(bench.prepare(backend));
  TRY(bench.measure("released_decode_1", 1, 1, "bytes at 70 % of read bandwidth"));
  TRY(bench.measure("released_decode_8", 8, 1, "within 1.3 of the bytes floor"));
  return bench.measure("released_prefill_512", 1, kPrefillRows, "half of the dot peak");
}

}  // namespace galley::tools
