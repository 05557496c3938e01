#include "model/dead_rows.h"

#include <algorithm>

namespace galley::model {
namespace {

constexpr int32_t kDeadToken = 0;

// One row whose token the kernels draw, and nothing of images or replay.
bool is_plain(const SequencePlan& plan) {
  return plan.tokens.size() == 1 && plan.draw != nullptr && plan.logits_begin == 0 &&
         plan.held_rows == 0 && plan.tail_begin <= plan.first_position &&
         plan.global_begin <= plan.first_position && plan.embeddings.empty() &&
         plan.in_image.empty();
}

bool alike(const SequencePlan& a, const SequencePlan& b) {
  return a.hold_inputs == b.hold_inputs && a.draw->is_cut() == b.draw->is_cut();
}

}  // namespace

DeadRows::DeadRows(const KvCache& cache, int32_t sequences_max)
    : slot_(cache.slot_count()),
      page_{cache.page_count()},
      page_tokens_(cache.layout().page_tokens),
      may_(cache.has_spare()) {
  for (const KvSourceLayout& source : cache.layout().sources) {
    if (std::ranges::find(ratios_, source.ratio) == ratios_.end()) ratios_.push_back(source.ratio);
  }
  for (Shape* shape : {&now_, kept_.data(), &kept_[1]}) shape->groups.resize(ratios_.size());
  plans_.reserve(static_cast<size_t>(sequences_max));
}

std::span<const SequencePlan> DeadRows::behind(std::span<const SequencePlan> plans, size_t side) {
  const bool plain =
      may_ && !plans.empty() && std::ranges::all_of(plans, [&](const SequencePlan& plan) {
        return is_plain(plan) && alike(plan, plans[0]);
      });
  if (!plain) return plans;
  measure(plans, now_);
  Shape& wanted = kept_[side];
  const int64_t count = wanted.rows - now_.rows;
  if (!reaches(now_, wanted) || spent_[side] + count > kStepsPerShape * wanted.rows) {
    return renew(plans, side);
  }
  spent_[side] += count;
  if (count == 0) return plans;
  plans_.assign(plans.begin(), plans.end());
  for (int64_t i = 0; i < count; ++i) {
    // The place in a group of each ratio that makes up what is missing of them.
    const auto fits = [&](int64_t position) {
      for (size_t r = 0; r < ratios_.size(); ++r) {
        const bool ends = (position + 1) % ratios_[r] == 0;
        if (ends != (i < wanted.groups[r] - now_.groups[r])) return false;
      }
      return true;
    };
    int64_t position = 0;
    while (position < page_tokens_ && !fits(position)) ++position;
    if (position == page_tokens_) return renew(plans, side);
    plans_.push_back(dead(plans[0], position));
  }
  return plans_;
}

std::span<const SequencePlan> DeadRows::renew(std::span<const SequencePlan> plans, size_t side) {
  std::swap(kept_[side], now_);
  spent_[side] = 0;
  return plans;
}

void DeadRows::measure(std::span<const SequencePlan> plans, Shape& shape) const {
  shape.rows = std::ssize(plans);
  for (size_t r = 0; r < ratios_.size(); ++r) {
    shape.groups[r] = std::ranges::count_if(plans, [ratio = ratios_[r]](const SequencePlan& plan) {
      return plan.end_position() % ratio == 0;
    });
  }
}

bool DeadRows::reaches(const Shape& from, const Shape& to) const {
  const int64_t more = to.rows - from.rows;
  if (more < 0 || to.rows < kRowsMin || to.rows > kRowsMax) return false;
  for (size_t r = 0; r < ratios_.size(); ++r) {
    const int64_t groups = to.groups[r] - from.groups[r];
    if (groups < 0 || groups > more) return false;
  }
  return true;
}

SequencePlan DeadRows::dead(const SequencePlan& like, int64_t position) const {
  SequencePlan plan;
  plan.slot = slot_;
  plan.kind = RowKind::kDecode;
  plan.first_position = position;
  plan.tokens = {&kDeadToken, 1};
  plan.page_table = page_;
  plan.logits_begin = 0;
  plan.draw = like.draw;
  plan.window_floor = position;
  plan.hold_inputs = like.hold_inputs;
  return plan;
}

}  // namespace galley::model
