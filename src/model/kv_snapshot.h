// What of a slot goes to host memory and back, and how it lies there.
//
// An image is a run of bytes cut into blocks of one size that need not be
// neighbours. The state is a function of the positions computed so far, never of
// the slot: an image may be loaded into any slot of the same layout. Who owns
// the blocks, and when a copy is ordered against steps, is the caller's matter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "model/kv_layout.h"

namespace galley::model {

enum class SlotPart : uint8_t {
  kWhole,  // everything: a sequence goes on where it was (preemption, hand-over)
  // What the rows from a page boundary on read of those before it, when they are not a
  // continuation of this sequence's output but somebody's prompt: rings of the layers up to the
  // cut, and the cut's inputs of which a later prompt makes its own tail rows (spec/model.md 8.3).
  kReuse,
};

struct HostBlocks {
  std::byte* memory = nullptr;
  int64_t block_bytes = 0;
  std::span<const int32_t> blocks = {};  // in the order of the image
};

int64_t slot_image_bytes(const KvLayout& layout, SlotPart part);

inline int32_t blocks_for(int64_t image_bytes, int64_t block_bytes) {
  return static_cast<int32_t>((image_bytes + block_bytes - 1) / block_bytes);
}

}  // namespace galley::model
