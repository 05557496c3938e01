// An Executor on this machine: model::Step, its cache, and the samplers.
//
// With async_scheduling it has a thread of its own, which takes the submitted steps
// in order and is the one that runs the kernels' thread pool; without, collect()
// computes on the caller's thread. The two threads meet in two step numbers: one
// wake-up a step each way, nothing per token. Everything else is the engine thread's.
//
// On a device that takes two steps, the second is begun while the first one runs, if the
// tokens that it needs are drawn there (Step::overlaps): the device then never waits for
// the host. Otherwise a step begins when the samples of the one before it are taken.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/result.h"
#include "engine/executor.h"
#include "engine/generator.h"
#include "engine/snapshot_memory.h"
#include "kernels/ops.h"
#include "model/kv_cache.h"
#include "model/model.h"
#include "model/step.h"

namespace galley::engine {

class LocalExecutor final : public Executor {
 public:
  // Sized for a generator with these options. `model` and `ops` outlive it.
  static Result<std::unique_ptr<LocalExecutor>> create(const model::Model& model, kernels::Ops& ops,
                                                       const GeneratorOptions& options);
  ~LocalExecutor() override;

  void start(const SequenceStart& start) override;
  Result<void> submit(const StepPlan& plan) override;
  void mask(uint64_t step_id, int32_t sequence, std::span<const uint64_t> allowed) override;
  Result<StepResult> collect() override;

 private:
  // One plan entry's bits, handed from the engine thread to the sampling one.
  struct Mask {
    std::atomic<uint32_t> given{0};
    std::span<const uint64_t> allowed;
  };
  // A submitted step and what comes of it; all reserved once.
  struct Flight {
    StepPlan plan;
    std::vector<model::SequencePlan> rows;
    std::vector<int32_t> tokens;              // by plan entry, where an earlier step samples them
    std::vector<kernels::DrawRequest> draws;  // by plan entry, where the kernels draw
    std::unique_ptr<Mask[]> masks;
    std::vector<SampledSequence> sampled;
    std::vector<TokenLogprob> top_logprobs;
    std::optional<Error> error;
  };
  // What a slot sampled last, and in which step.
  struct LastSample {
    uint64_t step_id = 0;
    int32_t token = 0;
  };

  LocalExecutor(const GeneratorOptions& options, std::unique_ptr<model::KvCache> cache,
                std::unique_ptr<SnapshotMemory> snapshots, std::unique_ptr<model::Step> step);

  void work();
  // The first half of a step, and the second one: waits for it, and samples.
  void begin(Flight& flight);
  void end(Flight& flight);
  // Whether `next` can begin while `flight` runs; its unknown tokens are then that one's draws.
  bool follows(const Flight& flight, Flight& next);
  Result<void> resolve_tokens(Flight& flight);
  // Rows whose tokens the kernels may draw.
  void plan_draws(Flight& flight);
  // The entry's token, from its row of the step's results.
  void sample(Flight& flight, size_t entry, const model::StepResult& step, int64_t row,
              SampledSequence& result);

  int32_t vocab_size_;
  std::unique_ptr<model::KvCache> cache_;
  std::unique_ptr<SnapshotMemory> snapshots_;
  std::unique_ptr<model::Step> step_;
  // By slot: the engine thread touches those of no step in flight.
  std::vector<std::optional<Sampler>> samplers_;
  std::vector<LastSample> last_samples_;
  std::vector<int32_t> row_of_slot_;  // of the step before, in follows()
  SamplerScratch scratch_;
  bool looks_ = false;  // collect() looks for a while before it sleeps: small steps of a device

  // Steps are counted here from 1, whatever their ids; a flight's place is its number's.
  std::array<Flight, kStepsInFlightMax> flights_;
  uint32_t collected_ = 0;
  std::atomic<uint32_t> submitted_{0};
  std::atomic<uint32_t> computed_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;  // last; none: collect() computes
};

// What a generator over this model is built with: the page size that suits its window, and
// pages for `sequences_max` sequences of `positions_max` tokens.
GeneratorOptions generator_options(const model::Config& config, int32_t sequences_max,
                                   int32_t rows_max, int64_t positions_max);
// How the cache is laid out under these options.
model::KvOptions kv_options(const model::Config& config, const GeneratorOptions& options);
// How its steps are, over a cache of `kv`.
model::StepOptions step_options(const model::KvOptions& kv, const GeneratorOptions& options);
// Snapshots in at most `memory_bytes` of host memory; after everything else in the options.
Result<void> size_snapshots(const model::Config& config, int64_t memory_bytes,
                            GeneratorOptions& options);

}  // namespace galley::engine
