#include "model/rope_cache.h"

#include <algorithm>
#include <utility>

namespace galley::model {

RopeCache::RopeCache(const kernels::RopeOptions& options, int64_t positions_max)
    : table_(options), pairs_(std::ssize(table_.omega())) {
  const int64_t positions = std::clamp<int64_t>(positions_max, 0, kPositionsMax);
  auto rows = kernels::MemoryBlock::create(
      kernels::host_memory(), positions * 2 * pairs_ * int64_t{sizeof(float)}, "rotary angles");
  if (!rows) return;  // slower, and nothing else
  rows_ = *std::move(rows);
  is_known_.resize(static_cast<size_t>(positions));
}

void RopeCache::fill(std::span<const int64_t> positions, kernels::Rows<float> cos,
                     kernels::Rows<float> sin) {
  for (size_t i = 0; i < positions.size(); ++i) {
    const int64_t position = positions[i];
    const auto r = static_cast<int64_t>(i);
    const auto one = positions.subspan(i, 1);
    if (position >= std::ssize(is_known_)) {
      table_.fill(one, cos.slice(r, 1), sin.slice(r, 1));
      continue;
    }
    float* kept = row(position);
    if (!is_known_[static_cast<size_t>(position)]) {
      table_.fill(one, kernels::Rows<float>(kept, 1, pairs_),
                  kernels::Rows<float>(kept + pairs_, 1, pairs_));
      is_known_[static_cast<size_t>(position)] = true;
    }
    std::copy_n(kept, pairs_, cos.row(r));
    std::copy_n(kept + pairs_, pairs_, sin.row(r));
  }
}

}  // namespace galley::model
