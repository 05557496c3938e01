// Small host values on their way to the kernels: written into pinned memory one
// after the other, copied to the same place of a device block by the next upload().
// Copies pass on a stream of their own, beside the kernels of the step before; the
// kernels' stream waits for them.
//
// Offsets depend on the order and sizes of what is staged alone, so that the same
// calls in another step stage at the same addresses. Without room it grows, which
// waits for the stream and allocates; reserve() avoids that. Owned by one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "kernels/cuda/device.h"
#include "kernels/memory.h"

namespace galley::kernels::cuda {

class StageArena {
 public:
  // `memory` and both streams outlive it.
  StageArena(Memory& memory, Stream stream, Stream copies);
  ~StageArena();
  StageArena(const StageArena&) = delete;
  StageArena& operator=(const StageArena&) = delete;

  Result<void> reserve(int64_t bytes);
  // Everything staged so far may be overwritten: the kernels that read it have ended.
  void reset() {
    block_ = 0;
    used_ = 0;
    sent_ = 0;
  }

  // Room of the device where launches after the next upload() read what the caller wrote to
  // `host` before it. Written before the next take: that may send what is there.
  struct Place {
    std::byte* host = nullptr;
    std::byte* device = nullptr;
  };
  Place take(int64_t bytes);
  const void* stage(const void* host, int64_t bytes);  // take and write
  void upload();

  // False once a block could not be allocated: what was staged since is nowhere.
  bool ok() const { return ok_; }

 private:
  struct Block {
    MemoryBlock host;
    MemoryBlock device;
  };

  void upload_block();

  Memory& memory_;
  Stream stream_;
  Stream copies_;
  Event uploaded_ = nullptr;
  std::vector<Block> blocks_;
  size_t block_ = 0;  // the one in use
  int64_t used_ = 0;  // of it
  int64_t sent_ = 0;  // of it, by the last upload()
  bool ok_ = true;
};

}  // namespace galley::kernels::cuda
