// How long ago the pages that are kept for their prefix alone were last used, in
// a few bands, for people to look at.
//
// Counts by second for the last ten minutes; older pages are one number. A page
// costs four bytes and a change two additions. Knows no clock: whole seconds
// are handed in and never go back. Owned by the engine thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cache/page_id.h"

namespace galley::cache {

class PageAges {
 public:
  // Pages younger than so many seconds, and not in the band before; the last band has the rest.
  static constexpr std::array<int32_t, 3> kBandSeconds = {10, 60, 600};
  using Bands = std::array<int32_t, kBandSeconds.size() + 1>;

  explicit PageAges(int32_t page_count) : since_(static_cast<size_t>(page_count), kAbsent) {}

  void set_time(int64_t now_s);
  void add(PageId page);     // used until now; not in here already
  void remove(PageId page);  // in here

  // As seen at `now_s`, not before the last set_time.
  Bands bands(int64_t now_s) const;

 private:
  static constexpr int32_t kAbsent = -1;
  static constexpr int32_t kSeconds = kBandSeconds.back();

  static size_t place(int32_t second) { return static_cast<size_t>(second % kSeconds); }

  int32_t now_s_ = 0;
  std::vector<int32_t> since_;                 // by page: the second, or kAbsent
  std::array<int32_t, kSeconds> counts_ = {};  // by second, of the last kSeconds
  int32_t older_ = 0;
};

}  // namespace galley::cache
