// Rows of one width for the step's workspace: aligned, allocated once, touched
// only where used.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "base/check.h"
#include "kernels/memory.h"
#include "kernels/tensor.h"

namespace galley::model {

// Where a set of buffers takes its memory from; keeps the first failure, so that a constructor
// full of buffers needs one check.
class BufferSource {
 public:
  explicit BufferSource(kernels::Memory& memory) : memory_(memory) {}

  kernels::MemoryBlock take(int64_t bytes) {
    auto block = kernels::MemoryBlock::create(memory_, bytes, "the step's workspace");
    if (block) return *std::move(block);
    if (!error_) error_ = block.error();
    return {};
  }
  Result<void> status() const {
    if (error_) return *error_;
    return {};
  }

 private:
  kernels::Memory& memory_;
  std::optional<Error> error_;
};

template <class T>
class RowBuffer {
 public:
  RowBuffer() = default;
  RowBuffer(BufferSource& source, int64_t rows, int64_t cols)
      : rows_(rows),
        cols_(cols),
        block_(source.take(rows * cols * static_cast<int64_t>(sizeof(T)))) {}

  // The first `rows` rows.
  kernels::Rows<T> first(int64_t rows) const {
    CHECK(rows <= rows_);
    return kernels::Rows<T>(data(), rows, cols_);
  }
  T* row(int64_t index) const { return data() + index * cols_; }
  // Only where the memory is the host's.
  T& operator[](int64_t index) const { return data()[index]; }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  int64_t row_bytes() const { return cols_ * static_cast<int64_t>(sizeof(T)); }
  int64_t bytes() const { return rows_ * row_bytes(); }

 private:
  T* data() const { return reinterpret_cast<T*>(block_.data()); }

  int64_t rows_ = 0;
  int64_t cols_ = 0;
  kernels::MemoryBlock block_;
};

}  // namespace galley::model
