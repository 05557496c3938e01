// Experts of few narrow rows in two launches, without a plan. Up to 8 rows, every (row, choice)
// pair is a tile of its own; of more rows a block has up to 32 pairs of one expert, which it finds
// among all of them itself. Rows of the shared expert are further tiles.
//
// The sums and roundings are those of moe.cu: a pair's result does not depend on its tile, and Q8
// is computed by whoever reads a row (product_tile.cuh). What is read twice, an expert chosen by
// two rows, comes from L2. Floor: launches and the latency of two products.
//
// Tried, at 246 rows of three choices: a tile a pair takes 31 us for gate and up and 28 for down,
// nearly all of it unpacking the same weights again; a block an expert 50 and 70, since sequences
// that are alike choose the same one.
#include "base/check.h"
#include "kernels/cuda/few_experts.h"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/product_tile.cuh"
#include "kernels/cuda/swiglu.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kPairStrips = kWarps / 2;  // of gate and up, a warp each
constexpr int64_t kByPairRowsMax = 8;

constexpr int kTiles = 4;  // of 8 rows, that share the unpacked weights
constexpr int64_t kTileRows = 8 * kTiles;

// What a block multiplies: pairs of one expert, or rows of the shared one.
struct Share {
  bool shared;
  int32_t expert;
  int64_t begin;  // of the expert's pairs in their order, or of the rows
  int64_t end;    // at most kTileRows further
};

// Pair `at` as a row of x, and as a row of inner and out.
struct PairRows {
  int64_t x;
  int64_t out;
};

// One pair a block.
struct ByPair {
  static constexpr bool kLists = false;

  __device__ static Share share_of(const FewExperts& e, int32_t* /*list*/) {
    const int64_t pairs = e.experts.rows * e.experts.cols;
    const int64_t index = blockIdx.y;
    if (index == pairs) return {true, 0, 0, e.x.rows};
    await_earlier();  // the choice
    return {false, row_at(e.experts, index / e.experts.cols)[index % e.experts.cols], index,
            index + 1};
  }
  __device__ static PairRows rows_of(const FewExperts& e, const Share& share, int64_t at,
                                     const int32_t* /*list*/) {
    if (share.shared) return {at, e.experts.rows * e.experts.cols + at};
    return {at / e.experts.cols, at};
  }
};

// Tile blockIdx.z of one expert: its pairs in order, found by the whole block.
struct ByExpert {
  static constexpr bool kLists = true;

  __device__ static Share share_of(const FewExperts& e, int32_t* list) {
    __shared__ int32_t found[kWarps];
    const auto expert = static_cast<int32_t>(blockIdx.y);
    const int64_t begin = blockIdx.z * kTileRows;
    const int64_t end = begin + kTileRows;
    if (expert == e.expert_count) return {true, 0, begin, min(e.x.rows, end)};
    await_earlier();
    const int64_t pairs = e.experts.rows * e.experts.cols;
    const int warp = static_cast<int>(threadIdx.x / 32);
    const int lane = static_cast<int>(threadIdx.x % 32);
    int32_t count = 0;
    for (int64_t first = 0; first < pairs && count < end; first += 32 * kWarps) {
      const int64_t pair = first + threadIdx.x;
      const bool mine =
          pair < pairs && row_at(e.experts, pair / e.experts.cols)[pair % e.experts.cols] == expert;
      const uint32_t vote = __ballot_sync(0xFFFFFFFFU, mine);
      __syncthreads();
      if (lane == 0) found[warp] = __popc(vote);
      __syncthreads();
      int32_t place = count;
      for (int w = 0; w < kWarps; ++w) {
        place += w < warp ? found[w] : 0;
        count += found[w];
      }
      place += __popc(vote & ((1U << lane) - 1U));
      if (mine && place >= begin && place < end) list[place - begin] = static_cast<int32_t>(pair);
    }
    __syncthreads();
    return {false, expert, begin, min(int64_t{count}, end)};
  }
  __device__ static PairRows rows_of(const FewExperts& e, const Share& share, int64_t at,
                                     const int32_t* list) {
    if (share.shared) return {at, e.experts.rows * e.experts.cols + at};
    const int32_t pair = list[at - share.begin];
    return {pair / e.experts.cols, pair};
  }
};

template <class How>
constexpr int tiles_of() {
  return How::kLists ? kTiles : 1;
}

// Sums of the share's rows, x_row(at) each.
template <WeightFormat kFormat, int kTilesOf, class XRow>
__device__ __forceinline__ void multiply_strip(const WeightView& weight, int64_t output,
                                               const Share& share, const XRow& x_row,
                                               float (&sums)[kTilesOf][4]) {
  product_tile<kFormat, kTilesOf>(
      weight, output,
      [&](int t) -> const Bf16* {
        const int64_t at = share.begin + 8 * t + threadIdx.x % 32 / 4;
        return at < share.end ? x_row(at) : nullptr;
      },
      true, await_earlier, sums);
}

// Strips of the shared expert may be stored otherwise than those of the routed ones.
template <int kTilesOf, class XRow>
__device__ __forceinline__ void multiply_any(const WeightView& weight, int64_t output,
                                             const Share& share, const XRow& x_row,
                                             float (&sums)[kTilesOf][4]) {
  switch (weight.format) {
    case WeightFormat::kFp8Tile32:
      return multiply_strip<WeightFormat::kFp8Tile32>(weight, output, share, x_row, sums);
    case WeightFormat::kFp4Row32:
      return multiply_strip<WeightFormat::kFp4Row32>(weight, output, share, x_row, sums);
    default:
      return multiply_strip<WeightFormat::kBf16>(weight, output, share, x_row, sums);
  }
}

// inner = bf16(weight * swiglu(W1 x, W3 x)). Warps 2 s and 2 s + 1 have gate and up of strip s.
template <class How>
__global__ void __launch_bounds__(32 * kWarps)
    few_gate_up_kernel(const __grid_constant__ FewExperts e) {
  constexpr int kTilesOf = tiles_of<How>();
  __shared__ float4 up_sums[kPairStrips][kTilesOf][32];
  __shared__ int32_t list[kTileRows];
  const Share share = How::share_of(e, list);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const bool is_up = warp % 2 != 0;
  const int64_t output = (int64_t{blockIdx.x} * kPairStrips + warp / 2) * kTileOutputs;
  const bool inside = output < e.inner.cols;
  if (share.begin >= share.end) return await_earlier();
  float sums[kTilesOf][4] = {};
  if (inside) {
    const WeightView weight = share.shared ? (is_up ? e.shared_up : e.shared_gate)
                                           : (is_up ? e.up : e.gate)[share.expert];
    multiply_any<kTilesOf>(
        weight, output, share,
        [&](int64_t at) { return row_at(e.x, How::rows_of(e, share, at, list).x); }, sums);
  }
  await_earlier();
  if (is_up) {
#pragma unroll
    for (int t = 0; t < kTilesOf; ++t) {
      up_sums[warp / 2][t][lane] = {sums[t][0], sums[t][1], sums[t][2], sums[t][3]};
    }
  }
  __syncthreads();
  if (!is_up && inside) {
    float up[4 * kTilesOf];
#pragma unroll
    for (int t = 0; t < kTilesOf; ++t) {
      const float4 raw = up_sums[warp / 2][t][lane];
      up[4 * t] = raw.x;
      up[4 * t + 1] = raw.y;
      up[4 * t + 2] = raw.z;
      up[4 * t + 3] = raw.w;
    }
    int element = 0;
    each_sum<kTilesOf>(output, sums, [&](int64_t o, int row, float gate) {
      const float other = up[element++];
      const int64_t at = share.begin + row;
      if (at >= share.end) return;
      const PairRows rows = How::rows_of(e, share, at, list);
      const float factor = share.shared ? 1.0F : e.expert_weights[rows.out];
      row_at(e.inner, rows.out)[o] = narrow(swiglu(narrow(gate), narrow(other), factor, e.limit));
    });
  }
}

// out = W2 Q8(inner), a row a pair, then the rows of the shared expert.
template <class How>
__global__ void __launch_bounds__(32 * kWarps)
    few_down_kernel(const __grid_constant__ FewExperts e) {
  constexpr int kTilesOf = tiles_of<How>();
  __shared__ int32_t list[kTileRows];
  const Share share = How::share_of(e, list);
  const int64_t output = (int64_t{blockIdx.x} * kWarps + threadIdx.x / 32) * kTileOutputs;
  if (output >= e.out.cols) return await_earlier();
  const WeightView weight = share.shared ? e.shared_down : e.down[share.expert];
  if (share.begin >= share.end) return await_earlier();
  float sums[kTilesOf][4];
  multiply_any<kTilesOf>(
      weight, output, share,
      [&](int64_t at) { return row_at(e.inner, How::rows_of(e, share, at, list).out); }, sums);
  each_sum<kTilesOf>(output, sums, [&](int64_t o, int row, float sum) {
    const int64_t at = share.begin + row;
    if (at < share.end) row_at(e.out, How::rows_of(e, share, at, list).out)[o] = narrow(sum);
  });
}

bool is_narrow(const WeightView& weight, int64_t out, int64_t in) {
  return !weight.folded && weight.out == out && weight.in == in &&
         weight.format != WeightFormat::kF32;
}

}  // namespace

bool few_experts_support(Rows<const Bf16> x, const MoeWeights& weights, int64_t choices) {
  if (weights.experts.empty() || x.rows > kFewExpertRowsMax || choices > kFewExpertChoicesMax ||
      !is_packed_input(x)) {
    return false;
  }
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
  CHECK(e.x.rows > 0 && e.x.rows <= kFewExpertRowsMax && e.experts.cols <= kFewExpertChoicesMax);
  const int64_t inner_strips = e.inner.cols / kTileOutputs;
  const int64_t out_strips = e.out.cols / kTileOutputs;
  const bool by_pair = e.x.rows <= kByPairRowsMax;
  const int64_t pairs = e.experts.rows * e.experts.cols;
  const auto blocks = [&](int64_t strips, int64_t each) {
    return dim3(static_cast<unsigned>((strips + each - 1) / each),
                static_cast<unsigned>((by_pair ? pairs : e.expert_count) + 1),
                static_cast<unsigned>(by_pair ? 1 : (e.x.rows + kTileRows - 1) / kTileRows));
  };
  launch_kernel(by_pair ? few_gate_up_kernel<ByPair> : few_gate_up_kernel<ByExpert>,
                {blocks(inner_strips, kPairStrips), 32 * kWarps}, stream, e);
  launch_kernel(by_pair ? few_down_kernel<ByPair> : few_down_kernel<ByExpert>,
                {blocks(out_strips, kWarps), 32 * kWarps}, stream, e);
}

}  // namespace galley::kernels::cuda
