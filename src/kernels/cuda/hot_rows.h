// Which rows of a large table a device keeps: sets of eight, the least recently used one gives way.
//
// Policy alone: rows are numbers, places are numbers, and nothing is copied here. One call is one
// lookup of many rows that run together: what it reads or fills stays until the next call, since
// its cells run in no order. Memory is fixed: 20 bytes a place. Owned by the engine's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace galley::kernels::cuda {

class HotRows {
 public:
  // Rounded down to a power of two of sets; at least one set.
  explicit HotRows(int64_t places);

  int64_t places() const { return static_cast<int64_t>(tag_.size()); }

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

  size_t first_place(int64_t row) const;

  int64_t sets_;                 // a power of two
  std::vector<int64_t> tag_;     // [places] row, or -1
  std::vector<uint32_t> used_;   // [places] number of the last call that touched it
  std::vector<int32_t> staged_;  // [places] where that call brings it from, or -1
  uint32_t call_ = 0;
  int32_t staged_count_ = 0;
  int64_t hits_ = 0;
  int64_t misses_ = 0;
};

}  // namespace galley::kernels::cuda
