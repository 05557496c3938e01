#include "kernels/cuda/stage_arena.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace galley::kernels::cuda {
namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kBlockBytes = int64_t{8} << 20;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

StageArena::StageArena(Memory& memory, Stream stream, Stream copies)
    : memory_(memory), stream_(stream), copies_(copies) {
  cudaEventCreateWithFlags(&uploaded_, cudaEventDisableTiming);
}

StageArena::~StageArena() { cudaEventDestroy(uploaded_); }

Result<void> StageArena::reserve(int64_t bytes) {
  if (bytes == 0 || (!blocks_.empty() && blocks_.back().host.bytes() >= bytes)) return {};
  Block block;
  block.host = TRY(MemoryBlock::create_host(memory_, aligned(bytes), "staging"));
  block.device = TRY(MemoryBlock::create(memory_, aligned(bytes), "staging"));
  blocks_.push_back(std::move(block));
  return {};
}

StageArena::Place StageArena::take(int64_t bytes) {
  const int64_t size = aligned(std::max<int64_t>(bytes, 1));
  while (block_ < blocks_.size() && used_ + size > blocks_[block_].host.bytes()) {
    upload_block();
    ++block_;
    used_ = 0;
    sent_ = 0;
  }
  if (block_ == blocks_.size()) {
    Block block;
    auto host = MemoryBlock::create_host(memory_, std::max(size, kBlockBytes), "staging");
    auto device = MemoryBlock::create(memory_, std::max(size, kBlockBytes), "staging");
    if (!host || !device) {
      ok_ = false;
      return {};
    }
    block.host = *std::move(host);
    block.device = *std::move(device);
    blocks_.push_back(std::move(block));
  }
  const Place place{.host = blocks_[block_].host.data() + used_,
                    .device = blocks_[block_].device.data() + used_};
  used_ += size;
  return place;
}

const void* StageArena::stage(const void* host, int64_t bytes) {
  const Place place = take(bytes);
  if (place.host != nullptr && bytes > 0) {
    std::memcpy(place.host, host, static_cast<size_t>(bytes));
  }
  return place.device;
}

void StageArena::upload() {
  if (block_ < blocks_.size()) upload_block();
}

void StageArena::upload_block() {
  if (used_ == sent_) return;
  const Block& block = blocks_[block_];
  cudaMemcpyAsync(block.device.data() + sent_, block.host.data() + sent_,
                  static_cast<size_t>(used_ - sent_), cudaMemcpyHostToDevice, copies_);
  cudaEventRecord(uploaded_, copies_);
  cudaStreamWaitEvent(stream_, uploaded_, 0);
  sent_ = used_;
}

}  // namespace galley::kernels::cuda
