// Experts of few narrow rows in two launches, without a plan: every (row, choice) pair is a tile of
// its own, and the shared expert's rows are one more.
//
// The sums and roundings are those of moe.cu: a pair's result does not depend on its tile, and Q8
// is computed by whoever reads a row (product_tile.cuh). What is read twice, an expert chosen by
// two rows, comes from L2. Floor: launches and the latency of two products.
#include "base/check.h"
#include "kernels/cuda/few_experts.h"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/product_tile.cuh"
#include "kernels/cuda/swiglu.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kPairStrips = kWarps / 2;  // of gate and up, a warp each

// Which rows a block has: of pair blockIdx.y, or, behind the pairs, 8 of the shared expert.
struct Tile {
  bool shared;
  int32_t pair;
  int64_t x_row;  // the first one's
  int64_t first;  // row of inner and out
  int64_t rows;
};
constexpr int64_t kSharedRows = 8;  // a block

__device__ __forceinline__ Tile tile_of(const FewExperts& e) {
  const int64_t pairs = e.experts.rows * e.experts.cols;
  const int64_t index = blockIdx.y;
  if (index < pairs) {
    return {false, static_cast<int32_t>(index), index / e.experts.cols, index, 1};
  }
  const int64_t row = (index - pairs) * kSharedRows;
  return {true, 0, row, pairs + row, min(kSharedRows, e.x.rows - row)};
}

__device__ __forceinline__ int32_t expert_of(const FewExperts& e, const Tile& tile) {
  return row_at(e.experts, tile.pair / e.experts.cols)[tile.pair % e.experts.cols];
}

template <WeightFormat kFormat, class XRow>
__device__ __forceinline__ void multiply_strip(const WeightView& weight, int64_t output,
                                               const Tile& tile, const XRow& x_row,
                                               float (&sums)[1][4]) {
  product_tile<kFormat, 1>(
      weight, output,
      [&](int) -> const Bf16* {
        const int64_t row = threadIdx.x % 32 / 4;
        return row < tile.rows ? x_row(row) : nullptr;
      },
      true, await_earlier, sums);
}

// Strips of the shared expert may be stored otherwise than those of the routed ones.
template <class XRow>
__device__ __forceinline__ void multiply_any(const WeightView& weight, int64_t output,
                                             const Tile& tile, const XRow& x_row,
                                             float (&sums)[1][4]) {
  switch (weight.format) {
    case WeightFormat::kFp8Tile32:
      return multiply_strip<WeightFormat::kFp8Tile32>(weight, output, tile, x_row, sums);
    case WeightFormat::kFp4Row32:
      return multiply_strip<WeightFormat::kFp4Row32>(weight, output, tile, x_row, sums);
    default:
      return multiply_strip<WeightFormat::kBf16>(weight, output, tile, x_row, sums);
  }
}

// inner = bf16(weight * swiglu(W1 x, W3 x)). Warps 2 s and 2 s + 1 have gate and up of strip s.
__global__ void __launch_bounds__(32 * kWarps)
    few_gate_up_kernel(const __grid_constant__ FewExperts e) {
  __shared__ float4 up_sums[kPairStrips][32];
  const Tile tile = tile_of(e);
  if (!tile.shared) await_earlier();  // the choice
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const bool is_up = warp % 2 != 0;
  const int64_t output = (int64_t{blockIdx.x} * kPairStrips + warp / 2) * kTileOutputs;
  const bool inside = output < e.inner.cols;
  float sums[1][4] = {};
  if (inside) {
    const WeightView weight = tile.shared ? (is_up ? e.shared_up : e.shared_gate)
                                          : (is_up ? e.up : e.gate)[expert_of(e, tile)];
    multiply_any(
        weight, output, tile, [&](int64_t row) { return row_at(e.x, tile.x_row + row); }, sums);
  }
  await_earlier();
  if (is_up) up_sums[warp / 2][lane] = {sums[0][0], sums[0][1], sums[0][2], sums[0][3]};
  __syncthreads();
  if (is_up || !inside) return;
  const float4 raw = up_sums[warp / 2][lane];
  const float up[4] = {raw.x, raw.y, raw.z, raw.w};
  const float factor = tile.shared ? 1.0F : e.expert_weights[tile.pair];
  int element = 0;
  each_sum<1>(output, sums, [&](int64_t o, int row, float gate) {
    const float other = up[element++];
    if (row >= tile.rows) return;
    row_at(e.inner, tile.first + row)[o] =
        narrow(swiglu(narrow(gate), narrow(other), factor, e.limit));
  });
}

// out = W2 Q8(inner), a row a pair, then the rows of the shared expert.
__global__ void __launch_bounds__(32 * kWarps)
    few_down_kernel(const __grid_constant__ FewExperts e) {
  const Tile tile = tile_of(e);
  if (!tile.shared) await_earlier();
  const int64_t output = (int64_t{blockIdx.x} * kWarps + threadIdx.x / 32) * kTileOutputs;
  if (output >= e.out.cols) return await_earlier();
  const WeightView weight = tile.shared ? e.shared_down : e.down[expert_of(e, tile)];
  float sums[1][4];
  multiply_any(
      weight, output, tile, [&](int64_t row) { return row_at(e.inner, tile.first + row); }, sums);
  each_sum<1>(output, sums, [&](int64_t o, int row, float sum) {
    if (row < tile.rows) row_at(e.out, tile.first + row)[o] = narrow(sum);
  });
}

bool is_narrow(const WeightView& weight, int64_t out, int64_t in) {
  return !weight.folded && weight.out == out && weight.in == in &&
         weight.format != WeightFormat::kF32;
}

}  // namespace

bool few_experts_support(Rows<const Bf16> x, const MoeWeights& weights) {
  if (weights.experts.empty() || x.rows > kFewExpertRowsMax || !is_packed_input(x)) return false;
  const int64_t hidden = x.cols;
  const int64_t inner = weights.shared.w1.out;
  const auto fits = [&](const ExpertWeights& one) {
    return is_narrow(one.w1, inner, hidden) && is_narrow(one.w3, inner, hidden) &&
           is_narrow(one.w2, hidden, inner);
  };
  // An expert's views are all of the first one's shape (launch.h, ExpertProduct).
  return hidden % kTileOutputs == 0 && inner % kTileOutputs == 0 &&
         hidden <= ProductSet::kQuantisedWidthMax && inner <= ProductSet::kQuantisedWidthMax &&
         fits(weights.shared) && fits(weights.experts.front());
}

void launch_few_experts(const FewExperts& e, Stream stream) {
  const int64_t tiles =
      e.experts.rows * e.experts.cols + (e.x.rows + kSharedRows - 1) / kSharedRows;
  CHECK(e.x.rows > 0 && e.x.rows <= kFewExpertRowsMax);
  const int64_t inner_strips = e.inner.cols / kTileOutputs;
  const int64_t out_strips = e.out.cols / kTileOutputs;
  const auto blocks = [&](int64_t strips, int64_t each) {
    return dim3(static_cast<unsigned>((strips + each - 1) / each), static_cast<unsigned>(tiles));
  };
  launch_kernel(few_gate_up_kernel, {blocks(inner_strips, kPairStrips), 32 * kWarps}, stream, e);
  launch_kernel(few_down_kernel, {blocks(out_strips, kWarps), 32 * kWarps}, stream, e);
}

}  // namespace galley::kernels::cuda
