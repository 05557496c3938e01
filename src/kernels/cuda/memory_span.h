// Which memory launches touch, so that two that touch different memory can become one.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "kernels/cuda/grouped_product.h"
#include "kernels/cuda/launch.h"
#include "kernels/ops.h"
#include "kernels/tensor.h"

namespace galley::kernels::cuda {

struct MemorySpan {
  uintptr_t begin = 0;
  uintptr_t end = 0;  // begin: empty

  static MemorySpan of(const void* data, int64_t bytes) {
    const auto at = reinterpret_cast<uintptr_t>(data);
    return {at, at + static_cast<uintptr_t>(bytes)};
  }
  // From the first row's begin to the last one's end, what lies between rows included.
  template <class T>
  static MemorySpan of(const Rows<T>& rows) {
    if (rows.data == nullptr || rows.rows == 0) return {};
    return of(rows.data, ((rows.rows - 1) * rows.stride + rows.cols) * int64_t{sizeof(T)});
  }
  // The smallest that has both.
  MemorySpan with(MemorySpan other) const {
    if (begin == end) return other;
    if (other.begin == other.end) return *this;
    return {std::min(begin, other.begin), std::max(end, other.end)};
  }
  bool meets(MemorySpan other) const {
    return begin < end && other.begin < other.end && begin < other.end && other.begin < end;
  }
};

// What calls have written since it was cleared, as long as they are few.
class WrittenSpans {
 public:
  void clear() { count_ = 0; }
  void add(MemorySpan span) {
    if (count_ < kMost) spans_[static_cast<size_t>(count_)] = span;
    count_ = std::min(count_ + 1, kMost + 1);
  }
  // Or may have been.
  bool meet(MemorySpan other) const {
    return count_ > kMost || std::any_of(spans_.begin(), spans_.begin() + count_,
                                         [&](MemorySpan one) { return one.meets(other); });
  }

 private:
  static constexpr int32_t kMost = 128;
  std::array<MemorySpan, kMost> spans_;
  int32_t count_ = 0;
};

// Whether work that reads and writes these must not run beside the products.
inline bool touches(const ProductSet& set, MemorySpan read, MemorySpan written) {
  for (int32_t i = 0; i < set.count; ++i) {
    const RowProduct& one = set.products[i];
    for (const MemorySpan y : {MemorySpan::of(one.y), MemorySpan::of(one.y_f32)}) {
      if (y.meets(read) || y.meets(written)) return true;
    }
    if (MemorySpan::of(one.x).meets(written)) return true;
  }
  return false;
}
// The Q8 of folded products' input is nobody else's.
inline bool touches(const DenseSet& set, MemorySpan read, MemorySpan written) {
  if (MemorySpan::of(set.raw).meets(written)) return true;
  const int64_t element = set.form == ResultForm::kF32 ? sizeof(float) : sizeof(Bf16);
  for (int32_t i = 0; i < set.count; ++i) {
    const DensePart& one = set.parts[i];
    const auto y =
        MemorySpan::of(one.y, ((set.common.rows - 1) * one.y_stride + one.outputs) * element);
    if (y.meets(read) || y.meets(written)) return true;
  }
  return false;
}
inline bool touches(const ProductSet& set, const WindowKeys& keys) {
  return touches(set, MemorySpan::of(keys.x), MemorySpan::of(keys.records));
}
// Of hundreds of copies, which are looked at one by one only where what lies around all of them
// meets the set.
template <class Set>
bool touches(const Set& set, std::span<const RowCopy> copies) {
  MemorySpan read;
  MemorySpan written;
  for (const RowCopy& one : copies) {
    read = read.with(MemorySpan::of(one.from, one.bytes));
    written = written.with(MemorySpan::of(one.to, one.bytes));
  }
  if (!touches(set, read, written)) return false;
  for (const RowCopy& one : copies) {
    if (touches(set, MemorySpan::of(one.from, one.bytes), MemorySpan::of(one.to, one.bytes))) {
      return true;
    }
  }
  return false;
}

}  // namespace galley::kernels::cuda
