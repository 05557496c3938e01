// Floors: the plan reads 8 bytes a choice (under 1 us for decode; a warp of each expert reads all
// choices, which at 98,304 choices of 384 experts is 300 MB out of L2). The quantiser reads 2
// bytes and writes 1.03 top_k; combine reads 2 (top_k + 1) and writes 2 bytes a value.
#include <cuda_bf16.h>

#include "kernels/cuda/expert_plan.h"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/quantise_tiles.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ int32_t warp_sum(int32_t value) {
  for (int32_t mask = 16; mask > 0; mask /= 2) value += __shfl_xor_sync(0xffffffffU, value, mask);
  return value;
}

// A warp of each expert: counts, then ranks its choices in their order. Places depend on counts
// alone, so no atomics; a choice's place changes no result.
__global__ void __launch_bounds__(kThreads)
    plan_kernel(const int32_t* __restrict__ experts, const float* __restrict__ weights,
                int64_t choices, int32_t expert_count, ExpertPlan plan) {
  await_earlier();
  const int32_t expert = (blockIdx.x * kThreads + threadIdx.x) / 32;
  const int32_t lane = threadIdx.x & 31;
  if (expert > expert_count) return;
  if (expert == expert_count) {  // the warp of everything that is not here
    for (int64_t i = lane; i < choices; i += 32) {
      if (experts[i] < 0 || experts[i] >= expert_count) plan.place[i] = -1;
    }
    return;
  }
  int32_t less = 0;
  int32_t equal = 0;
#pragma unroll 8
  for (int64_t i = lane; i < choices; i += 32) {
    const int32_t id = experts[i];
    less += id >= 0 && id < expert ? 1 : 0;
    equal += id == expert ? 1 : 0;
  }
  less = warp_sum(less);
  equal = warp_sum(equal);
  // Rounding the sum up and 8 more for each earlier expert leaves room for each one's rounding.
  const int32_t begin = (less + 7) / 8 * 8 + 8 * expert;
  if (lane == 0) {
    plan.begin[expert] = begin;
    plan.count[expert] = equal;
  }
  if (equal == 0) return;
  int32_t next = begin;
#pragma unroll 4
  for (int64_t first = 0; first < choices; first += 32) {
    const int64_t i = first + lane;
    const bool mine = i < choices && experts[i] == expert;
    const uint32_t all = __ballot_sync(0xffffffffU, mine);
    if (mine) {
      const int32_t place = next + __popc(all & ((1U << lane) - 1));
      plan.place[i] = place;
      plan.row_weight[place] = weights[i];
    }
    next += __popc(all);
  }
}

// The list of token blocks, experts ascending: one block of threads, an expert each.
__global__ void __launch_bounds__(1024)
    plan_blocks_kernel(int32_t expert_count, int32_t block_tokens, ExpertPlan plan) {
  await_earlier();
  __shared__ int32_t warp_total[32];
  const int32_t lane = threadIdx.x & 31;
  const int32_t warp = threadIdx.x >> 5;
  int32_t done = 0;
  for (int32_t first = 0; first < expert_count; first += 1024) {
    const int32_t expert = first + static_cast<int32_t>(threadIdx.x);
    const int32_t count = expert < expert_count ? plan.count[expert] : 0;
    const int32_t mine = (count + block_tokens - 1) / block_tokens;
    int32_t inclusive = mine;
    for (int32_t step = 1; step < 32; step *= 2) {
      const int32_t other = __shfl_up_sync(0xffffffffU, inclusive, step);
      if (lane >= step) inclusive += other;
    }
    if (lane == 31) warp_total[warp] = inclusive;
    __syncthreads();
    int32_t before = done;
    int32_t total = 0;
    for (int32_t i = 0; i < 32; ++i) {
      if (i < warp) before += warp_total[i];
      total += warp_total[i];
    }
    int32_t at = before + inclusive - mine;
    for (int32_t row = 0; row < count; row += block_tokens, ++at) {
      plan.blocks[at] = {expert, plan.begin[expert] + row, min(block_tokens, count - row), 0};
    }
    done += total;
    __syncthreads();
  }
  if (threadIdx.x == 0) *plan.block_count = done;
}

__global__ void __launch_bounds__(kThreads)
    combine_kernel(Rows<const Bf16> expert_rows, const int32_t* __restrict__ place, int32_t top_k,
                   Rows<const Bf16> shared, Rows<Bf16> y) {
  await_earlier();
  const int64_t pieces = y.cols / 8;
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t row = item / pieces;
  const int64_t column = item % pieces * 8;
  if (row >= y.rows) return;
  float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
  const auto add = [&](const Bf16* from) {
    const uint4 raw = *reinterpret_cast<const uint4*>(from);
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      sum[2 * i] += __uint_as_float(words[i] << 16);
      sum[2 * i + 1] += __uint_as_float(words[i] & 0xffff0000U);
    }
  };
  for (int32_t k = 0; k < top_k; ++k) {
    const int32_t from = place[row * top_k + k];
    if (from >= 0) add(expert_rows.data + from * expert_rows.stride + column);
  }
  if (shared.data != nullptr) add(shared.data + row * shared.stride + column);
  __nv_bfloat162 pairs[4];
#pragma unroll
  for (int32_t i = 0; i < 4; ++i) pairs[i] = __floats2bfloat162_rn(sum[2 * i], sum[2 * i + 1]);
  *reinterpret_cast<uint4*>(y.data + row * y.stride + column) =
      *reinterpret_cast<const uint4*>(pairs);
}

void launch_quantise(Stream stream, Rows<const Bf16> x, int64_t items, const QuantiseRows& rows,
                     int64_t places, uint8_t* x8, float* x_scale) {
  const int64_t lanes = items * tiled_chunks(x.cols) * 16;
  if (lanes == 0) return;
  launch_kernel(quantise_tiles_kernel,
                {static_cast<uint32_t>((lanes + kThreads - 1) / kThreads), kThreads}, stream, x,
                items, rows, places, x8, x_scale);
}

}  // namespace

void plan_experts(Stream stream, const int32_t* experts, const float* weights, int64_t choices,
                  int32_t expert_count, int32_t block_tokens, const ExpertPlan& plan) {
  const auto grid = static_cast<uint32_t>(((expert_count + 1) * 32 + kThreads - 1) / kThreads);
  launch_kernel(plan_kernel, {grid, kThreads}, stream, experts, weights, choices, expert_count,
                plan);
  launch_kernel(plan_blocks_kernel, {1, 1024}, stream, expert_count, block_tokens, plan);
}

void quantise_choices(Stream stream, Rows<const Bf16> x, const int32_t* place, int32_t top_k,
                      int64_t places, uint8_t* x8, float* x_scale) {
  launch_quantise(stream, x, x.rows, {.place = place, .copies = top_k, .in_place = false}, places,
                  x8, x_scale);
}

void quantise_places(Stream stream, Rows<const Bf16> x, const int32_t* place, int64_t choices,
                     int64_t places, uint8_t* x8, float* x_scale) {
  launch_quantise(stream, x, choices, {.place = place, .copies = 1, .in_place = true}, places, x8,
                  x_scale);
}

void quantise_rows(Stream stream, Rows<const Bf16> x, int64_t places, uint8_t* x8, float* x_scale) {
  launch_quantise(stream, x, x.rows, {.place = nullptr, .copies = 1, .in_place = false}, places, x8,
                  x_scale);
}

void combine_experts(Stream stream, Rows<const Bf16> expert_rows, const int32_t* place,
                     int32_t top_k, Rows<const Bf16> shared, Rows<Bf16> y) {
  const int64_t items = y.rows * (y.cols / 8);
  if (items == 0) return;
  launch_kernel(combine_kernel,
                {static_cast<uint32_t>((items + kThreads - 1) / kThreads), kThreads}, stream,
                expert_rows, place, top_k, shared, y);
}

}  // namespace galley::kernels::cuda
