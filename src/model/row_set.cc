#include "model/row_set.h"

#include <algorithm>

namespace galley::model {
namespace {

kernels::RopeAngles staged_angles(kernels::Ops& ops, kernels::Rows<float> cos,
                                  kernels::Rows<float> sin) {
  const auto stage = [&ops](const kernels::Rows<float>& rows) {
    const int64_t bytes = rows.rows * rows.cols * static_cast<int64_t>(sizeof(float));
    return kernels::Rows<const float>(static_cast<const float*>(ops.stage(rows.data, bytes)),
                                      rows.rows, rows.cols);
  };
  return {.cos = stage(cos), .sin = stage(sin)};
}

}  // namespace

RowSet::RowSet(int64_t rows_max, int32_t sequences_max, int32_t rotary, BufferSource& host)
    : segment_of_sequence_(static_cast<size_t>(sequences_max)) {
  segments_.reserve(static_cast<size_t>(sequences_max));
  positions_.reserve(static_cast<size_t>(rows_max));
  sequences_.reserve(static_cast<size_t>(rows_max));
  in_image_.reserve(static_cast<size_t>(rows_max));
  alive_.reserve(static_cast<size_t>(rows_max));
  for (RowBuffer<float>& angles : angles_) angles = RowBuffer<float>(host, rows_max, rotary / 2);
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

void RowSet::fill_angles(RopeTables& tables, kernels::Ops& ops) {
  const auto angles = [this](size_t which) { return angles_[which].first(rows()); };
  tables.window.fill(positions_, angles(0), angles(1));
  tables.compressed.fill(positions_, angles(2), angles(3));
  window_angles_ = staged_angles(ops, angles(0), angles(1));
  compressed_angles_ = staged_angles(ops, angles(2), angles(3));
}

const RowSegment* RowSet::segment_of(int32_t sequence) const {
  const int32_t number = segment_of_sequence_[static_cast<size_t>(sequence)];
  return number == 0 ? nullptr : &segments_[static_cast<size_t>(number - 1)];
}

GroupSet::GroupSet(int32_t ratio, int64_t rows_max, int32_t rotary, BufferSource& host)
    : ratio_(ratio), cos_(host, rows_max, rotary / 2), sin_(host, rows_max, rotary / 2) {
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

void GroupSet::fill_angles(RopeCache& table, kernels::Ops& ops) {
  table.fill(positions_, cos_.first(count()), sin_.first(count()));
  staged_ = staged_angles(ops, cos_.first(count()), sin_.first(count()));
}

}  // namespace galley::model
