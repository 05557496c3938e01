#include "kernels/cuda/scratch_rooms.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/attention_sm90.h"
#include "kernels/cuda/expert_layer.h"
#include "kernels/cuda/fold_store.h"
#include "kernels/cuda/hyper_connections.h"
#include "kernels/cuda/index_rooms.h"
#include "kernels/cuda/input_tiles.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/route.h"
#include "kernels/cuda/route_plan.h"
#include "kernels/cuda/sample.h"

namespace galley::kernels::cuda {
namespace {

constexpr int64_t kPackedWidthMax = 512;  // small models alone have rows that are no whole vectors

}  // namespace

ScratchRooms::ScratchRooms(Memory& memory, StepLane& lane, std::function<void()> flush)
    : memory_(memory), lane_(lane), flush_(std::move(flush)) {}

void ScratchRooms::reserve(const StepBounds& bounds) {
  const int64_t rows = bounds.rows;
  reserve_values(Scratch::kQuantised, rows, bounds.input_width);
  if (bounds.input_width <= kPackedWidthMax) {
    reserve_values(Scratch::kPacked, rows, bounds.input_width);
  }
  bytes(Scratch::kTiles, InputTiles::bytes(rows, bounds.input_width));
  bytes(Scratch::kMix, hc_enter_workspace_bytes(rows, bounds.hidden));
  if (bounds.routed_experts > 0) {
    bytes(Scratch::kRouter, route_workspace_bytes(rows, bounds.hidden, bounds.routed_experts));
    filled(Scratch::kRoutePlan, route_plan_room_bytes());
  }
  for (const MoeWeights& weights : bounds.moe) reserve_experts(weights, bounds);
  if (bounds.index.heads > 0) {
    const int64_t entries = std::max<int64_t>(1, bounds.entries);
    if (index_select_sm90_supports(bounds.index, bounds.index_records_per_page)) {
      bytes(Scratch::kIndex, index_room_bytes(rows, entries, true));
    } else {
      const ScoreRooms rooms = ScoreRooms::of(bounds.index, rows, entries);
      bytes(Scratch::kScores, rooms.score_bytes);
      bytes(Scratch::kBlockScores, rooms.block_bytes);
    }
  }
  bytes(Scratch::kAttention, kAttentionRoomRows * kAttentionRoomBytes);
  bytes(Scratch::kDraw, sample_workspace_bytes(bounds.logit_rows, bounds.vocab));
}

void ScratchRooms::reserve_experts(const MoeWeights& weights, const StepBounds& bounds) {
  const int64_t rows = bounds.rows;
  const int64_t pairs = rows * bounds.experts_per_token;
  const auto experts = static_cast<int32_t>(weights.experts.size());
  bytes(Scratch::kRouter,
        route_workspace_bytes(rows, bounds.hidden, std::max(experts, bounds.routed_experts)));
  if (experts > 0 && weights.experts[0].w1.folded) {
    bytes(Scratch::kExperts,
          expert_workspace_bytes(FoldStore::shape_of(weights, bounds.experts_per_token), rows));
    return;
  }
  reserve_values(Scratch::kGate, pairs + rows, bounds.expert_width);
  reserve_values(Scratch::kUp, pairs, bounds.expert_width);
  reserve_values(Scratch::kSharedGate, rows, bounds.expert_width);
  reserve_values(Scratch::kSharedUp, rows, bounds.expert_width);
  reserve_values(Scratch::kPairs, pairs + rows, bounds.hidden);
  reserve_values(Scratch::kShared, rows, bounds.hidden);
  bytes(Scratch::kPlan, pair_plan_bytes(pairs, experts, 8));
}

void ScratchRooms::reserve_values(Scratch which, int64_t rows, int64_t columns) {
  bytes(which, rows * whole_vectors(columns) * static_cast<int64_t>(sizeof(Bf16)));
}

void* ScratchRooms::bytes(Scratch which, int64_t count) {
  MemoryBlock& room = rooms_[static_cast<size_t>(which)];
  if (room.bytes() >= count) return room.data();
  if (lane_.awaits_ids()) {  // to wait for the device would be to wait for this thread
    lane_.fail({ErrorCode::kInvalid, "CUDA: a step submitted ahead wants " + std::to_string(count) +
                                         " bytes of working memory " +
                                         std::to_string(static_cast<int>(which)) + ", for which " +
                                         std::to_string(room.bytes()) +
                                         " are reserved; --async-scheduling off goes on without"});
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
