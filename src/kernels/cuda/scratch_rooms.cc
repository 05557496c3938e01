#include "kernels/cuda/scratch_rooms.h"

#include <cuda_runtime_api.h>

#include <utility>
#include <vector>

namespace galley::kernels::cuda {

ScratchRooms::ScratchRooms(Memory& memory, StepLane& lane, std::function<void()> flush)
    : memory_(memory), lane_(lane), flush_(std::move(flush)) {}

void* ScratchRooms::bytes(Scratch which, int64_t count) {
  MemoryBlock& room = rooms_[static_cast<size_t>(which)];
  if (room.bytes() >= count) return room.data();
  if (lane_.awaits_ids()) {  // to wait for the device would be to wait for this thread
    lane_.fail({ErrorCode::kInvalid, "CUDA: a step that was not reserved was submitted ahead"});
    return nullptr;
  }
  flush_();
  lane_.synchronise();  // kernels may still use the smaller one
  lane_.forget_graphs();
  room = {};
  auto grown = MemoryBlock::create(memory_, count, "working memory of kernels");
  if (!grown) {
    lane_.fail(grown.error());
    return nullptr;
  }
  room = *std::move(grown);
  return room.data();
}

void* ScratchRooms::filled(Scratch which, int64_t count) {
  const MemoryBlock& room = rooms_[static_cast<size_t>(which)];
  if (room.bytes() > 0) return room.data();
  void* made = bytes(which, count);
  if (made != nullptr) {
    const std::vector<std::byte> ones(static_cast<size_t>(count), std::byte{0xFF});
    memory_.write(made, ones.data(), count);
  }
  return made;
}

}  // namespace galley::kernels::cuda
