#include "kernels/fast/scratch.h"

#include <cstdlib>

#include "base/check.h"

namespace galley::kernels::fast {

Scratch::Buffer::~Buffer() { std::free(data); }

void Scratch::grow(int slot, size_t bytes) {
  CHECK(slot >= 0 && slot < kSlots);
  Buffer& buffer = buffers_[slot];
  std::free(buffer.data);
  // Half as much again: batches grow in small steps while a server warms up.
  buffer.bytes = (bytes + bytes / 2 + 4095) / 4096 * 4096;
  buffer.data = std::aligned_alloc(64, buffer.bytes);
  CHECK(buffer.data != nullptr);
}

}  // namespace galley::kernels::fast
