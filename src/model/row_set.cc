#include "model/row_set.h"

#include <algorithm>

namespace galley::model {

RowSet::RowSet(int64_t rows_max, int32_t sequences_max, int32_t rotary)
    : segment_of_sequence_(static_cast<size_t>(sequences_max)) {
  segments_.reserve(static_cast<size_t>(sequences_max));
  positions_.reserve(static_cast<size_t>(rows_max));
  sequences_.reserve(static_cast<size_t>(rows_max));
  in_image_.reserve(static_cast<size_t>(rows_max));
  alive_.reserve(static_cast<size_t>(rows_max));
  for (RowBuffer<float>& angles : angles_) angles = RowBuffer<float>(rows_max, rotary / 2);
}

void RowSet::clear() {
  std::ranges::fill(segment_of_sequence_, 0);
  segments_.clear();
  positions_.clear();
  sequences_.clear();
  in_image_.clear();
  alive_.clear();
}

void RowSet::add(int32_t sequence, const SequencePlan& plan, int64_t first_position) {
  const auto count = static_cast<int32_t>(plan.end_position() - first_position);
  if (count == 0) return;
  CHECK(positions_.size() + static_cast<size_t>(count) <= positions_.capacity());
  segments_.push_back({.sequence = sequence,
                       .begin = static_cast<int32_t>(rows()),
                       .count = count,
                       .first_position = first_position});
  segment_of_sequence_[static_cast<size_t>(sequence)] = static_cast<int32_t>(segments_.size());
  const auto look_back_count = static_cast<int64_t>(plan.look_back_in_image.size());
  for (int64_t position = first_position; position < plan.end_position(); ++position) {
    const int64_t at = position - plan.first_position;
    uint8_t image = 0;
    if (at >= 0 && !plan.in_image.empty()) image = plan.in_image[static_cast<size_t>(at)];
    if (at < 0 && look_back_count > 0) {
      image = plan.look_back_in_image[static_cast<size_t>(at + look_back_count)];
    }
    positions_.push_back(position);
    sequences_.push_back(sequence);
    in_image_.push_back(image);
    alive_.push_back(image == 0 ? 1 : 0);
  }
}

void RowSet::fill_angles(const RopeTables& tables) {
  tables.window.fill(positions_, cos_window(), sin_window());
  tables.compressed.fill(positions_, cos_compressed(), sin_compressed());
}

const RowSegment* RowSet::segment_of(int32_t sequence) const {
  const int32_t number = segment_of_sequence_[static_cast<size_t>(sequence)];
  return number == 0 ? nullptr : &segments_[static_cast<size_t>(number - 1)];
}

GroupSet::GroupSet(int32_t ratio, int64_t rows_max, int32_t rotary)
    : ratio_(ratio), cos_(rows_max, rotary / 2), sin_(rows_max, rotary / 2) {
  entries_.reserve(static_cast<size_t>(rows_max));
  positions_.reserve(static_cast<size_t>(rows_max));
  sequences_.reserve(static_cast<size_t>(rows_max));
}

void GroupSet::clear() {
  entries_.clear();
  positions_.clear();
  sequences_.clear();
}

void GroupSet::add(int32_t sequence, const SequencePlan& plan) {
  const int64_t begin = std::max(plan.first_position, plan.global_begin) / ratio_;
  const int64_t end = plan.end_position() / ratio_;
  for (int64_t entry = begin; entry < end; ++entry) {
    entries_.push_back(entry);
    positions_.push_back(entry * ratio_);
    sequences_.push_back(sequence);
  }
}

void GroupSet::fill_angles(const kernels::RopeTable& table) {
  table.fill(positions_, cos_.first(count()), sin_.first(count()));
}

}  // namespace galley::model
