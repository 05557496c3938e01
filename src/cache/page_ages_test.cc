// The bands against a plain list of times, over random uses and sleeps.
#include "cache/page_ages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace galley::cache {
namespace {

PageAges::Bands count(const std::map<int32_t, int64_t>& since, int64_t now_s) {
  PageAges::Bands bands = {};
  for (const auto& [page, used_s] : since) {
    size_t band = 0;
    while (band < PageAges::kBandSeconds.size() && now_s - used_s >= PageAges::kBandSeconds[band]) {
      ++band;
    }
    ++bands[band];
  }
  return bands;
}

TEST(PageAges, CountsAsAListDoes) {
  constexpr int32_t kPages = 50;
  std::mt19937 random(7);
  PageAges ages(kPages);
  std::map<int32_t, int64_t> since;
  int64_t now_s = 0;
  int32_t seen = 0;  // how many bands were ever used
  PageAges::Bands most = {};
  for (int32_t round = 0; round < 20'000; ++round) {
    const auto page = static_cast<int32_t>(random() % kPages);
    if (since.erase(page) > 0) {
      ages.remove(PageId{page});
    } else {
      ages.add(PageId{page});
      since[page] = now_s;
    }
    switch (random() % 40) {
      case 0:
        now_s += 200 + static_cast<int64_t>(random() % 300);
        break;
      case 1:
        now_s += 5000;
        break;
      default:
        now_s += static_cast<int64_t>(random() % 3);
    }
    ages.set_time(now_s);
    ages.set_time(now_s - 1);  // never goes back
    const PageAges::Bands bands = ages.bands(now_s);
    ASSERT_EQ(bands, count(since, now_s)) << "round " << round;
    const int64_t later_s = now_s + static_cast<int64_t>(random() % 1000);
    ASSERT_EQ(ages.bands(later_s), count(since, later_s)) << "round " << round;
    for (size_t band = 0; band < bands.size(); ++band) {
      if (most[band] == 0 && bands[band] > 0) ++seen;
      most[band] = std::max(most[band], bands[band]);
    }
  }
  EXPECT_EQ(seen, 4);
}

}  // namespace
}  // namespace galley::cache
