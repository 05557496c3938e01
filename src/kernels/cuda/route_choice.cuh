// A row's choice of experts from its logits, by a warp. route.cu tells the whole.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cuda/exponential.cuh"
#include "kernels/cuda/row.cuh"
#include "kernels/ops.h"
#include "kernels/tensor.h"

namespace galley::kernels::cuda {

// K of one part of a logit's sum: a chain of products from zero. Parts are added in order.
constexpr int kGateSplit = 320;

// Linear above 20, where exp would only lose bits.
__device__ __forceinline__ float softplus(float x) { return x > 20.0F ? x : log1pf(exp_f32(x)); }

// Larger floats have larger keys; every float's key is above 0, which marks what was taken.
__device__ __forceinline__ uint32_t order_key(float x) {
  const uint32_t bits = __float_as_uint(x);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
// What experts are chosen by; NaN comes behind all others.
__device__ __forceinline__ uint32_t choice_key(float score, float bias) {
  const float biased = score + bias;
  return order_key(isnan(biased) ? -INFINITY : biased);
}
__device__ __forceinline__ float from_order_key(uint32_t key) {
  return __uint_as_float((key & 0x80000000U) != 0 ? key & 0x7FFFFFFFU : ~key);
}

struct ChoiceArguments {
  const float* logits;
  int64_t splits;
  int32_t expert_count;
  const float* const* bias_of_row;
  RouterOptions options;
  Rows<int32_t> experts;
  Rows<float> weights;
  float* margin;
};

// What a warp chooses among: kEach places a lane.
template <int kEach>
struct Places {
  uint32_t key[kEach];  // 0: empty, or taken
  int expert[kEach];
  float p[kEach];
};

// The best places of a warp one after the other, the lower expert of equal ones:
// take(place, key, expert, p) in every lane.
template <int kEach, class Take>
__device__ __forceinline__ void take_best(Places<kEach>& all, int count, Take&& take) {
  uint32_t key;  // the best of this lane's
  unsigned expert;
  float p;
  const auto find = [&] {
    key = 0;
    expert = 0xFFFFFFFFU;
    p = 0.0F;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const auto other = static_cast<unsigned>(all.expert[i]);
      if (all.key[i] < key || (all.key[i] == key && other > expert)) continue;
      key = all.key[i];
      expert = other;
      p = all.p[i];
    }
  };
  find();
  for (int place = 0; place < count; ++place) {
    const uint32_t best = __reduce_max_sync(kAllLanes, key);
    const unsigned winner = __reduce_min_sync(kAllLanes, key == best ? expert : 0xFFFFFFFFU);
    const bool mine = key == best && expert == winner;
    const unsigned owners = __ballot_sync(kAllLanes, mine);
    take(place, best, static_cast<int>(winner), __shfl_sync(kAllLanes, p, __ffs(owners) - 1));
    if (!mine) continue;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (static_cast<unsigned>(all.expert[i]) == winner) all.key[i] = 0;
    }
    find();
  }
}

// Experts first, first + step, ... of a row: their biases, which were there before the step, and
// behind earlier kernels all else.
template <int kEach>
struct Biases {
  float of[kEach];
};
template <int kEach>
__device__ __forceinline__ void load_biases(const ChoiceArguments& args, int64_t row, int first,
                                            int step, Biases<kEach>& biases) {
  const float* bias = args.bias_of_row[row];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int expert = first + i * step;
    biases.of[i] = expert < args.expert_count ? bias[expert] : 0.0F;
  }
}
// From sums of logits to what is compared.
template <int kEach>
__device__ __forceinline__ void weigh_places(const ChoiceArguments& args,
                                             const Biases<kEach>& biases, Places<kEach>& all) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    all.p[i] = sqrtf(softplus(all.p[i] / args.options.gate_temperature));
    all.key[i] = choice_key(all.p[i], biases.of[i]);
    if (all.expert[i] >= args.expert_count) all.key[i] = 0;
  }
}

template <int kEach>
__device__ __forceinline__ void load_places(const ChoiceArguments& args, int64_t row, int first,
                                            int step, const Biases<kEach>& biases,
                                            Places<kEach>& all) {
  const float* logits = args.logits + row * args.splits * args.expert_count;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    all.p[i] = 0.0F;
    all.expert[i] = first + i * step;
  }
  constexpr int kAhead = kEach <= 3 ? 16 : 4;  // splits whose loads are under way at a time
#pragma unroll kAhead
  for (int64_t split = 0; split < args.splits; ++split) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (all.expert[i] >= args.expert_count) continue;
      all.p[i] += logits[split * args.expert_count + all.expert[i]];
    }
  }
  weigh_places(args, biases, all);
}

__device__ __forceinline__ bool wants_margin(const ChoiceArguments& args) {
  return args.margin != nullptr && args.options.top_k < args.expert_count;
}
// How many places in order a choice needs to see.
__device__ __forceinline__ int places_seen(const ChoiceArguments& args) {
  return args.options.top_k + (wants_margin(args) ? 1 : 0);
}

// What a row chose: lanes below top_k have one each, `rank` in ascending order of experts.
struct Chosen {
  int expert;
  int rank;
  float p;
  float sum;  // of all of the row

  __device__ __forceinline__ float weight(const RouterOptions& options) const {
    return p / (sum + 1e-20F) * options.scale;
  }
};

// A row's choice by one warp, from places among which the best are.
template <int kEach>
__device__ __forceinline__ Chosen choose_places(const ChoiceArguments& args, int64_t row,
                                                Places<kEach>& all) {
  const int lane = threadIdx.x % kWarp;
  const int top_k = args.options.top_k;
  float sum = 0.0F;
  float own_p = 0.0F;  // of the place that is this lane's
  int own_expert = 0;
  float last = 0.0F;
  take_best(all, places_seen(args), [&](int place, uint32_t key, int expert, float p) {
    if (place == top_k) {
      if (lane == 0) args.margin[row] = last - from_order_key(key);
      return;
    }
    sum += p;  // best first, as the reference adds them
    last = from_order_key(key);
    if (lane == place) {
      own_p = p;
      own_expert = expert;
    }
  });
  if (args.margin != nullptr && !wants_margin(args) && lane == 0) args.margin[row] = INFINITY;
  int rank = 0;  // ascending
  for (int place = 0; place < top_k; ++place) {
    rank += __shfl_sync(kAllLanes, own_expert, place) < own_expert ? 1 : 0;
  }
  return {own_expert, rank, own_p, sum};
}

__device__ __forceinline__ void store_choice(const ChoiceArguments& args, int64_t row,
                                             const Chosen& chosen) {
  if (static_cast<int>(threadIdx.x % kWarp) >= args.options.top_k) return;
  row_of(args.experts, row)[chosen.rank] = chosen.expert;
  row_of(args.weights, row)[chosen.rank] = chosen.weight(args.options);
}

template <int kEach>
__device__ __forceinline__ void choose(const ChoiceArguments& args, int64_t row,
                                       Places<kEach>& all) {
  store_choice(args, row, choose_places(args, row, all));
}

// What a block of kWarps warps finds, a place a thread.
template <int kWarps, int kTopKMax>
struct BestShared {
  static constexpr int kSeenMax = kTopKMax + 1;
  static_assert(kSeenMax <= kWarps && kWarps <= kWarp);
  uint32_t top[kWarps];    // the best of each warp
  float best_p[kSeenMax];  // of the row's best, in order
  uint32_t best_key[kSeenMax];
  int32_t best_expert[kSeenMax];
  int32_t found;
  unsigned long long candidate[kWarps * kWarp];
};

// The row's best experts in order, the lower of equal ones, to shared.best_*; of the thread that
// has one, told(rank). None of them is below the least of as many as are wanted that are each the
// best of a warp.
template <int kWarps, int kTopKMax, class Told>
__device__ __forceinline__ void find_best(BestShared<kWarps, kTopKMax>& shared, uint32_t key,
                                          float p, int seen, Told&& told) {
  const int thread = threadIdx.x;
  const int lane = thread % kWarp;
  const uint32_t best = __reduce_max_sync(kAllLanes, key);
  if (lane == 0) shared.top[thread / kWarp] = best;
  if (thread == 0) shared.found = 0;
  __syncthreads();
  const uint32_t top = lane < kWarps ? shared.top[lane] : 0;
  int above = 0;
#pragma unroll
  for (int other = 0; other < kWarps; ++other) {
    const uint32_t theirs = shared.top[other];
    above += theirs > top || (theirs == top && other < lane) ? 1 : 0;
  }
  const uint32_t least = __reduce_max_sync(kAllLanes, above == seen - 1 ? top : 0);
  const bool candidate = key >= max(least, 1U);
  const unsigned long long mine =
      static_cast<unsigned long long>(key) << 32 | (0xFFFFFFFFU - static_cast<uint32_t>(thread));
  if (candidate) shared.candidate[atomicAdd(&shared.found, 1)] = mine;
  __syncthreads();
  if (candidate) {
    const int found = shared.found;
    int rank = 0;
#pragma unroll 4
    for (int other = 0; other < found; ++other) rank += shared.candidate[other] > mine ? 1 : 0;
    if (rank < seen) {
      shared.best_key[rank] = key;
      shared.best_expert[rank] = thread;
      shared.best_p[rank] = p;
    }
    told(rank);
  }
  __syncthreads();
}

}  // namespace galley::kernels::cuda
