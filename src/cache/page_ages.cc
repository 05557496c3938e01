#include "cache/page_ages.h"

#include <algorithm>

#include "base/check.h"

namespace galley::cache {

void PageAges::set_time(int64_t now_s) {
  const int64_t steps = now_s - now_s_;
  // Seconds that leave the window; after a long sleep all of them do.
  for (int64_t i = 0; i < std::min<int64_t>(steps, kSeconds); ++i) {
    int32_t& leaving = counts_[place(static_cast<int32_t>((now_s_ + i + 1) % kSeconds))];
    older_ += leaving;
    leaving = 0;
  }
  if (steps > 0) now_s_ = static_cast<int32_t>(now_s);
}

void PageAges::add(PageId page) {
  int32_t& since = since_[static_cast<size_t>(page.index)];
  DCHECK(since == kAbsent);
  since = now_s_;
  ++counts_[place(now_s_)];
}

void PageAges::remove(PageId page) {
  int32_t& since = since_[static_cast<size_t>(page.index)];
  DCHECK(since != kAbsent);
  --(now_s_ - since < kSeconds ? counts_[place(since)] : older_);
  since = kAbsent;
}

PageAges::Bands PageAges::bands(int64_t now_s) const {
  const int64_t later = std::max<int64_t>(0, now_s - now_s_);
  Bands bands = {};
  for (int32_t age = 0; age < kSeconds; ++age) {
    const auto band = std::ranges::upper_bound(kBandSeconds, age + later) - kBandSeconds.begin();
    if (age <= now_s_) bands[static_cast<size_t>(band)] += counts_[place(now_s_ - age)];
  }
  bands.back() += older_;
  return bands;
}

}  // namespace galley::cache
