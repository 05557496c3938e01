// Experts of few narrow rows in two launches, without a plan. Up to 8 rows, every (row, choice)
// pair is a tile of its own; of more rows a block has up to 32 pairs of one expert, which it finds
// among all of them itself. Rows of the shared expert are further tiles.
//
// The sums and roundings are those of moe.cu: a pair's result does not depend on its tile, and Q8
// is computed by the block that reads a row (narrow_strip.cuh). What is read twice, an expert
// chosen by two rows, comes from L2. Floor: launches and the latency of two products.
//
// On an H200, behind each other: 256 rows of three choices of nano 12 us and 5 (14 and 9 where
// every warp quantised its rows and pairs were found 128 at a time), one row 5 and 4. In a step,
// mixes of the site included, 11.1 and 4.5; with 246 registers, so that down's blocks found no room
// before the end of gate and up, 12.2 and 7.1. Four pieces of a row asked for at once cost more
// instructions than they saved waits (11.3; divisions by the number of pieces and of choices were
// another 1.2).
//
// Tried before that, at 246 rows of three choices: a tile a pair takes 31 us for gate and up and 28
// for down, nearly all of it unpacking the same weights again; a block an expert 50 and 70, since
// sequences that are alike choose the same one.
#include "base/check.h"
#include "kernels/cuda/few_experts.h"
#include "kernels/cuda/narrow_strip.cuh"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/site_mixes.cuh"
#include "kernels/cuda/swiglu.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kPairStrips = kWarps / 2;  // of gate and up, a warp each
constexpr int64_t kByPairRowsMax = 8;
constexpr int kBlocksAtOnce = 3;  // of a multiprocessor: down's unpack weights beside gate and up's
constexpr int kAsidePlanes = 2;   // of y, behind the experts: blocks that make mixes

constexpr int kPairTiles = 4;  // of 8 rows, that share the unpacked weights
constexpr int64_t kPairRows = 8 * kPairTiles;

// What a block multiplies: pairs of one expert, or rows of the shared one.
struct Share {
  bool shared;
  int32_t expert;
  int64_t begin;  // of the expert's pairs in their order, or of the rows
  int64_t end;    // at most kPairRows further
};

// Pair `at` as a row of x, and as a row of inner and out.
struct PairRows {
  int64_t x;
  int64_t out;
};

// One pair a block.
struct ByPair {
  static constexpr bool kLists = false;

  __device__ static int32_t aside_of(const FewExperts& e) {
    return static_cast<int32_t>(blockIdx.y) -
           static_cast<int32_t>(e.experts.rows * e.experts.cols + 1);
  }
  __device__ static int32_t expert_of(const FewExperts& e) {
    const int64_t index = blockIdx.y;
    if (index == e.experts.rows * e.experts.cols) return e.expert_count;
    await_earlier();  // the choice
    return row_at(e.experts, index / e.experts.cols)[index % e.experts.cols];
  }
  __device__ static Share share_of(const FewExperts& e, int32_t expert, int32_t* /*list*/) {
    if (expert == e.expert_count) return {true, 0, 0, e.x.rows};
    return {false, expert, int64_t{blockIdx.y}, int64_t{blockIdx.y} + 1};
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

  __device__ static int32_t aside_of(const FewExperts& e) {
    return static_cast<int32_t>(blockIdx.y) - (e.expert_count + 1);
  }
  __device__ static int32_t expert_of(const FewExperts& /*e*/) {
    return static_cast<int32_t>(blockIdx.y);
  }
  __device__ static Share share_of(const FewExperts& e, int32_t expert, int32_t* list) {
    constexpr int kThreads = 32 * kWarps;
    constexpr int kSteps = kFewExpertRowsMax * kFewExpertChoicesMax / kThreads;
    constexpr int kAtOnce = 8;
    static_assert(kSteps * kWarps == 2 * 32);
    __shared__ int32_t found[kSteps * kWarps];
    const auto begin = static_cast<int32_t>(blockIdx.z * kPairRows);
    const int32_t end = begin + static_cast<int32_t>(kPairRows);
    if (expert == e.expert_count) return {true, 0, begin, min(e.x.rows, int64_t{end})};
    const auto choices = static_cast<int32_t>(e.experts.cols);
    const int32_t pairs = static_cast<int32_t>(e.experts.rows) * choices;
    const bool whole = e.experts.stride == e.experts.cols;
    // Divides by the number of choices, exactly for all that there are.
    const uint32_t inverse = 65536U / static_cast<uint32_t>(choices) + 1U;
    static_assert(kFewExpertRowsMax * kFewExpertChoicesMax * kFewExpertChoicesMax <= 65536);
    const int warp = static_cast<int>(threadIdx.x / 32);
    const int lane = static_cast<int>(threadIdx.x % 32);
    uint32_t votes[kSteps] = {};  // of this warp, pair kThreads step + thread
#pragma unroll
    for (int first = 0; first < kSteps; first += kAtOnce) {
      int32_t chosen[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int32_t pair = (first + i) * kThreads + static_cast<int32_t>(threadIdx.x);
        chosen[i] = -1;
        if (pair >= pairs) continue;
        chosen[i] =
            whole ? e.experts.data[pair] : row_at(e.experts, pair / choices)[pair % choices];
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        votes[first + i] = __ballot_sync(0xFFFFFFFFU, chosen[i] == expert);
        if (lane == 0) found[(first + i) * kWarps + warp] = __popc(votes[first + i]);
      }
      if ((first + kAtOnce) * kThreads < pairs) continue;
      if (lane < kWarps * (kSteps - first - kAtOnce)) found[(first + kAtOnce) * kWarps + lane] = 0;
      break;
    }
    __syncthreads();
    const int32_t low = found[lane];
    const int32_t high = found[lane + 32];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (votes[step] == 0) continue;
      const int before_this = step * kWarps + warp;
      const int32_t before = __reduce_add_sync(
          0xFFFFFFFFU, (lane < before_this ? low : 0) + (lane + 32 < before_this ? high : 0));
      const int32_t place = before + __popc(votes[step] & ((1U << lane) - 1U));
      if ((votes[step] >> lane & 1U) != 0 && place >= begin && place < end) {
        const auto pair = static_cast<uint32_t>(step * kThreads) + threadIdx.x;
        list[place - begin] = static_cast<int32_t>(pair * inverse >> 16 << 16 | pair);
      }
    }
    const int32_t count = __reduce_add_sync(0xFFFFFFFFU, low + high);
    __syncthreads();
    return {false, expert, begin, min(count, end)};
  }
  __device__ static PairRows rows_of(const FewExperts& e, const Share& share, int64_t at,
                                     const int32_t* list) {
    if (share.shared) return {at, e.experts.rows * e.experts.cols + at};
    const int32_t found = list[at - share.begin];
    return {found >> 16, found & 0xFFFF};
  }
};

template <class How>
constexpr int tiles_of() {
  return How::kLists ? kPairTiles : 1;
}

// The block's rows in Q8, row_of(at) each, by all its threads behind the wait.
template <class RowOf>
__device__ __forceinline__ void prepare_share(const Share& share, int64_t cols, const RowOf& row_of,
                                              Bf16* prepared) {
  const auto rows = static_cast<int>(max(int64_t{0}, share.end - share.begin));
  prepare_rows<32 * kWarps>(
      rows, cols, [&](int row) { return row_of(share.begin + row); }, nullptr, prepared);
  __syncthreads();
}

// inner = bf16(weight * swiglu(W1 x, W3 x)). Warps 2 s and 2 s + 1 have gate and up of strip s.
// Weights are asked for and unpacked before the wait, and before a block knows its pairs.
template <class How>
__global__ void __launch_bounds__(32 * kWarps, kBlocksAtOnce)
    few_gate_up_kernel(const __grid_constant__ FewExperts e) {
  constexpr int kTilesOf = tiles_of<How>();
  extern __shared__ __align__(16) uint8_t shared[];
  __shared__ float4 up_sums[kPairStrips][kTilesOf][32];
  __shared__ int32_t list[kPairRows];
  __shared__ float factors[kPairRows];
  auto* prepared = reinterpret_cast<Bf16*>(shared);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (const int32_t aside = How::aside_of(e); aside >= 0) {
    const int64_t block = (int64_t{aside} * gridDim.z + blockIdx.z) * gridDim.x + blockIdx.x;
    const int64_t blocks = int64_t{kAsidePlanes} * gridDim.z * gridDim.x;
    return make_site_mixes(e.mixes, block * kWarps + warp, blocks * kWarps);
  }
  const bool is_up = warp % 2 != 0;
  const int64_t output = (int64_t{blockIdx.x} * kPairStrips + warp / 2) * kTileOutputs;
  const bool inside = output < e.inner.cols;
  const int32_t expert = How::expert_of(e);
  Share share = {};
  const auto ready = [&] {  // once by each warp
    await_earlier();
    share = How::share_of(e, expert, list);
    const int64_t own = share.begin + static_cast<int64_t>(threadIdx.x);
    if (threadIdx.x < kPairRows && own < share.end) {
      factors[threadIdx.x] =
          share.shared ? 1.0F : e.expert_weights[How::rows_of(e, share, own, list).out];
    }
    prepare_share(
        share, e.x.cols,
        [&](int64_t at) { return row_at(e.x, How::rows_of(e, share, at, list).x); }, prepared);
  };
  float sums[kTilesOf][4] = {};
  if (inside) {
    const WeightView weight = expert == e.expert_count ? (is_up ? e.shared_up : e.shared_gate)
                                                       : (is_up ? e.up : e.gate)[expert];
    narrow_strip_any<kTilesOf>(
        weight, output, prepared, static_cast<int>(prepared_pitch(e.x.cols)), ready,
        [&] { return static_cast<int>(share.end - share.begin); }, sums);
  } else {
    ready();
  }
  if (share.begin >= share.end) return;
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
      const float factor = factors[row];
      row_at(e.inner, rows.out)[o] = narrow(swiglu(narrow(gate), narrow(other), factor, e.limit));
    });
  }
}

// out = W2 Q8(inner), a row a pair, then the rows of the shared expert. The choice is older than
// the kernel before this one, so pairs are found before the wait.
template <class How>
__global__ void __launch_bounds__(32 * kWarps, kBlocksAtOnce)
    few_down_kernel(const __grid_constant__ FewExperts e) {
  constexpr int kTilesOf = tiles_of<How>();
  extern __shared__ __align__(16) uint8_t shared[];
  __shared__ int32_t list[kPairRows];
  auto* prepared = reinterpret_cast<Bf16*>(shared);
  const int32_t expert = How::expert_of(e);
  const Share share = How::share_of(e, expert, list);
  const int64_t output = (int64_t{blockIdx.x} * kWarps + threadIdx.x / 32) * kTileOutputs;
  if (share.begin >= share.end) return await_earlier();
  const auto ready = [&] {
    await_earlier();
    prepare_share(
        share, e.inner.cols,
        [&](int64_t at) { return row_at(e.inner, How::rows_of(e, share, at, list).out); },
        prepared);
  };
  if (output >= e.out.cols) return ready();
  const WeightView weight = share.shared ? e.shared_down : e.down[share.expert];
  float sums[kTilesOf][4];
  narrow_strip_any<kTilesOf>(
      weight, output, prepared, static_cast<int>(prepared_pitch(e.inner.cols)), ready,
      [&] { return static_cast<int>(share.end - share.begin); }, sums);
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
  return hidden % kTileOutputs == 0 && inner % kTileOutputs == 0 && hidden <= kNarrowInputMax &&
         inner <= kNarrowInputMax && fits(weights.shared) && fits(weights.experts.front());
}

FewExperts few_experts_of(Rows<const Bf16> x, const MoeWeights& weights, const ExpertTable& table,
                          Rows<const int32_t> experts, Rows<const float> expert_weights) {
  FewExperts few{.x = x, .experts = experts, .expert_weights = expert_weights.data};
  few.expert_count = static_cast<int32_t>(weights.experts.size());
  few.gate = table.matrix[0];
  few.up = table.matrix[1];
  few.down = table.matrix[2];
  few.shared_gate = weights.shared.w1;
  few.shared_up = weights.shared.w3;
  few.shared_down = weights.shared.w2;
  few.limit = weights.swiglu_limit;
  return few;
}

void launch_few_experts(const FewExperts& e, Stream stream) {
  CHECK(e.x.rows > 0 && e.x.rows <= kFewExpertRowsMax && e.experts.cols <= kFewExpertChoicesMax);
  const int64_t inner_strips = e.inner.cols / kTileOutputs;
  const int64_t out_strips = e.out.cols / kTileOutputs;
  const bool by_pair = e.x.rows <= kByPairRowsMax;
  const int64_t pairs = e.experts.rows * e.experts.cols;
  const auto blocks = [&](int64_t strips, int64_t each, int64_t planes) {
    return dim3(static_cast<unsigned>((strips + each - 1) / each),
                static_cast<unsigned>((by_pair ? pairs : e.expert_count) + 1 + planes),
                static_cast<unsigned>(by_pair ? 1 : (e.x.rows + kPairRows - 1) / kPairRows));
  };
  const auto bytes = [&](int64_t cols) {
    const int64_t rows = by_pair ? kByPairRowsMax : kPairRows;
    return static_cast<size_t>(rows * prepared_pitch(cols)) * sizeof(Bf16);
  };
  launch_kernel(by_pair ? few_gate_up_kernel<ByPair> : few_gate_up_kernel<ByExpert>,
                {blocks(inner_strips, kPairStrips, e.mixes.rows > 0 ? kAsidePlanes : 0),
                 32 * kWarps, bytes(e.x.cols)},
                stream, e);
  launch_kernel(by_pair ? few_down_kernel<ByPair> : few_down_kernel<ByExpert>,
                {blocks(out_strips, kWarps, 0), 32 * kWarps, bytes(e.inner.cols)}, stream, e);
}

}  // namespace galley::kernels::cuda
