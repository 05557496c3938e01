// Working memory of operations, one room for each use; what lies there lives until the next
// operation that names it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>

#include "kernels/cuda/step_lane.h"
#include "kernels/memory.h"
#include "kernels/ops.h"

namespace galley::kernels::cuda {

enum class Scratch : uint8_t {
  kQuantised,  // a product's input in simulated Q8
  kPacked,     // an input whose rows are not whole vectors
  kMix,        // hc_enter
  kRouter,
  kRoutePlan,  // filled
  kPlan,       // pairs by expert
  kGate,       // of pairs
  kUp,
  kPairs,  // experts' results
  kSharedGate,
  kSharedUp,
  kShared,
  kExperts,  // folded experts: rows on their way through the layer
  kTiles,    // a folded product's input: codes, then scales
  kScores,   // indexer
  kDraw,
  kBlockScores,
  kIndex,      // of index_select_sm90
  kAttention,  // of attention_sm90
  kCount,
};

class ScratchRooms {
 public:
  // `flush` hands everything called so far to the lane; the others outlive this.
  ScratchRooms(Memory& memory, StepLane& lane, std::function<void()> flush);

  // Everything that calls within the bounds may ask for. A failure shows in the lane.
  void reserve(const StepBounds& bounds);

  // At least `count` bytes. Grows when a call is larger than all before: that waits for the device,
  // and graphs are forgotten; in a step that waits for the host it fails instead. Null after a
  // failure, which the step's end tells.
  void* bytes(Scratch which, int64_t count);
  // The same, all of it 0xFF when it is made; the caller names no other count.
  void* filled(Scratch which, int64_t count);

 private:
  void reserve_values(Scratch which, int64_t rows, int64_t columns);
  void reserve_experts(const MoeWeights& weights, const StepBounds& bounds);

  Memory& memory_;
  StepLane& lane_;
  std::function<void()> flush_;
  std::array<MemoryBlock, static_cast<size_t>(Scratch::kCount)> rooms_;
};

}  // namespace galley::kernels::cuda
