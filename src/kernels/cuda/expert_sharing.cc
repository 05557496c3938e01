#include "kernels/cuda/expert_sharing.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "kernels/cuda/fold_store.h"

namespace galley::kernels::cuda {

CudaExpertSharing::~CudaExpertSharing() { close_side(lane_); }

Result<void> CudaExpertSharing::reserve(const StepBounds& bounds, const ExpertSpread& spread,
                                        int64_t rows_max) {
  CHECK(!bounds.moe.empty());
  if (spread.ranks > kShareRanksMax) {
    return Error{ErrorCode::kUnsupported,
                 "CUDA: experts over more than " + std::to_string(kShareRanksMax) + " cards"};
  }
  for (const MoeWeights& layer : bounds.moe) {
    if (layer.experts.empty() || !layer.experts[0].w1.folded) {
      return Error{ErrorCode::kUnsupported,
                   "CUDA: only folded experts (1,024 wide or more, docs/design/cuda.md) are shared "
                   "by several cards"};
    }
  }
  spread_ = spread;
  rows_max_ = rows_max;
  shape_ = FoldStore::shape_of(bounds.moe[0], bounds.experts_per_token);
  TRY(open_side(lane_));
  work_ = {};
  work_ = TRY(MemoryBlock::create(memory_, share_workspace_bytes(shape_, spread.ranks, rows_max),
                                  "working memory of shared experts"));
  return {};
}

int64_t CudaExpertSharing::input_bytes(int64_t rows) const {
  return share_input_bytes(shape_, rows);
}
int64_t CudaExpertSharing::parts_bytes(int64_t rows) const {
  return share_parts_bytes(shape_, rows);
}

void CudaExpertSharing::pack(Rows<const Bf16> x, Rows<const int32_t> experts,
                             Rows<const float> weights, std::byte* input) {
  CHECK(x.cols == shape_.hidden && experts.cols == shape_.top_k && x.stride % 8 == 0);
  CHECK(experts.stride == experts.cols && weights.stride == experts.cols);
  own_ = made_(x);
  enqueue(share_pack, shape_, x, own_, experts.data, weights.data, input);
}

void CudaExpertSharing::compute_shared(const MoeWeights& layer, Rows<const Bf16> x,
                                       const std::byte* input) {
  enqueue(share_shared, shape_, FoldStore::tiles_of(layer, shape_), spread_.ranks, input, own_,
          x.rows, rows_max_, work());
}

void CudaExpertSharing::compute_inner(const MoeWeights& layer,
                                      std::span<const std::byte* const> inputs,
                                      std::span<const int64_t> rows) {
  CHECK(std::ssize(inputs) == spread_.ranks && std::ssize(rows) == spread_.ranks);
  inputs_.count = spread_.ranks;
  inputs_.self = spread_.rank;
  inputs_.own = own_;
  std::ranges::copy(inputs, inputs_.of);
  std::ranges::copy(rows, inputs_.rows);
  if (inputs_.all() == 0) return;
  enqueue(share_inner, shape_, FoldStore::tiles_of(layer, shape_), spread_.first(), inputs_,
          rows_max_, work());
}

void CudaExpertSharing::compute_parts(const MoeWeights& layer, int32_t r, std::byte* parts) {
  enqueue(share_results, shape_, FoldStore::tiles_of(layer, shape_), inputs_, r, rows_max_, work(),
          parts);
}

void CudaExpertSharing::combine(Rows<const int32_t> experts,
                                std::span<const std::byte* const> parts, Rows<Bf16> y) {
  RankParts list;
  std::ranges::copy(parts, list.of);
  enqueue(share_combine, shape_, spread_.ranks, experts.data, list, rows_max_, work(), y);
}

void CudaExpertSharing::send_input(const std::byte* input, int64_t rows, std::byte* to) {
  enqueue(share_send_input, &std::as_const(lane_), shape_, input, own_, rows, to);
}
void CudaExpertSharing::send_parts(const std::byte* parts, int64_t rows, std::byte* to) {
  enqueue(share_send_parts, &std::as_const(lane_), shape_, spread_.ranks, parts, rows, to);
}
void CudaExpertSharing::raise(RankFlag* own, RankFlag* other) {
  enqueue(share_raise, &std::as_const(lane_), own, other);
}
void CudaExpertSharing::await(RankFlag* own) { enqueue(share_await, &std::as_const(lane_), own); }

}  // namespace galley::kernels::cuda
