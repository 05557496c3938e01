// A device's memory for tests on machines without one: the host's own, behind the rules of a
// device. It has an end, it counts what is taken, and it is no host memory to whoever asks.
//
// Pointers are the host's, so kernels of the host compute in it.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "kernels/memory.h"

namespace galley::kernels {

class PretendedDevice final : public Memory {
 public:
  explicit PretendedDevice(int64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  bool is_host() const override { return false; }
  int64_t free_bytes() const override { return limit_bytes_ - bytes_; }

  Result<void*> allocate(int64_t bytes, const char* what) override {
    if (bytes > free_bytes()) {
      return Error{ErrorCode::kExhausted, std::string("no room for ") + what};
    }
    bytes_ += bytes;
    ++allocations_;
    return take(bytes);
  }
  void release(void* memory, int64_t bytes) override {
    bytes_ -= bytes;
    std::free(memory);
  }
  Result<void*> allocate_host(int64_t bytes, const char* /*what*/) override {
    pinned_bytes_ += bytes;
    if (pinned_bytes_ > pinned_peak_) pinned_peak_ = pinned_bytes_;
    return take(bytes);
  }
  void release_host(void* memory, int64_t bytes) override {
    pinned_bytes_ -= bytes;
    std::free(memory);
  }

  void write(void* to, const void* from_host, int64_t bytes) override {
    ++transfers_;
    std::memcpy(to, from_host, static_cast<size_t>(bytes));
  }
  void read(void* to_host, const void* from, int64_t bytes) override {
    std::memcpy(to_host, from, static_cast<size_t>(bytes));
  }

  int64_t bytes() const { return bytes_; }              // taken now
  int64_t allocations() const { return allocations_; }  // ever
  int64_t transfers() const { return transfers_; }      // to the device
  int64_t pinned_peak() const { return pinned_peak_; }

 private:
  static void* take(int64_t bytes) {
    return std::aligned_alloc(256, static_cast<size_t>((bytes + 255) / 256 * 256));
  }

  int64_t limit_bytes_;
  int64_t bytes_ = 0;
  int64_t allocations_ = 0;
  int64_t transfers_ = 0;
  int64_t pinned_bytes_ = 0;
  int64_t pinned_peak_ = 0;
};

}  // namespace galley::kernels
