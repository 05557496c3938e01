// Working memory of one thread: a few buffers that grow to the largest size asked
// for and are then reused, so that a step allocates nothing.
//
// Compiled without SIMD flags; fast/ only calls into it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace galley::kernels::fast {

class Scratch {
 public:
  static constexpr int kSlots = 13;

  // At least `count` elements, 64-byte aligned; contents are whatever was there.
  // The memory of a slot is valid until the slot is asked for again.
  template <class T>
  [[gnu::always_inline]] T* get(int slot, int64_t count) {
    const auto bytes = static_cast<size_t>(count) * sizeof(T);
    if (bytes > buffers_[slot].bytes) grow(slot, bytes);
    return static_cast<T*>(buffers_[slot].data);
  }

 private:
  struct Buffer {
    Buffer() = default;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer();
    void* data = nullptr;
    size_t bytes = 0;
  };

  void grow(int slot, size_t bytes);

  Buffer buffers_[kSlots];
};

}  // namespace galley::kernels::fast
