// What observers see of the kernels' memory: the rows themselves where the host
// can read them, copies otherwise.
//
// Slow and allocating: for verification only. Copies live until clear().
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "kernels/ops.h"
#include "kernels/tensor.h"

namespace galley::model {

class SeenRows {
 public:
  // `memory` outlives this.
  explicit SeenRows(kernels::Memory& memory) : memory_(memory) {}

  template <class T>
  kernels::Rows<T> rows(kernels::Rows<T> rows) {
    if (memory_.is_host() || rows.data == nullptr || rows.rows == 0) return rows;
    const int64_t elements = (rows.rows - 1) * rows.stride + rows.cols;
    auto* copy = static_cast<T*>(bytes(rows.data, elements * static_cast<int64_t>(sizeof(T))));
    return kernels::Rows<T>(copy, rows.rows, rows.cols, rows.stride);
  }

  // Rows whose choices, counts and scores the host can read.
  std::span<const kernels::IndexRow> index_rows(std::span<const kernels::IndexRow> rows,
                                                const kernels::IndexShape& shape);
  // The other way: what the caller changed in a row's choice and pool.
  void put_back(const kernels::IndexRow& seen, const kernels::IndexRow& row,
                const kernels::IndexShape& shape);

  void clear() {
    copies_.clear();
    index_rows_.clear();
  }

 private:
  void* bytes(const void* from, int64_t count);

  kernels::Memory& memory_;
  std::deque<std::vector<std::byte>> copies_;
  std::vector<kernels::IndexRow> index_rows_;
};

}  // namespace galley::model
