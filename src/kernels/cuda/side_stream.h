// A second stream, and the events that put it in order with the first: what goes there begins
// behind what the first one had at the fork, and the first one waits for it where they join.
#pragma once

#include "kernels/cuda/device.h"

namespace galley::kernels::cuda {

struct SideStream {
  Stream stream = nullptr;
  Event forked = nullptr;
  Event joined = nullptr;
};
Result<void> open_side(SideStream& side);
void close_side(SideStream& side);

// In the order of `stream`. Captured, they become edges of the graph.
void fork_side(Stream stream, const SideStream* side);  // marks the place
void enter_side(const SideStream& side);                // what follows on the side is behind it
void join_side(Stream stream, const SideStream& side);  // what follows waits for the side

}  // namespace galley::kernels::cuda
