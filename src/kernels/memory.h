// The memory that kernels compute in: the host's own, or a device's.
//
// Whoever keeps bytes for kernels (workspace, cache, weights) takes them from
// here and reaches them only through read and write, unless is_host() says that
// a pointer of the one is a pointer of the other. Knows no shapes and no streams:
// transfers happen after every operation called before them, and are over when
// the call returns. Owned by the thread that calls the kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/result.h"

namespace galley::kernels {

class Memory {
 public:
  virtual ~Memory() = default;

  virtual bool is_host() const = 0;

  // What allocate() can still give, as far as the device says; on the host INT64_MAX, since the
  // system decides page by page.
  virtual int64_t free_bytes() const = 0;

  // A multiple of 256 bytes apart from all others, not cleared; on the host the system gives it
  // page by page on first touch. `what` names it in the message of kExhausted.
  virtual Result<void*> allocate(int64_t bytes, const char* what) = 0;
  virtual void release(void* memory, int64_t bytes) = 0;

  // Host memory from which transfers are fast; the same as allocate() on the host.
  virtual Result<void*> allocate_host(int64_t bytes, const char* what) = 0;
  virtual void release_host(void* memory, int64_t bytes) = 0;

  // A failed transfer shows at the end of the step (Ops::finish), like a failed kernel.
  virtual void write(void* to, const void* from_host, int64_t bytes) = 0;
  virtual void read(void* to_host, const void* from, int64_t bytes) = 0;
};

Memory& host_memory();

// Bytes of a Memory, released with it, which must outlive it.
class MemoryBlock {
 public:
  MemoryBlock() = default;
  static Result<MemoryBlock> create(Memory& memory, int64_t bytes, const char* what) {
    if (bytes == 0) return MemoryBlock();
    return MemoryBlock(memory, TRY(memory.allocate(bytes, what)), bytes, false);
  }
  static Result<MemoryBlock> create_host(Memory& memory, int64_t bytes, const char* what) {
    if (bytes == 0) return MemoryBlock();
    return MemoryBlock(memory, TRY(memory.allocate_host(bytes, what)), bytes, true);
  }
  ~MemoryBlock() { reset(); }
  MemoryBlock(MemoryBlock&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        on_host_(other.on_host_) {}
  MemoryBlock& operator=(MemoryBlock&& other) noexcept {
    if (this == &other) return *this;
    reset();
    memory_ = std::exchange(other.memory_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    on_host_ = other.on_host_;
    return *this;
  }

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  int64_t bytes() const { return bytes_; }

 private:
  MemoryBlock(Memory& memory, void* data, int64_t bytes, bool on_host)
      : memory_(&memory), data_(data), bytes_(bytes), on_host_(on_host) {}
  void reset() {
    if (data_ == nullptr) return;
    if (on_host_) {
      memory_->release_host(data_, bytes_);
    } else {
      memory_->release(data_, bytes_);
    }
    data_ = nullptr;
  }

  Memory* memory_ = nullptr;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
  bool on_host_ = false;
};

}  // namespace galley::kernels
