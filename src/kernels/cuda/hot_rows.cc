#include "kernels/cuda/hot_rows.h"

#include <algorithm>
#include <bit>

namespace galley::kernels::cuda {

HotRows::HotRows(int64_t places)
    : sets_(static_cast<int64_t>(
          std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(places / kWays, 1))))),
      tag_(static_cast<size_t>(sets_ * kWays), -1),
      used_(tag_.size(), 0),
      staged_(tag_.size(), -1) {}

void HotRows::begin_call() {
  staged_count_ = 0;
  if (++call_ != 0) return;
  // After four thousand million calls: everything is as old as can be.
  std::ranges::fill(used_, 0U);
  call_ = 1;
}

size_t HotRows::first_place(int64_t row) const {
  // Rows of one n-gram lie anywhere in the table; neighbours must not share a set.
  uint64_t hash = static_cast<uint64_t>(row) * 0x9E3779B97F4A7C15U;
  hash ^= hash >> 32;
  return (hash & static_cast<uint64_t>(sets_ - 1)) * kWays;
}

void HotRows::prefetch(int64_t row) const {
  const size_t first = first_place(row);
  __builtin_prefetch(&tag_[first], 1);
  __builtin_prefetch(&used_[first], 1);
  __builtin_prefetch(&staged_[first], 1);
}

HotRows::Found HotRows::find(int64_t row) {
  const auto first = static_cast<int64_t>(first_place(row));
  int64_t oldest = -1;
  for (int64_t place = first; place < first + kWays; ++place) {
    const auto at = static_cast<size_t>(place);
    if (tag_[at] == row) {
      ++hits_;
      const bool brought_now = used_[at] == call_ && staged_[at] >= 0;
      if (brought_now) return {.place = -1, .staged = staged_[at]};
      used_[at] = call_;
      staged_[at] = -1;
      return {.place = static_cast<int32_t>(place), .staged = -1};
    }
    const bool free = used_[at] != call_;
    if (free && (oldest < 0 || used_[at] < used_[static_cast<size_t>(oldest)])) oldest = place;
  }
  ++misses_;
  const int32_t staged = staged_count_++;
  if (oldest < 0) return {.place = -1, .staged = staged};  // the whole set is in use
  const auto at = static_cast<size_t>(oldest);
  tag_[at] = row;
  used_[at] = call_;
  staged_[at] = staged;
  return {.place = static_cast<int32_t>(oldest), .staged = staged};
}

}  // namespace galley::kernels::cuda
