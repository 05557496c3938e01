#include "model/plan_check.h"

#include <algorithm>
#include <string>

namespace galley::model {
namespace {

Error invalid(std::string message) { return Error{ErrorCode::kInvalid, std::move(message)}; }

std::string text(int64_t number) { return std::to_string(number); }

}  // namespace

PlanCheck::PlanCheck(const Config& config, const KvCache& cache, const StepOptions& options)
    : config_(config),
      cache_(cache),
      options_(options),
      positions_max_(options.positions_max > 0 ? options.positions_max : config.positions_max),
      slot_taken_(static_cast<size_t>(cache.slot_count())) {}

Result<void> PlanCheck::check(std::span<const SequencePlan> plans) {
  if (plans.size() > static_cast<size_t>(options_.sequences_max)) {
    return invalid("the plan has " + std::to_string(plans.size()) + " sequences, this step takes " +
                   text(options_.sequences_max));
  }
  std::ranges::fill(slot_taken_, uint8_t{0});
  int64_t rows = 0;
  int64_t held_rows = 0;
  int64_t logit_rows = 0;
  for (size_t i = 0; i < plans.size(); ++i) {
    const SequencePlan& plan = plans[i];
    Result<void> one = check_one(plan);
    if (!one) return with_context(one.error(), "sequence " + std::to_string(i) + " of the plan");
    const auto count = static_cast<int64_t>(plan.tokens.size());
    rows += count;
    held_rows += plan.held_rows;
    logit_rows += std::max<int64_t>(0, count - plan.logits_begin);
  }
  if (rows > options_.rows_max) {
    return invalid("the plan has " + text(rows) + " rows, this step takes " +
                   text(options_.rows_max));
  }
  if (held_rows > options_.held_rows_max) {
    return invalid("the plan takes " + text(held_rows) + " held rows, this step takes " +
                   text(options_.held_rows_max));
  }
  if (logit_rows > options_.logit_rows_max) {
    return invalid("the plan wants logits of " + text(logit_rows) + " rows, this step gives " +
                   text(options_.logit_rows_max));
  }
  return {};
}

Result<void> PlanCheck::check_one(const SequencePlan& plan) {
  TRY(check_tokens(plan));
  TRY(check_places(plan));
  return check_replay(plan);
}

Result<void> PlanCheck::check_tokens(const SequencePlan& plan) const {
  if (plan.tokens.empty()) return invalid("it has no rows");
  if (plan.first_position < 0 || plan.end_position() > positions_max_) {
    return invalid("positions " + text(plan.first_position) + " to " + text(plan.end_position()) +
                   " leave the context of " + text(positions_max_));
  }
  for (const int32_t id : plan.tokens) {
    if (id < 0 || id >= config_.vocab_size) {
      return invalid("token id " + text(id) + " is outside the vocabulary of " +
                     text(config_.vocab_size));
    }
  }
  for (const int32_t id : plan.look_back) {
    if (id < 0 || id >= config_.vocab_size) {
      return invalid("look-back token id " + text(id) + " is outside the vocabulary of " +
                     text(config_.vocab_size));
    }
  }
  const int64_t reach =
      config_.engram.layer_ids.empty() ? 0 : int64_t{config_.engram.ngram_size_max} - 1;
  const int64_t needed = std::min(plan.first_position, plan.held_rows + reach);
  const auto look_back_count = static_cast<int64_t>(plan.look_back.size());
  if (look_back_count < needed || look_back_count > plan.first_position) {
    return invalid("look_back has " + text(look_back_count) + " ids at position " +
                   text(plan.first_position) + ", at least " + text(needed) + " are needed");
  }
  const bool sizes_agree =
      (plan.embeddings.empty() || plan.embeddings.size() == plan.tokens.size()) &&
      (plan.in_image.empty() || plan.in_image.size() == plan.tokens.size()) &&
      (plan.look_back_in_image.empty() || plan.look_back_in_image.size() == plan.look_back.size());
  if (!sizes_agree) return invalid("embeddings or image flags do not run along with the ids");
  return {};
}

Result<void> PlanCheck::check_places(const SequencePlan& plan) {
  if (plan.slot < 0 || plan.slot >= cache_.slot_count()) {
    return invalid("slot " + text(plan.slot) + " of " + text(cache_.slot_count()));
  }
  uint8_t& taken = slot_taken_[static_cast<size_t>(plan.slot)];
  if (taken != 0) return invalid("slot " + text(plan.slot) + " is in the plan twice");
  taken = 1;
  const int64_t pages = cache_.layout().pages_for(plan.end_position());
  if (static_cast<int64_t>(plan.page_table.size()) < pages) {
    return invalid("page_table has " + text(static_cast<int64_t>(plan.page_table.size())) +
                   " pages, positions up to " + text(plan.end_position()) + " need " + text(pages));
  }
  for (const int32_t page : plan.page_table) {
    if (page < 0 || page >= cache_.page_count()) {
      return invalid("page " + text(page) + " of " + text(cache_.page_count()));
    }
  }
  return {};
}

Result<void> PlanCheck::check_replay(const SequencePlan& plan) const {
  if (plan.window_floor < 0 || plan.window_floor > plan.first_position) {
    return invalid("window_floor " + text(plan.window_floor) + " lies after position " +
                   text(plan.first_position));
  }
  for (const KvSourceLayout& source : cache_.layout().sources) {
    // The first group written must lie in the rows that were run since the floor.
    const int64_t begin = std::max(plan.first_position, plan.global_begin);
    if (begin < plan.end_position() && begin / source.ratio * source.ratio < plan.window_floor) {
      return invalid("global_begin " + text(plan.global_begin) + " splits a group of " +
                     text(source.ratio) + " that begins before window_floor");
    }
  }
  const bool cuts = plan.tail_begin > plan.first_position || plan.held_rows > 0;
  if (cuts && options_.replay == DecoderReplay::kOff) {
    return invalid("decoder replay is off in this step, but tail_begin or held_rows asks for it");
  }
  if ((plan.hold_inputs || plan.held_rows > 0) && cache_.layout().held.slots == 0) {
    return invalid("the cache was made without room for held inputs");
  }
  if (plan.held_rows < 0 || plan.held_rows > plan.first_position ||
      plan.held_rows > config_.window ||
      (plan.held_rows > 0 && plan.tail_begin > plan.first_position - plan.held_rows)) {
    return invalid("held_rows " + text(plan.held_rows) + " at position " +
                   text(plan.first_position) + " with tail_begin " + text(plan.tail_begin));
  }
  const auto count = static_cast<int64_t>(plan.tokens.size());
  if (plan.logits_begin < 0 ||
      (plan.logits_begin < count && plan.first_position + plan.logits_begin < plan.tail_begin)) {
    return invalid("logits from row " + text(plan.logits_begin) +
                   ", which decoder replay does not run to the end");
  }
  return {};
}

}  // namespace galley::model
