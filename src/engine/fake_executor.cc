#include "engine/fake_executor.h"

#include <algorithm>
#include <string>

#include "base/check.h"

namespace galley::engine {
namespace {

// Window keys of the first layer, of the second, and of the layers after the cut.
constexpr int32_t kFirst = 0;
constexpr int32_t kSecond = 1;
constexpr int32_t kTail = 2;
// Inputs of the tail.
constexpr int32_t kHeld = 3;
constexpr int32_t kLayers = 4;
constexpr int64_t kVerifyRows = 8;

constexpr uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t x = (a ^ (b * 0x9E3779B97F4A7C15)) * 0xBF58476D1CE4E5B9;
  x ^= x >> 29;
  return x * 0x94D049BB133111EB ^ (x >> 32);
}

uint64_t start_value(const FakeModel& model) { return mix(model.seed, 0x67); }

// Of the token at the end of `tokens`, which holds it and the look-back.
uint64_t first_key(std::span<const int32_t> tokens, int64_t position) {
  uint64_t key = static_cast<uint64_t>(position) + 1;
  for (const int32_t token : tokens) key = mix(key, static_cast<uint64_t>(token) + 3);
  return key;
}

int32_t token_of(uint64_t hash, int32_t vocab_size) {
  return static_cast<int32_t>((hash >> 20) % static_cast<uint64_t>(vocab_size));
}

Error invalid(const std::string& what) {
  return Error{ErrorCode::kInvalid, "a plan that cannot run: " + what};
}

}  // namespace

FakeExecutor::FakeExecutor(const GeneratorOptions& options, FakeModel model)
    : options_(options),
      model_(model),
      ring_slots_(options.window + kVerifyRows +
                  (options.reuse_blocks > 0 ? options.page_tokens - 1 : 0)),
      pages_(static_cast<size_t>(options.page_count) * static_cast<size_t>(options.page_tokens)),
      rings_(static_cast<size_t>(kLayers * options.sequences_max * ring_slots_)),
      slot_used_(static_cast<size_t>(options.sequences_max)),
      written_(static_cast<size_t>(options.page_count)),
      last_samples_(static_cast<size_t>(options.sequences_max)),
      blocks_(static_cast<size_t>(options.snapshot_blocks)) {
  for (Flight& flight : flights_) {
    flight.sampled.reserve(static_cast<size_t>(options.sequences_max));
  }
}

void FakeExecutor::start(const SequenceStart& start) {
  for (uint64_t step = oldest(); step <= last_step_; ++step) {
    for (const PlannedSequence& flown : flight_of(step).plan.sequences) {
      CHECK(flown.rows.slot != start.slot);
    }
  }
  last_samples_[static_cast<size_t>(start.slot)] = {};
  fresh_slots_.push_back(start.slot);  // emptied in its turn: it may have to be saved first
}

Result<void> FakeExecutor::submit(const StepPlan& plan) {
  CHECK(in_flight_ < kStepsInFlightMax);
  CHECK(plan.step_id == last_step_ + 1 || last_step_ == 0);
  TRY(check(plan));
  last_step_ = plan.step_id;
  ++in_flight_;
  Flight& flight = flight_of(plan.step_id);
  flight.plan = plan;
  flight.fresh_slots.swap(fresh_slots_);
  fresh_slots_.clear();
  flight.computed = false;
  if (early_) compute(flight);
  return {};
}

Result<void> FakeExecutor::check(const StepPlan& plan) {
  std::ranges::fill(slot_used_, uint8_t{0});
  int64_t rows = 0;
  for (const PlannedSequence& planned : plan.sequences) {
    const model::SequencePlan& sequence = planned.rows;
    TRY(check_one(sequence));
    TRY(check_beside(planned));
    if (slot_used_[static_cast<size_t>(sequence.slot)]++ != 0) return invalid("a slot used twice");
    rows += static_cast<int64_t>(sequence.tokens.size());
    const int64_t begin = std::max(sequence.first_position, sequence.global_begin);
    for (int64_t position = begin; position < sequence.end_position();) {
      const auto page = static_cast<size_t>(
          sequence.page_table[static_cast<size_t>(position / options_.page_tokens)]);
      if (written_[page] == plan.step_id) return invalid("a page written by two sequences");
      written_[page] = plan.step_id;
      position = (position / options_.page_tokens + 1) * options_.page_tokens;
    }
  }
  if (rows > options_.rows_max) return invalid("more rows than a step takes");
  rows_most_ = std::max(rows_most_, rows);
  return {};
}

Result<void> FakeExecutor::check_one(const model::SequencePlan& plan) const {
  if (plan.tokens.empty()) return invalid("a sequence without rows");
  if (plan.slot < 0 || plan.slot >= options_.sequences_max) return invalid("no such slot");
  if (plan.end_position() > options_.positions_max) return invalid("beyond the context");
  if (static_cast<int64_t>(plan.look_back.size()) <
      std::min<int64_t>(plan.first_position, plan.held_rows + options_.look_back)) {
    return invalid("look-back too short");
  }
  if (plan.held_rows < 0 || plan.held_rows > options_.window ||
      (plan.held_rows > 0 && plan.tail_begin > plan.first_position - plan.held_rows)) {
    return invalid("held rows that are no tail rows");
  }
  if (plan.window_floor > plan.first_position) return invalid("a floor above its rows");
  const auto pages = static_cast<int64_t>(plan.page_table.size());
  if (pages * options_.page_tokens < plan.end_position()) return invalid("pages missing");
  for (const int32_t page : plan.page_table) {
    if (page < 0 || page >= options_.page_count) return invalid("no such page");
  }
  return {};
}

Result<void> FakeExecutor::check_beside(const PlannedSequence& planned) {
  const model::SequencePlan& rows = planned.rows;
  bool samples_before = false;
  for (uint64_t step = oldest(); step <= last_step_; ++step) {
    for (const PlannedSequence& flown : flight_of(step).plan.sequences) {
      if (flown.id == planned.id) {
        samples_before = flown.samples && step == planned.token_from;
        continue;
      }
      if (flown.rows.slot == rows.slot) return invalid("a slot that is in flight");
      const int64_t begin = std::max(rows.first_position, rows.global_begin);
      if (begin >= rows.end_position()) continue;  // all of it is replay
      for (const int32_t page :
           rows.page_table.subspan(static_cast<size_t>(begin / options_.page_tokens))) {
        if (std::ranges::find(flown.rows.page_table, page) != flown.rows.page_table.end()) {
          return invalid("a page that is in flight");
        }
      }
    }
  }
  if (planned.token_from != 0 && !samples_before) return invalid("a token that nobody samples");
  return {};
}

uint64_t& FakeExecutor::global(const model::SequencePlan& plan, int64_t position) {
  const int64_t page = plan.page_table[static_cast<size_t>(position / options_.page_tokens)];
  return pages_[static_cast<size_t>(page * options_.page_tokens + position % options_.page_tokens)];
}

FakeExecutor::Entry& FakeExecutor::ring(int32_t layer, int32_t slot, int64_t position) {
  const int64_t row = layer * options_.sequences_max + slot;
  return rings_[static_cast<size_t>(row * ring_slots_ + position % ring_slots_)];
}

uint64_t FakeExecutor::fold(int32_t layer, int32_t slot, int64_t begin, int64_t end) {
  uint64_t sum = static_cast<uint64_t>(layer) + 11;
  for (int64_t position = begin; position < end; ++position) {
    const Entry& entry = ring(layer, slot, position);
    // A row that was never refilled shows as another token.
    sum = mix(sum, entry.position == position ? entry.value : ~uint64_t{0});
  }
  return sum;
}

void FakeExecutor::run_rows(const model::SequencePlan& plan) {
  const int64_t look_back = std::min<int64_t>(plan.first_position, options_.look_back);
  std::vector<int32_t> tokens(plan.look_back.end() - look_back, plan.look_back.end());
  tokens.insert(tokens.end(), plan.tokens.begin(), plan.tokens.end());
  for (int64_t t = plan.first_position - plan.held_rows; t < plan.first_position; ++t) {
    const Entry& held = ring(kHeld, plan.slot, t);
    const uint64_t input = held.position == t ? held.value : ~uint64_t{0};
    ring(kTail, plan.slot, t) = {t, mix(global(plan, t), input)};
  }
  for (int64_t t = plan.first_position; t < plan.end_position(); ++t) {
    const int64_t at = t - plan.first_position + look_back;
    const int64_t before = std::min<int64_t>(t, options_.look_back);
    const uint64_t key = first_key(std::span(tokens).subspan(static_cast<size_t>(at - before),
                                                             static_cast<size_t>(before + 1)),
                                   t);
    const int64_t begin = std::max(plan.window_floor, t - options_.window + 1);
    ring(kFirst, plan.slot, t) = {t, key};
    const uint64_t second = model_.layered ? fold(kFirst, plan.slot, begin, t + 1) : key;
    ring(kSecond, plan.slot, t) = {t, second};
    if (t >= plan.global_begin) {
      const uint64_t above = model_.layered ? fold(kSecond, plan.slot, begin, t + 1) : second;
      global(plan, t) = mix(t == 0 ? start_value(model_) : global(plan, t - 1), above);
    }
    if (plan.hold_inputs) ring(kHeld, plan.slot, t) = {t, second};
    if (t >= plan.tail_begin) ring(kTail, plan.slot, t) = {t, mix(global(plan, t), second)};
  }
}

int32_t FakeExecutor::next_token(const model::SequencePlan& plan) {
  const int64_t end = plan.end_position();
  uint64_t hash = static_cast<uint64_t>(plan.tail_floor);
  for (int64_t t = options_.page_tokens - 1; t < end; t += options_.page_tokens) {
    hash = mix(hash, global(plan, t));
  }
  hash = mix(hash, global(plan, end - 1));
  const int64_t begin = std::max<int64_t>(0, end - options_.window);
  hash = mix(hash, fold(kSecond, plan.slot, begin, end));
  hash = mix(hash, fold(kTail, plan.slot, std::max(begin, plan.tail_floor), end));
  return token_of(hash, options_.vocab_size);
}

Result<StepResult> FakeExecutor::collect() {
  CHECK(in_flight_ > 0);
  Flight& flight = flight_of(oldest());
  --in_flight_;
  ++steps_;
  if (hook_) TRY(hook_(steps_));
  if (!flight.computed) {
    for (const PlannedSequence& planned : flight.plan.sequences) {
      const LastSample& last = last_samples_[static_cast<size_t>(planned.rows.slot)];
      if (planned.token_from == 0 || planned.token_from == last.step_id) continue;
      return Error{ErrorCode::kIo, "the step before this one failed"};
    }
    compute(flight);
  }
  return StepResult{flight.plan.step_id, flight.sampled};
}

void FakeExecutor::compute(Flight& flight) {
  for (uint64_t step = oldest(); step < flight.plan.step_id; ++step) {
    if (!flight_of(step).computed) compute(flight_of(step));
  }
  flight.computed = true;
  flight.sampled.clear();
  for (const SnapshotCopy& copy : flight.plan.saves) save(copy);
  for (const int32_t slot : flight.fresh_slots) {
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      std::fill_n(&ring(layer, slot, 0), ring_slots_, Entry{});
    }
  }
  for (const SnapshotCopy& copy : flight.plan.loads) load(copy);
  for (const PlannedSequence& planned : flight.plan.sequences) {
    model::SequencePlan rows = planned.rows;
    LastSample& last = last_samples_[static_cast<size_t>(rows.slot)];
    if (planned.token_from != 0) {
      CHECK(last.step_id == planned.token_from);
      rows.tokens = {&last.token, 1};
    }
    run_rows(rows);
    if (!planned.samples) continue;
    SampledSequence result;
    result.id = planned.id;
    result.slot = rows.slot;
    const bool valid = rows.end_position() != fail_at_;
    if (valid) result.sampled = {next_token(rows), true, 0};
    last = {flight.plan.step_id, result.sampled.token};
    flight.sampled.push_back(result);
  }
}

template <class Visit>
void FakeExecutor::visit_part(const SnapshotCopy& copy, const Visit& visit) {
  const bool whole = copy.part == model::SlotPart::kWhole;
  const int64_t reach = whole ? ring_slots_ : options_.window - 1;
  const bool all = whole || options_.replay == model::DecoderReplay::kOff;
  size_t number = 0;
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    if (layer == kTail && !all) continue;
    for (int64_t t = std::max<int64_t>(0, copy.position - reach); t < copy.position; ++t) {
      // Spread over the blocks: one that another has taken shows.
      const size_t block = number++ % copy.blocks.size();
      visit(ring(layer, copy.slot, t), t, blocks_[static_cast<size_t>(copy.blocks[block])]);
    }
  }
}

void FakeExecutor::save(const SnapshotCopy& copy) {
  for (const int32_t block : copy.blocks) blocks_[static_cast<size_t>(block)].clear();
  visit_part(copy, [](const Entry& entry, int64_t t, std::vector<uint64_t>& block) {
    block.push_back(entry.position == t ? entry.value : ~uint64_t{0});
  });
  for (const SnapshotCopy::Page& page : copy.pages) {
    const auto first = pages_.begin() + int64_t{page.page} * options_.page_tokens;
    blocks_[static_cast<size_t>(page.block)].assign(first, first + options_.page_tokens);
  }
}

void FakeExecutor::load(const SnapshotCopy& copy) {
  std::vector<size_t> read(blocks_.size());
  visit_part(copy, [&](Entry& entry, int64_t t, const std::vector<uint64_t>& block) {
    size_t& at = read[static_cast<size_t>(&block - blocks_.data())];
    entry = {t, at < block.size() ? block[at] : ~uint64_t{0}};
    ++at;
  });
  for (const SnapshotCopy::Page& page : copy.pages) {
    const std::vector<uint64_t>& block = blocks_[static_cast<size_t>(page.block)];
    for (size_t t = 0; t < static_cast<size_t>(options_.page_tokens); ++t) {
      const size_t place = static_cast<size_t>(page.page * options_.page_tokens) + t;
      pages_[place] = t < block.size() ? block[t] : ~uint64_t{0};
    }
  }
}

std::vector<uint64_t> FakeExecutor::globals(std::span<const int32_t> page_table,
                                            int64_t positions) const {
  std::vector<uint64_t> values;
  for (int64_t t = 0; t < positions; ++t) {
    const int64_t page = page_table[static_cast<size_t>(t / options_.page_tokens)];
    values.push_back(
        pages_[static_cast<size_t>(page * options_.page_tokens + t % options_.page_tokens)]);
  }
  return values;
}

std::vector<int32_t> fake_tokens(const GenerateRequest& request, const GeneratorOptions& options,
                                 FakeModel model, const FakeHit& hit) {
  const auto prompt_end = std::ssize(request.prompt);
  const int64_t floor = model::decoder_floor(options.replay, options.window, 0, prompt_end);
  std::vector<int32_t> tokens = request.prompt;
  std::vector<int32_t> output;
  std::vector<uint64_t> globals = hit.globals;
  std::vector<uint64_t> keys[kLayers];
  for (auto& layer : keys) layer.resize(static_cast<size_t>(hit.replay_start));
  const auto fold = [&](int32_t layer, int64_t begin, int64_t end) {
    uint64_t sum = static_cast<uint64_t>(layer) + 11;
    for (int64_t t = begin; t < end; ++t) sum = mix(sum, keys[layer][static_cast<size_t>(t)]);
    return sum;
  };
  while (static_cast<int32_t>(output.size()) < request.output_tokens_max) {
    for (int64_t t = std::ssize(keys[kFirst]); t < std::ssize(tokens); ++t) {
      const int64_t before = std::min<int64_t>(t, options.look_back);
      const int64_t begin = std::max(hit.replay_start, t - options.window + 1);
      keys[kFirst].push_back(first_key(std::span(tokens).subspan(static_cast<size_t>(t - before),
                                                                 static_cast<size_t>(before + 1)),
                                       t));
      keys[kSecond].push_back(model.layered ? fold(kFirst, begin, t + 1) : keys[kFirst].back());
      if (t >= std::ssize(hit.globals)) {
        const uint64_t above = model.layered ? fold(kSecond, begin, t + 1) : keys[kSecond].back();
        globals.push_back(mix(t == 0 ? start_value(model) : globals.back(), above));
      }
      keys[kTail].push_back(mix(globals[static_cast<size_t>(t)], keys[kSecond].back()));
    }
    const auto end = std::ssize(tokens);
    uint64_t hash = static_cast<uint64_t>(floor);
    for (int64_t t = options.page_tokens - 1; t < end; t += options.page_tokens) {
      hash = mix(hash, globals[static_cast<size_t>(t)]);
    }
    hash = mix(hash, globals.back());
    const int64_t begin = std::max<int64_t>(0, end - options.window);
    hash = mix(hash, fold(kSecond, begin, end));
    hash = mix(hash, fold(kTail, std::max(begin, floor), end));
    output.push_back(token_of(hash, options.vocab_size));
    tokens.push_back(output.back());
    if (std::ranges::find(request.stop_tokens, output.back()) != request.stop_tokens.end()) break;
  }
  return output;
}

}  // namespace galley::engine
