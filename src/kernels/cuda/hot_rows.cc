#include "kernels/cuda/hot_rows.h"

#include <algorithm>
#include <bit>

namespace galley::kernels::cuda {

HotRows::HotRows(int64_t places)
    : sets_(std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(places / kWays, 1)))) {
  for (Set& set : sets_) {
    std::ranges::fill(set.tag, -1);
    std::ranges::fill(set.staged, -1);
  }
}

void HotRows::begin_call() {
  staged_count_ = 0;
  if (++call_ != 0) return;
  // After four thousand million calls: everything is as old as can be.
  for (Set& set : sets_) std::ranges::fill(set.used, 0U);
  call_ = 1;
}

size_t HotRows::set_of(int64_t row) const {
  // Rows of one n-gram lie anywhere in the table; neighbours must not share a set.
  uint64_t hash = static_cast<uint64_t>(row) * 0x9E3779B97F4A7C15U;
  hash ^= hash >> 32;
  return hash & (sets_.size() - 1);
}

void HotRows::prefetch(int64_t row) const {
  const Set& set = sets_[set_of(row)];
  __builtin_prefetch(set.tag, 1);
  __builtin_prefetch(set.used, 1);
}

HotRows::Found HotRows::find(int64_t row) {
  const size_t number = set_of(row);
  Set& set = sets_[number];
  const auto place_of = [&](int way) { return static_cast<int32_t>(number) * kWays + way; };
  int oldest = -1;
  for (int way = 0; way < kWays; ++way) {
    if (set.tag[way] == row) {
      ++hits_;
      const bool brought_now = set.used[way] == call_ && set.staged[way] >= 0;
      if (brought_now) return {.place = -1, .staged = set.staged[way]};
      set.used[way] = call_;
      set.staged[way] = -1;
      return {.place = place_of(way), .staged = -1};
    }
    const bool free = set.used[way] != call_;
    if (free && (oldest < 0 || set.used[way] < set.used[oldest])) oldest = way;
  }
  ++misses_;
  const int32_t staged = staged_count_++;
  if (oldest < 0) return {.place = -1, .staged = staged};  // the whole set is in use
  set.tag[oldest] = row;
  set.used[oldest] = call_;
  set.staged[oldest] = staged;
  return {.place = place_of(oldest), .staged = staged};
}

}  // namespace galley::kernels::cuda
