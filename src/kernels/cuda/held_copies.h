// Copies of rows that wait for a launch that takes them along on further blocks.
//
// Knows what memory they touch, not who launches what. The list is in host memory, and staged for
// the device under the pointer that goes with it. Owned by the engine's thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/memory_span.h"
#include "kernels/ops.h"

namespace galley::kernels::cuda {

class HeldCopies {
 public:
  struct Staged {
    const RowCopy* list = nullptr;
    int64_t count = 0;
  };

  explicit HeldCopies(int64_t most) { list_.reserve(static_cast<size_t>(most)); }

  bool empty() const { return list_.empty(); }
  std::span<const RowCopy> list() const { return list_; }
  void hold(std::span<const RowCopy> copies, const RowCopy* staged) {
    list_.assign(copies.begin(), copies.end());
    staged_ = staged;
  }
  // For whoever launches them now.
  Staged take() {
    if (list_.empty()) return {};
    const auto count = static_cast<int64_t>(list_.size());
    list_.clear();
    return {staged_, count};
  }
  // The same, into a launch that takes them along.
  template <class Launch>
  void move_to(Launch& launch) {
    const Staged staged = take();
    launch.copies = staged.list;
    launch.copy_count = staged.count;
  }
  // Whether their order with work that reads and writes these matters.
  bool meet(MemorySpan read, MemorySpan written) const {
    return std::any_of(list_.begin(), list_.end(), [&](const RowCopy& one) {
      const auto to = MemorySpan::of(one.to, one.bytes);
      return to.meets(read) || to.meets(written) ||
             MemorySpan::of(one.from, one.bytes).meets(written);
    });
  }

  // While it lives, nobody sees the copies, if they do not meet what is read and written: a call
  // then goes in front of them, and a launch behind it may still take them along.
  class Aside {
   public:
    Aside(HeldCopies& held, MemorySpan read, MemorySpan written) : held_(held) {
      if (!held.meet(read, written)) list_.swap(held.list_);
    }
    ~Aside() {
      if (!list_.empty()) list_.swap(held_.list_);
    }
    Aside(const Aside&) = delete;
    Aside& operator=(const Aside&) = delete;

   private:
    HeldCopies& held_;
    std::vector<RowCopy> list_;
  };

 private:
  std::vector<RowCopy> list_;
  const RowCopy* staged_ = nullptr;
};

}  // namespace galley::kernels::cuda
