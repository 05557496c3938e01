// Routed experts (spec/model.md 5), the version for every shape: pairs of (row,
// choice) sorted by expert, then products as in linear.cu over tiles of one
// expert's pairs, SwiGLU, and the sum in order of the choices.
//
// A pair's result does not depend on the tile it lies in (product_tile.cuh). The
// sort counts and places in order, without atomics.
#include "kernels/cuda/hc_leave.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/product_tile.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/swiglu.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kCombineThreads = 128;
constexpr int kPlanThreads = 256;

// Block e: the pairs of expert e in order, behind those of all lower experts.
__global__ void __launch_bounds__(kPlanThreads)
    plan_pairs_kernel(Rows<const int32_t> experts, int32_t expert_count, PairPlan plan) {
  await_earlier();
  const int32_t expert = static_cast<int32_t>(blockIdx.x);
  const int64_t pairs = experts.rows * experts.cols;
  const auto expert_of = [&](int64_t pair) {
    return row_at(experts, pair / experts.cols)[pair % experts.cols];
  };
  __shared__ int32_t warp_counts[kPlanThreads / 32];
  __shared__ int32_t lower_parts[kPlanThreads / 32];
  int32_t lower = 0;
  for (int64_t pair = threadIdx.x; pair < pairs; pair += kPlanThreads) {
    lower += expert_of(pair) < expert ? 1 : 0;
  }
  lower = __reduce_add_sync(0xFFFFFFFFU, lower);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (lane == 0) lower_parts[warp] = lower;
  __syncthreads();
  int32_t place = 0;
  for (int w = 0; w < kPlanThreads / 32; ++w) place += lower_parts[w];
  if (threadIdx.x == 0) plan.begin[expert] = place;
  if (threadIdx.x == 0 && expert == expert_count - 1) {
    plan.begin[expert_count] = static_cast<int32_t>(pairs);
  }
  for (int64_t first = 0; first < pairs; first += kPlanThreads) {
    const int64_t pair = first + threadIdx.x;
    const bool mine = pair < pairs && expert_of(pair) == expert;
    const uint32_t vote = __ballot_sync(0xFFFFFFFFU, mine);
    __syncthreads();
    if (lane == 0) warp_counts[warp] = __popc(vote);
    __syncthreads();
    int32_t before = 0;
    int32_t all = 0;
    for (int w = 0; w < kPlanThreads / 32; ++w) {
      before += w < warp ? warp_counts[w] : 0;
      all += warp_counts[w];
    }
    if (mine) {
      plan.pair[place + before + __popc(vote & ((1U << lane) - 1U))] = static_cast<int32_t>(pair);
    }
    place += all;
  }
}

// One warp: each expert's pairs in tiles.
__global__ void plan_tiles_kernel(int32_t expert_count, int32_t tile_rows, PairPlan plan) {
  await_earlier();
  int32_t total = 0;
  const int lane = static_cast<int>(threadIdx.x);
  for (int32_t first = 0; first < expert_count; first += 32) {
    const int32_t expert = first + lane;
    int32_t begin = 0;
    int32_t tiles = 0;
    if (expert < expert_count) {
      begin = plan.begin[expert];
      tiles = (plan.begin[expert + 1] - begin + tile_rows - 1) / tile_rows;
    }
    int32_t before = tiles;  // inclusive prefix
    for (int offset = 1; offset < 32; offset *= 2) {
      const int32_t other = __shfl_up_sync(0xFFFFFFFFU, before, offset);
      if (lane >= offset) before += other;
    }
    for (int32_t t = 0; t < tiles; ++t) {
      const int32_t at = total + before - tiles + t;
      plan.tile_expert[at] = expert;
      plan.tile_begin[at] = begin + t * tile_rows;
    }
    total += __shfl_sync(0xFFFFFFFFU, before, 31);
  }
  if (lane == 0) *plan.tile_count = total;
}

template <WeightFormat kFormat, int kTiles>
__global__ void __launch_bounds__(32 * kWarps) expert_product_kernel(ExpertProduct p) {
  await_earlier();
  if (static_cast<int32_t>(blockIdx.y) >= *p.plan.tile_count) return;
  const int32_t expert = p.plan.tile_expert[blockIdx.y];
  const int32_t first = p.plan.tile_begin[blockIdx.y];
  const int32_t end = min(p.plan.begin[expert + 1], first + 8 * kTiles);
  const WeightView weight = p.weight[expert];
  const int64_t output = (int64_t{blockIdx.x} * kWarps + threadIdx.x / 32) * kTileOutputs;
  if (output >= weight.out) return;
  float sums[kTiles][4];
  product_tile<kFormat, kTiles>(
      weight, output,
      [&](int t) -> const Bf16* {
        const int32_t place = first + 8 * t + static_cast<int32_t>(threadIdx.x % 32 / 4);
        return place < end ? row_at(p.x, p.plan.pair[place] / p.pairs_per_x) : nullptr;
      },
      false, [] {}, sums);
  each_sum<kTiles>(output, sums, [&](int64_t o, int row_in_tile, float sum) {
    const int32_t place = first + row_in_tile;
    if (o >= weight.out || place >= end) return;
    row_at(p.y, p.plan.pair[place])[o] = narrow(sum);
  });
}

// One warp a group of 32 channels: bf16(weight * swiglu), then Q8's simulated form.
__global__ void swiglu_kernel(Rows<const Bf16> gate, Rows<const Bf16> up, const float* weight,
                              float limit, Rows<Bf16> to) {
  await_earlier();
  const int64_t groups = (gate.cols + 31) / 32;
  const int64_t task = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32;
  if (task >= gate.rows * groups) return;
  const int64_t row = task / groups;
  const int64_t i = task % groups * 32 + threadIdx.x % 32;
  float value = 0.0F;
  if (i < gate.cols) {
    value = swiglu(row_at(gate, row)[i], row_at(up, row)[i], weight != nullptr ? weight[row] : 1.0F,
                   limit);
  }
  const float scale = e8m0_value(q8_scale(warp_max(fabsf(value))));
  if (i < gate.cols) row_at(to, row)[i] = narrow(e4m3_value(q8_code(value, scale)) * scale);
}

__global__ void combine_kernel(Rows<const Bf16> pairs, int32_t top_k, Rows<const Bf16> shared,
                               Rows<Bf16> y) {
  await_earlier();
  const int64_t row = blockIdx.x;
  for (int64_t i = threadIdx.x; i < y.cols; i += blockDim.x) {
    float sum = 0.0F;
    for (int32_t choice = 0; choice < top_k; ++choice) {
      sum += widen(row_at(pairs, row * top_k + choice)[i]);
    }
    row_at(y, row)[i] = narrow(sum + widen(row_at(shared, row)[i]));
  }
}

// Of whole vectors: a thread has one.
__global__ void __launch_bounds__(kCombineThreads)
    combine_whole_kernel(const __grid_constant__ ExpertParts parts, Rows<Bf16> y) {
  await_earlier();
  const auto vectors = static_cast<uint32_t>(y.cols / 8);
  const uint32_t item = blockIdx.x * kCombineThreads + threadIdx.x;
  const int64_t row = item / vectors;
  if (row >= y.rows) return;
  const int64_t vector = item % vectors;
  store8<true>(row_of(y, row), vector, y.cols, combine8(parts, row, vector));
}

template <WeightFormat kFormat>
void launch_tiles(const ExpertProduct& p, Stream stream) {
  const auto strips = static_cast<unsigned>((p.shape.out + 16 * kWarps - 1) / (16 * kWarps));
  const auto tiles = static_cast<unsigned>(expert_tiles_max(p.pairs, p.experts, p.tile_rows));
  if (p.tile_rows == 8) {
    launch_kernel(expert_product_kernel<kFormat, 1>, {dim3(strips, tiles), 32 * kWarps}, stream, p);
  } else {
    launch_kernel(expert_product_kernel<kFormat, 4>, {dim3(strips, tiles), 32 * kWarps}, stream, p);
  }
}

}  // namespace

int32_t expert_tile_rows(int64_t pairs, int32_t experts) {
  return pairs >= int64_t{16} * experts ? 32 : 8;
}

int64_t expert_tiles_max(int64_t pairs, int32_t experts, int32_t tile_rows) {
  return pairs / tile_rows + (pairs < experts ? pairs : experts);
}

int64_t pair_plan_bytes(int64_t pairs, int32_t experts, int32_t tile_rows) {
  const int64_t tiles = expert_tiles_max(pairs, experts, tile_rows);
  return (pairs + experts + 1 + 2 * tiles + 1) * static_cast<int64_t>(sizeof(int32_t));
}

PairPlan PairPlan::in(void* room, int64_t pairs, int32_t experts, int32_t tile_rows) {
  const int64_t tiles = expert_tiles_max(pairs, experts, tile_rows);
  auto* at = static_cast<int32_t*>(room);
  int32_t* const of_tile = at + pairs + experts + 1;
  return {at, at + pairs, of_tile, of_tile + tiles, of_tile + 2 * tiles};
}

void launch_expert_plan(Rows<const int32_t> experts, int32_t expert_count, int32_t tile_rows,
                        const PairPlan& plan, Stream stream) {
  if (experts.rows == 0) return;
  launch_kernel(plan_pairs_kernel, {static_cast<unsigned>(expert_count), kPlanThreads}, stream,
                experts, expert_count, plan);
  launch_kernel(plan_tiles_kernel, {1, 32}, stream, expert_count, tile_rows, plan);
}

void launch_expert_product(const ExpertProduct& p, Stream stream) {
  if (p.pairs == 0) return;
  switch (p.shape.format) {
    case WeightFormat::kFp8Tile32:
      return launch_tiles<WeightFormat::kFp8Tile32>(p, stream);
    case WeightFormat::kFp4Row32:
      return launch_tiles<WeightFormat::kFp4Row32>(p, stream);
    default:
      return launch_tiles<WeightFormat::kBf16>(p, stream);
  }
}

void launch_swiglu(Rows<const Bf16> gate, Rows<const Bf16> up, const float* weight, float limit,
                   Rows<Bf16> to, Stream stream) {
  if (gate.rows == 0) return;
  const int64_t threads = gate.rows * ((gate.cols + 31) / 32) * 32;
  launch_kernel(swiglu_kernel, {static_cast<unsigned>((threads + 255) / 256), 256}, stream, gate,
                up, weight, limit, to);
}

void launch_combine(Rows<const Bf16> pairs, int32_t top_k, Rows<const Bf16> shared, Rows<Bf16> y,
                    Stream stream) {
  if (y.rows == 0) return;
  const int64_t vectors = y.rows * (y.cols / 8);
  if (is_whole(pairs) && is_whole(shared) && is_whole(y) && vectors < (int64_t{1} << 31)) {
    launch_kernel(combine_whole_kernel,
                  {static_cast<unsigned>(divide_up(vectors, kCombineThreads)), kCombineThreads},
                  stream, ExpertParts{.rows = pairs, .top_k = top_k, .shared = shared}, y);
    return;
  }
  launch_kernel(combine_kernel, {static_cast<unsigned>(y.rows), 128}, stream, pairs, top_k, shared,
                y);
}

}  // namespace galley::kernels::cuda
