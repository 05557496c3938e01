#include "engine/local_executor.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <ranges>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/thread_name.h"
#include "model/device_room.h"

namespace galley::engine {
namespace {

// Steps of more rows take the host longer to begin than a small step takes altogether: behind one,
// they wait for its results to be handed on.
constexpr int64_t kSmallStepRows = 512;

int64_t row_count(std::span<const model::SequencePlan> plans) {
  int64_t rows = 0;
  for (const model::SequencePlan& plan : plans) rows += std::ssize(plan.tokens);
  return rows;
}

// Waking a thread takes up to a tenth of a millisecond, of which small steps of a device take four
// to nine: so long the engine looks again and again whether one is over.
constexpr std::chrono::microseconds kLookFor{1000};

// Of a model without compressed KV, whose pages are empty.
constexpr int64_t kBlockBytesMin = 4096;

}  // namespace

Result<std::unique_ptr<LocalExecutor>> LocalExecutor::create(const model::Model& model,
                                                             kernels::Ops& ops,
                                                             const GeneratorOptions& options) {
  const model::KvOptions kv = kv_options(model.config(), options);
  const model::StepOptions step_of = step_options(kv, options);
  if (!ops.memory().is_host()) {
    const model::DeviceNeeds needs = TRY(model::device_needs(
        model, kv, {.page_count = options.page_count, .slot_count = options.sequences_max}, step_of,
        ops));
    TRY(model::check_device_room(needs, ops.memory().free_bytes()));
  }
  std::unique_ptr<model::KvCache> cache = TRY(model::KvCache::create(
      model.config(), kv, options.page_count, options.sequences_max, ops.memory()));
  std::unique_ptr<SnapshotMemory> snapshots =
      TRY(SnapshotMemory::create(options.snapshot_blocks, options.block_bytes));
  std::unique_ptr<model::Step> step = TRY(model::Step::create(model, *cache, ops, step_of));
  std::unique_ptr<LocalExecutor> executor(
      new LocalExecutor(options, std::move(cache), std::move(snapshots), std::move(step)));
  executor->looks_ = ops.overlaps_steps();
  return executor;
}

LocalExecutor::LocalExecutor(const GeneratorOptions& options, std::unique_ptr<model::KvCache> cache,
                             std::unique_ptr<SnapshotMemory> snapshots,
                             std::unique_ptr<model::Step> step)
    : vocab_size_(options.vocab_size),
      cache_(std::move(cache)),
      snapshots_(std::move(snapshots)),
      step_(std::move(step)),
      samplers_(static_cast<size_t>(options.sequences_max)),
      last_samples_(static_cast<size_t>(options.sequences_max)),
      row_of_slot_(static_cast<size_t>(options.sequences_max)),
      scratch_(options.vocab_size) {
  const auto sequences = static_cast<size_t>(options.sequences_max);
  for (Flight& flight : flights_) {
    flight.rows.reserve(sequences);
    flight.tokens.resize(sequences);
    flight.draws.resize(sequences);
    flight.masks = std::make_unique<Mask[]>(sequences);
    flight.sampled.reserve(sequences);
    flight.top_logprobs.reserve(sequences * kTopLogprobsMax);
  }
  if (options.async_scheduling) thread_ = std::thread([this] { work(); });
}

LocalExecutor::~LocalExecutor() {
  if (!thread_.joinable()) return;
  CHECK(collected_ == submitted_.load(std::memory_order_relaxed));  // plans borrow
  stop_.store(true, std::memory_order_relaxed);
  submitted_.fetch_add(1, std::memory_order_release);
  submitted_.notify_one();
  thread_.join();
}

void LocalExecutor::start(const SequenceStart& start) {
  std::optional<Sampler>& sampler = samplers_[static_cast<size_t>(start.slot)];
  sampler.emplace(*start.sampling, vocab_size_);
  sampler->observe_prompt(start.prompt);
  sampler->observe_output(start.output);
}

Result<void> LocalExecutor::submit(const StepPlan& plan) {
  const uint32_t number = submitted_.load(std::memory_order_relaxed) + 1;
  CHECK(number - collected_ <= kStepsInFlightMax);
  Flight& flight = flights_[number % kStepsInFlightMax];
  flight.plan = plan;
  flight.rows.clear();
  flight.error.reset();
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    flight.rows.push_back(plan.sequences[i].rows);
    flight.masks[i].given.store(0, std::memory_order_relaxed);
  }
  submitted_.store(number, std::memory_order_release);
  submitted_.notify_one();
  return {};
}

void LocalExecutor::mask(uint64_t step_id, int32_t sequence, std::span<const uint64_t> allowed) {
  const uint32_t submitted = submitted_.load(std::memory_order_relaxed);
  for (uint32_t number = collected_ + 1; number != submitted + 1; ++number) {
    Flight& flight = flights_[number % kStepsInFlightMax];
    if (flight.plan.step_id != step_id) continue;
    const auto entry = static_cast<size_t>(sequence);
    CHECK(flight.plan.sequences[entry].masked);
    Mask& mask = flight.masks[entry];
    mask.allowed = allowed;
    mask.given.store(1, std::memory_order_release);
    mask.given.notify_one();
  }
}

Result<StepResult> LocalExecutor::collect() {
  CHECK(collected_ != submitted_.load(std::memory_order_relaxed));
  const uint32_t number = ++collected_;
  Flight& flight = flights_[number % kStepsInFlightMax];
  for (size_t i = 0; i < flight.plan.sequences.size(); ++i) {
    Mask& mask = flight.masks[i];
    if (!flight.plan.sequences[i].masked || mask.given.load(std::memory_order_relaxed) != 0)
      continue;
    mask.allowed = {};
    mask.given.store(1, std::memory_order_release);
    mask.given.notify_one();
  }
  if (thread_.joinable()) {
    uint32_t computed = computed_.load(std::memory_order_acquire);
    const auto begin = std::chrono::steady_clock::now();
    while (looks_ && static_cast<int32_t>(computed - number) < 0 &&
           std::chrono::steady_clock::now() - begin < kLookFor) {
      std::this_thread::yield();
      computed = computed_.load(std::memory_order_acquire);
    }
    while (static_cast<int32_t>(computed - number) < 0) {
      computed_.wait(computed, std::memory_order_acquire);
      computed = computed_.load(std::memory_order_acquire);
    }
  } else {
    begin(flight);
    end(flight);
  }
  if (flight.error) return *std::exchange(flight.error, std::nullopt);
  return StepResult{flight.plan.step_id, flight.sampled};
}

// --- the thread that computes ------------------------------------------------

void LocalExecutor::work() {
  name_thread("galley-step");
  uint32_t begun = 0;
  for (uint32_t number = 1;; ++number) {
    submitted_.wait(number - 1, std::memory_order_acquire);
    if (stop_.load(std::memory_order_relaxed)) return;
    Flight& flight = flights_[number % kStepsInFlightMax];
    if (begun != number) begin(flight);
    begun = number;
    // The plan of the next step comes while this one runs; the engine needs this one's result only
    // for the step after that.
    while (!flight.error && !step_->is_done()) {
      if (submitted_.load(std::memory_order_acquire) != number) {
        Flight& next = flights_[(number + 1) % kStepsInFlightMax];
        if (!follows(flight, next)) break;
        begin(next);
        begun = number + 1;
        break;
      }
      std::this_thread::yield();
    }
    end(flight);
    computed_.store(number, std::memory_order_release);
    computed_.notify_one();
  }
}

bool LocalExecutor::follows(const Flight& flight, Flight& next) {
  if (!next.plan.saves.empty() || !next.plan.loads.empty()) return false;
  if (row_count(next.rows) > kSmallStepRows && row_count(flight.rows) <= kSmallStepRows) {
    return false;
  }
  plan_draws(next);
  std::ranges::fill(row_of_slot_, -1);
  int32_t row = 0;
  for (const PlannedSequence& before : flight.plan.sequences) {
    if (before.samples) row_of_slot_[static_cast<size_t>(before.rows.slot)] = row++;
  }
  for (size_t i = 0; i < next.rows.size(); ++i) {
    const PlannedSequence& planned = next.plan.sequences[i];
    if (planned.token_from != flight.plan.step_id) continue;
    next.rows[i].token_row = row_of_slot_[static_cast<size_t>(planned.rows.slot)];
  }
  const bool known =
      std::ranges::all_of(std::views::iota(size_t{0}, next.rows.size()), [&next](size_t i) {
        return next.plan.sequences[i].token_from == 0 || next.rows[i].token_row >= 0;
      });
  if (known && step_->overlaps(next.rows)) return true;
  for (model::SequencePlan& plan : next.rows) plan.token_row = -1;
  return false;
}

void LocalExecutor::begin(Flight& flight) {
  flight.sampled.clear();
  flight.top_logprobs.clear();
  snapshots_->save(*cache_, flight.plan.saves);
  snapshots_->load(*cache_, flight.plan.loads);
  Result<void> begun = resolve_tokens(flight);
  if (begun) {
    plan_draws(flight);
    begun = step_->submit(flight.rows);
  }
  if (!begun) flight.error = begun.error();
}

void LocalExecutor::end(Flight& flight) {
  if (flight.error) return;
  const Result<model::StepResult> computed = step_->collect();
  if (!computed) {
    flight.error = computed.error();
    return;
  }
  for (const PlannedSequence& planned : flight.plan.sequences) {
    if (planned.samples) flight.sampled.push_back({.id = planned.id, .slot = planned.rows.slot});
  }
  // Those that wait for nobody first.
  for (const bool masked : {false, true}) {
    size_t row = 0;
    for (size_t i = 0; i < flight.plan.sequences.size(); ++i) {
      const PlannedSequence& planned = flight.plan.sequences[i];
      if (!planned.samples) continue;
      if (planned.masked == masked) {
        sample(flight, i, *computed, static_cast<int64_t>(row), flight.sampled[row]);
      }
      ++row;
    }
  }
}

Result<void> LocalExecutor::resolve_tokens(Flight& flight) {
  for (size_t i = 0; i < flight.plan.sequences.size(); ++i) {
    const PlannedSequence& planned = flight.plan.sequences[i];
    if (planned.token_from == 0 || flight.rows[i].token_row >= 0) continue;
    const LastSample& last = last_samples_[static_cast<size_t>(planned.rows.slot)];
    if (last.step_id != planned.token_from) {
      return Error{ErrorCode::kInvalid,
                   "step " + std::to_string(flight.plan.step_id) + " takes a token of step " +
                       std::to_string(planned.token_from) + ", which gave none: it failed"};
    }
    flight.tokens[i] = last.token;
    flight.rows[i].tokens = {&flight.tokens[i], 1};
  }
  return {};
}

void LocalExecutor::plan_draws(Flight& flight) {
  for (size_t i = 0; i < flight.plan.sequences.size(); ++i) {
    const PlannedSequence& planned = flight.plan.sequences[i];
    if (!planned.samples || planned.masked) continue;
    const Sampler& sampler = *samplers_[static_cast<size_t>(planned.rows.slot)];
    const auto draw = sampler.plain_draw(planned.rows.end_position());
    if (!draw) continue;
    flight.draws[i] = *draw;
    flight.rows[i].draw = &flight.draws[i];
  }
}

void LocalExecutor::sample(Flight& flight, size_t entry, const model::StepResult& step, int64_t row,
                           SampledSequence& result) {
  const PlannedSequence& planned = flight.plan.sequences[entry];
  const auto slot = static_cast<size_t>(planned.rows.slot);
  if (!step.drawn.empty() && flight.rows[entry].draw != nullptr) {
    const kernels::DrawnToken& drawn = step.drawn[static_cast<size_t>(row)];
    result.sampled = {.token = drawn.token, .valid = drawn.valid != 0};
    last_samples_[slot] = {flight.plan.step_id, drawn.token};
    return;
  }
  std::span<const uint64_t> allowed;
  if (planned.masked) {
    Mask& mask = flight.masks[entry];
    mask.given.wait(0, std::memory_order_acquire);
    allowed = mask.allowed;
  }
  Sampler& sampler = *samplers_[slot];
  result.sampled = sampler.sample({step.logits.row(row), static_cast<size_t>(vocab_size_)},
                                  planned.rows.end_position(), scratch_, allowed);
  last_samples_[slot] = {flight.plan.step_id, result.sampled.token};
  // Copied, since the next step's sample may be taken while this one's is read.
  const std::span<const TokenLogprob> best = sampler.top_logprobs();
  const size_t begin = flight.top_logprobs.size();
  flight.top_logprobs.insert(flight.top_logprobs.end(), best.begin(), best.end());
  result.top_logprobs = std::span(flight.top_logprobs).subspan(begin);
}

GeneratorOptions generator_options(const model::Config& config, int32_t sequences_max,
                                   int32_t rows_max, int64_t positions_max) {
  GeneratorOptions options;
  options.sequences_max = sequences_max;
  options.rows_max = std::max(rows_max, sequences_max);
  options.positions_max = std::min(positions_max, config.positions_max);
  options.vocab_size = config.vocab_size;
  options.window = config.window;
  options.layers = config.layers;
  options.decoder_source = config.decoder_source();
  options.look_back = std::max(config.engram.ngram_size_max - 1, 0);
  // 128 tokens as released; less for a small window, in whole groups of every ratio.
  int32_t group = 1;
  for (const model::LayerRole& role : config.roles) {
    if (role.ratio > 0) group = std::lcm(group, role.ratio);
  }
  const int32_t wanted = std::min(128, std::max(16, config.window));
  options.page_tokens = (wanted + group - 1) / group * group;
  const int64_t pages = (options.positions_max + options.page_tokens - 1) / options.page_tokens;
  options.page_count = static_cast<int32_t>(pages * sequences_max);
  return options;
}

model::KvOptions kv_options(const model::Config& config, const GeneratorOptions& options) {
  model::KvOptions kv;
  kv.page_tokens = options.page_tokens;
  if (options.reuse_blocks == 0) return kv;
  kv.hold_inputs = options.replay != model::DecoderReplay::kOff;
  kv.reuse_layers = kv.hold_inputs ? config.decoder_source() + 1 : config.layers;
  return kv;
}

model::StepOptions step_options(const model::KvOptions& kv, const GeneratorOptions& options) {
  model::StepOptions step;
  step.rows_max = options.rows_max;
  step.sequences_max = options.sequences_max;
  step.logit_rows_max = options.sequences_max;
  step.positions_max = options.positions_max;
  step.replay = options.replay;
  step.on_upload = options.on_upload;
  if (kv.hold_inputs) step.held_rows_max = static_cast<int32_t>(options.window);
  return step;
}

Result<void> size_snapshots(const model::Config& config, int64_t memory_bytes,
                            GeneratorOptions& options) {
  // Reading (a) holds no inputs, nor does a pool that layers before the cut build (model/step.h).
  const bool early_pool =
      config.candidate_source >= 0 && config.candidate_source < config.decoder_source();
  const bool reuse = memory_bytes > 0 && options.prefix != PrefixReplay::kOff &&
                     config.decoder_source() >= 0 &&
                     options.replay != model::DecoderReplay::kLayerWhole &&
                     (options.replay == model::DecoderReplay::kOff || !early_pool);
  options.reuse_blocks = reuse ? 1 : 0;  // the layout depends on whether there are any
  const model::KvLayout layout = TRY(model::KvLayout::create(config, kv_options(config, options)));
  options.block_bytes = std::max<int64_t>(layout.page_stride, kBlockBytesMin);
  const int64_t blocks = memory_bytes / options.block_bytes;
  options.snapshot_blocks = static_cast<int32_t>(std::min<int64_t>(blocks, INT32_MAX));
  const auto size = [&](model::SlotPart part) {
    return model::blocks_for(model::slot_image_bytes(layout, part), options.block_bytes);
  };
  options.slot_blocks = size(model::SlotPart::kWhole);
  if (reuse) options.reuse_blocks = size(model::SlotPart::kReuse);
  return {};
}

}  // namespace galley::engine
