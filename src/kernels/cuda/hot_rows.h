// Which rows of a large table a device keeps: sets of eight, the least recently used one gives way.
//
// Policy alone: rows are numbers, places are numbers, and nothing is copied here. One call is one
// lookup of many rows that run together: what it reads or fills stays until the next call, since
// its cells run in no order. A set is two lines of the host's caches, side by side: 6,144 rows of
// which none is there take 0.12 ms, 0.48 while tags, ages and places lay apart. Memory is fixed: 16
// bytes a place. Owned by the engine's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

namespace galley::kernels::cuda {

class HotRows {
 public:
  // Rounded down to a power of two of sets; at least one set.
  explicit HotRows(int64_t places);

  int64_t places() const { return std::ssize(sets_) * kWays; }

  void begin_call();

  // One row of the call, which lies either in `place` of the kept ones, or is the `staged`-th of
  // those that the caller brings. With both, it is brought and then kept in `place`.
  struct Found {
    int32_t place = -1;
    int32_t staged = -1;
  };
  Found find(int64_t row);
  // Asks the caches for what find() of this row reads.
  void prefetch(int64_t row) const;

  int32_t staged_count() const { return staged_count_; }  // of this call
  int64_t hits() const { return hits_; }                  // of all calls
  int64_t misses() const { return misses_; }

 private:
  static constexpr int32_t kWays = 8;

  size_t set_of(int64_t row) const;

  // One place of the host's memory has all that find() reads of a set.
  struct alignas(128) Set {
    int64_t tag[kWays];     // row, or -1
    uint32_t used[kWays];   // number of the last call that touched it
    int32_t staged[kWays];  // where that call brings it from, or -1
  };
  std::vector<Set> sets_;  // a power of two
  uint32_t call_ = 0;
  int32_t staged_count_ = 0;
  int64_t hits_ = 0;
  int64_t misses_ = 0;
};

}  // namespace galley::kernels::cuda
