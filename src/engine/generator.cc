#include "engine/generator.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"

namespace galley::engine {
namespace {

int64_t length_max(const GenerateRequest& request) {
  return static_cast<int64_t>(request.prompt.size()) + request.output_tokens_max;
}

Usage prompt_usage(const GenerateRequest& request) {
  Usage usage;
  usage.prompt_tokens = static_cast<int32_t>(request.prompt.size());
  return usage;
}

}  // namespace

Generator::Generator(Executor& executor, const GeneratorOptions& options)
    : executor_(&executor), options_(options), pages_(options.page_count) {
  CHECK(options.sequences_max > 0 && options.rows_max >= options.sequences_max);
  for (int32_t slot = options.sequences_max - 1; slot >= 0; --slot) free_slots_.push_back(slot);
  running_.reserve(options.sequences_max);
  plan_.reserve(options.sequences_max);
  cancelled_.reserve(options.waiting_max);
  events_.reserve(static_cast<size_t>(options.waiting_max) +
                  2 * static_cast<size_t>(options.sequences_max));
}

Result<void> check_request(const GenerateRequest& request, const GeneratorOptions& options) {
  if (request.prompt.empty()) return Error{ErrorCode::kInvalid, "the prompt has no tokens"};
  for (const int32_t token : request.prompt) {
    if (token >= 0 && token < options.vocab_size) continue;
    return Error{ErrorCode::kInvalid, "the prompt has token " + std::to_string(token) +
                                          ", the vocabulary has " +
                                          std::to_string(options.vocab_size)};
  }
  if (request.output_tokens_max < 1) {
    return Error{ErrorCode::kInvalid, "at least one token must be asked for"};
  }
  if (request.stop_tokens.size() > kStopTokensMax) {
    return Error{ErrorCode::kInvalid,
                 "at most " + std::to_string(kStopTokensMax) + " stop tokens are accepted"};
  }
  TRY(validate(request.sampling, options.vocab_size));
  const int64_t capacity = static_cast<int64_t>(options.page_count) * options.page_tokens;
  const int64_t longest = std::min(options.positions_max, capacity);
  if (length_max(request) > longest) {
    return Error{ErrorCode::kInvalid,
                 "the prompt's " + std::to_string(request.prompt.size()) + " tokens and up to " +
                     std::to_string(request.output_tokens_max) +
                     " new ones exceed the context of " + std::to_string(longest)};
  }
  if (request.cache_namespace.size() > kCacheNamespaceBytesMax) {
    return Error{ErrorCode::kInvalid,
                 "the cache namespace has " + std::to_string(request.cache_namespace.size()) +
                     " bytes, at most " + std::to_string(kCacheNamespaceBytesMax) +
                     " are accepted"};
  }
  return {};
}

Result<void> Generator::submit(GenerateRequest request) {
  TRY(check_request(request, options_));
  const auto same = [&](const auto& other) { return other.id == request.id; };
  if (std::any_of(waiting_.begin(), waiting_.end(), same) ||
      std::any_of(running_.begin(), running_.end(),
                  [&](const auto& other) { return same(other->request); })) {
    return Error{ErrorCode::kInvalid, "a sequence of this id runs already"};
  }
  if (waiting_count() + static_cast<int32_t>(cancelled_.size()) >= options_.waiting_max) {
    return Error{ErrorCode::kExhausted,
                 std::to_string(options_.waiting_max) + " sequences wait already"};
  }
  waiting_.push_back(std::move(request));
  return {};
}

int64_t Generator::pages_for(int64_t positions) const {
  return (positions + options_.page_tokens - 1) / options_.page_tokens;
}

void Generator::cancel(SequenceId id) {
  for (const auto& sequence : running_) {
    if (sequence->request.id == id) sequence->cancelled = true;
  }
  const auto waiting = std::find_if(waiting_.begin(), waiting_.end(),
                                    [id](const auto& request) { return request.id == id; });
  if (waiting == waiting_.end()) return;
  cancelled_.push_back(std::move(*waiting));
  waiting_.erase(waiting);
}

void Generator::admit(TimePoint now) {
  while (!waiting_.empty()) {
    // First come, first served: a small one does not pass a large one that waits for pages.
    const int64_t pages = pages_for(length_max(waiting_.front()));
    if (free_slots_.empty() || pages > pages_.free_count()) return;
    start(std::move(waiting_.front()), now);
    waiting_.pop_front();
  }
}

void Generator::start(GenerateRequest request, TimePoint now) {
  auto sequence = std::make_unique<Sequence>();
  sequence->request = std::move(request);
  sequence->admitted_at = now;
  const GenerateRequest& asked = sequence->request;
  sequence->tokens.reserve(length_max(asked));
  sequence->tokens.insert(sequence->tokens.end(), asked.prompt.begin(), asked.prompt.end());
  for (int64_t pages = pages_for(length_max(asked)); pages > 0; --pages) {
    sequence->page_table.push_back(pages_.acquire().value().index);
  }
  sequence->slot = free_slots_.back();
  free_slots_.pop_back();
  sequence->tail_floor = model::decoder_floor(options_.replay, options_.window, 0,
                                              static_cast<int64_t>(asked.prompt.size()));
  executor_->start({sequence->slot, &asked.sampling, asked.prompt});
  running_.push_back(std::move(sequence));
}

void Generator::report_end(const GenerateRequest& request, FinishReason finish, Usage usage) {
  TokenEvent event;
  event.id = request.id;
  event.finish = finish;
  event.usage = usage;
  events_.push_back(event);
}

Usage Generator::usage_of(const Sequence& sequence) {
  Usage usage = prompt_usage(sequence.request);
  usage.output_tokens = sequence.output_count;
  usage.admitted_at = sequence.admitted_at;
  return usage;
}

void Generator::drop_cancelled() {
  for (const GenerateRequest& request : cancelled_) {
    report_end(request, FinishReason::kCancelled, prompt_usage(request));
  }
  cancelled_.clear();
  for (size_t i = running_.size(); i-- > 0;) {
    if (!running_[i]->cancelled) continue;
    report_end(running_[i]->request, FinishReason::kCancelled, usage_of(*running_[i]));
    retire(i);
  }
}

void Generator::end_late(TimePoint now) {
  const auto late = [now](const GenerateRequest& request) {
    return request.deadline && *request.deadline <= now;
  };
  for (size_t i = running_.size(); i-- > 0;) {
    if (!late(running_[i]->request)) continue;
    report_end(running_[i]->request, FinishReason::kDeadline, usage_of(*running_[i]));
    retire(i);
  }
  std::erase_if(waiting_, [&](const GenerateRequest& request) {
    if (!late(request)) return false;
    report_end(request, FinishReason::kDeadline, prompt_usage(request));
    return true;
  });
}

std::span<const TokenEvent> Generator::fail_all() {
  events_.clear();
  while (!running_.empty()) {
    report_end(running_.back()->request, FinishReason::kFailed, usage_of(*running_.back()));
    retire(running_.size() - 1);
  }
  for (const GenerateRequest& request : waiting_) {
    report_end(request, FinishReason::kFailed, prompt_usage(request));
  }
  for (const GenerateRequest& request : cancelled_) {
    report_end(request, FinishReason::kCancelled, prompt_usage(request));
  }
  waiting_.clear();
  cancelled_.clear();
  return events_;
}

void Generator::retire(size_t index) {
  const Sequence& sequence = *running_[index];
  for (const int32_t page : sequence.page_table) pages_.release({page});
  free_slots_.push_back(sequence.slot);
  running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(index));
}

void Generator::plan_rows() {
  plan_.clear();
  outcome_.prefill_rows = 0;
  outcome_.decode_rows = 0;
  for (const auto& sequence : running_) {
    if (sequence->prefilling()) continue;
    add_rows(*sequence, 1);
    ++outcome_.decode_rows;
  }
  int64_t budget = options_.rows_max - outcome_.decode_rows;
  for (const auto& sequence : running_) {
    if (!sequence->prefilling() || budget == 0) continue;
    const int64_t left = static_cast<int64_t>(sequence->tokens.size()) - sequence->computed;
    const int64_t count = std::min(left, budget);
    add_rows(*sequence, count);
    budget -= count;
    outcome_.prefill_rows += static_cast<int32_t>(count);
  }
}

void Generator::add_rows(const Sequence& sequence, int64_t count) {
  const std::span<const int32_t> tokens = sequence.tokens;
  const int64_t first = sequence.computed;
  const int64_t look_back = std::min<int64_t>(first, options_.look_back);
  PlannedSequence planned;
  planned.id = sequence.request.id;
  planned.rows.slot = sequence.slot;
  planned.rows.kind = sequence.prefilling() ? model::RowKind::kPrefill : model::RowKind::kDecode;
  planned.rows.first_position = first;
  planned.rows.tokens = tokens.subspan(first, count);
  planned.rows.look_back = tokens.subspan(first - look_back, look_back);
  planned.rows.page_table =
      std::span<const int32_t>(sequence.page_table).first(pages_for(first + count));
  planned.rows.tail_begin = sequence.tail_floor;
  planned.rows.tail_floor = sequence.tail_floor;
  planned.samples = first + count == static_cast<int64_t>(tokens.size());
  if (planned.samples) planned.rows.logits_begin = count - 1;
  plan_.push_back(planned);
}

Result<StepOutcome> Generator::step(TimePoint now) {
  events_.clear();
  drop_cancelled();
  end_late(now);
  admit(now);
  plan_rows();
  if (!plan_.empty()) {
    StepPlan plan;
    plan.step_id = ++step_id_;
    plan.sequences = plan_;
    TRY(executor_->submit(plan));
    const StepResult result = TRY(executor_->collect());
    CHECK(result.step_id == step_id_);
    for (const PlannedSequence& planned : plan_) {
      for (const auto& sequence : running_) {
        if (sequence->slot == planned.rows.slot) sequence->computed = planned.rows.end_position();
      }
    }
    for (const SampledSequence& sampled : result.sampled) take(sampled);
  }
  outcome_.events = events_;
  return outcome_;
}

void Generator::take(const SampledSequence& result) {
  size_t index = 0;
  while (index < running_.size() && running_[index]->request.id != result.id) ++index;
  if (index == running_.size()) return;  // gone meanwhile
  Sequence& sequence = *running_[index];
  TokenEvent event;
  event.id = result.id;
  if (!result.sampled.valid) {
    event.finish = FinishReason::kFailed;
  } else {
    event.token = result.sampled.token;
    event.has_token = true;
    event.logprob = result.sampled.logprob;
    event.top_logprobs = result.top_logprobs;
    sequence.tokens.push_back(event.token);
    ++sequence.output_count;
    const std::vector<int32_t>& stops = sequence.request.stop_tokens;
    if (std::find(stops.begin(), stops.end(), event.token) != stops.end()) {
      event.finish = FinishReason::kStop;
    } else if (sequence.output_count == sequence.request.output_tokens_max) {
      event.finish = FinishReason::kLength;
    }
  }
  event.usage = usage_of(sequence);
  events_.push_back(event);
  if (event.finish != FinishReason::kNone) retire(index);
}

}  // namespace galley::engine
