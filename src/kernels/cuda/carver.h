// Parts of one block of device memory.
#pragma once

#include <cstdint>

namespace galley::kernels::cuda {

// Hands out parts; without memory it only adds up.
class Carver {
 public:
  static constexpr int64_t kAlignment = 1024;  // of every part: bulk copies want 16, swizzles 1,024

  explicit Carver(uint8_t* memory) : memory_(memory) {}

  template <class T>
  T* take(int64_t count) {
    const int64_t at = used_;
    used_ += (count * static_cast<int64_t>(sizeof(T)) + kAlignment - 1) / kAlignment * kAlignment;
    return memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + at);
  }
  int64_t used() const { return used_; }

 private:
  uint8_t* memory_;
  int64_t used_ = 0;
};

}  // namespace galley::kernels::cuda
