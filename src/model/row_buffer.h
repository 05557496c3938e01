// Rows of one width for the step's workspace: aligned, allocated once, touched
// only where used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "base/check.h"
#include "kernels/tensor.h"

namespace galley::model {

template <class T>
class RowBuffer {
 public:
  RowBuffer() = default;
  RowBuffer(int64_t rows, int64_t cols)
      : rows_(rows),
        cols_(cols),
        data_(
            static_cast<T*>(::operator new[](static_cast<size_t>(rows* cols) * sizeof(T), kLine))) {
  }

  // The first `rows` rows.
  kernels::Rows<T> first(int64_t rows) const {
    CHECK(rows <= rows_);
    return kernels::Rows<T>(data_.get(), rows, cols_);
  }
  T* row(int64_t index) const { return data_.get() + index * cols_; }
  T& operator[](int64_t index) const { return data_.get()[index]; }
  int64_t cols() const { return cols_; }
  int64_t bytes() const { return rows_ * cols_ * static_cast<int64_t>(sizeof(T)); }

 private:
  static constexpr std::align_val_t kLine{64};
  struct Free {
    void operator()(T* data) const { ::operator delete[](data, kLine); }
  };

  int64_t rows_ = 0;
  int64_t cols_ = 0;
  std::unique_ptr<T, Free> data_;
};

}  // namespace galley::model
