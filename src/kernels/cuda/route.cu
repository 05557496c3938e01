// The gate's product and the choice.
//
// Floor at the released shape (384 x 5,120): 10 KB of x a row, or 3.9 MFLOP of bf16 products, which
// above a few thousand rows take longer (95 us for 16,384 rows at 680 TFLOP/s).
//
// K is cut into splits of 320; a split's sum is one chain of products from zero, splits are added
// in order. Few rows put splits on different blocks, which leave their sums in memory for the
// choice to add; many rows go through all splits in one block. A gate as wide as a release's goes
// by wgmma from 129 rows on (split_product.cu), up to 512 with a split a cluster. All make the same
// chains and the same additions: mma.sync and wgmma add 16 of K to a sum with the same bits
// (CudaReleasedRows.RouterDoesNotSeeOtherRows). The choice is a warp a row: a maximum per place,
// experts in registers, the lower id wins a tie; of few rows a block has one, since then only
// latency counts: of up to 384 experts a thread each, and what is not among the best of a warp is
// not looked at again (find_best). In a rank's step of 64 rows that choice is 4.6 us of the chain,
// where four warps with three experts a lane, which rank six or seven one after the other, were
// 10.6; a step 8.43 -> 8.33 ms, of 128 rows 11.77 -> 11.60. Biases are there before the step's
// first launch: they are asked for before the wait. Up to 32 rows of a release go with their plan
// instead (route_plan.cu).
//
// Measured on an H200, one behind the other: 8.8 us for 1 row, 10.2 for 64 (10.2 and 11.7 with
// biases behind the wait and three of a split's five stages on their way at a time), 20 for 256,
// 24 for 640, 26 for 768, 41 for 4,096, 70 for 8,192, 138 for 16,384. Through mma.sync 41, 48, 130,
// 175 and 345 from 640 rows on. In a graph behind a kernel that makes x, mma.sync / all splits in a
// cluster by wgmma / one split a cluster: 18.7 / - / 14.6 us for 192 rows, 20.9 / - / 18.6 for 256,
// 28.2 / 27.9 / 22.4 for 384, 36.1 / 29.3 / 24.6 for 512, 44.5 / 31.0 / 31.2 for 640.
//
// Measured and not here: a choice that weighs exactly only what a guess of 4e-3 leaves, some eight
// of 384, takes 35 us instead of 48 for 16,384 rows, and 1 to 4 more for 1,025. Blocks of parts
// with 448 threads, 90 registers and five stages, beside which the choice's blocks can wait, save
// 1.3 us of 384 rows and up to 3.5 of 256; the form of whole sums in the same template lost 1.5.
#include <algorithm>
#include <type_traits>

#include "kernels/cuda/mma_bf16.cuh"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/route.h"
#include "kernels/cuda/route_choice.cuh"
#include "kernels/cuda/row.cuh"
#include "kernels/cuda/sm90.cuh"
#include "kernels/cuda/split_product.h"

namespace galley::kernels::cuda {
namespace {

constexpr int kSplit = kGateSplit;
constexpr int kStep = 64;               // of K in one stage
constexpr int kPitch = kStep * 2 + 16;  // bytes; 16 more, so that eight rows meet different banks
constexpr int64_t kFewRows = 1024;
// split_products from here on where they can, and up to there with each split apart: then these are
// no more than one round of clusters.
constexpr int64_t kSplitRows = 129;
constexpr int64_t kApartRows = 512;
static_assert(kApartRows <= kFewRows);
static_assert(kSplit % kStep == 0);

// A block's tile and the warps it is shared among; a warp's part is 16 kRowTiles x 8 kColumnTiles.
// All but one of the stages are on their way at a time.
template <int kRowsIn, int kColumnsIn, int kRowWarpsIn, int kColumnWarpsIn, int kStagesIn>
struct Shape {
  static constexpr int kStages = kStagesIn;
  static constexpr int kRows = kRowsIn;
  static constexpr int kColumns = kColumnsIn;
  static constexpr int kColumnWarps = kColumnWarpsIn;
  static constexpr int kThreads = kRowWarpsIn * kColumnWarpsIn * kWarp;
  static constexpr int kWarpRows = kRows / kRowWarpsIn;
  static constexpr int kWarpColumns = kColumns / kColumnWarpsIn;
  static constexpr int kRowTiles = kWarpRows / 16;
  static constexpr int kColumnTiles = kWarpColumns / 8;
  static constexpr int kStageBytes = (kRows + kColumns) * kPitch;
};
using ManyRows = Shape<64, 128, 2, 2, 4>;  // two blocks a processor
// All of a split is on its way at once, and one stage more would never be filled.
using FewRows = Shape<64, 32, 4, 1, kSplit / kStep + 1>;
constexpr int kFewRowsBytes = (FewRows::kStages - 1) * FewRows::kStageBytes;

struct GateArguments {
  Rows<const Bf16> x;
  Rows<const Bf16> gate;
  float* logits;  // [rows, splits, experts], or [rows, experts] with all splits in one block
  int64_t splits;
};

// `count` rows of `source` from `first`, columns [k, k + kStep), to shared memory; zeros outside.
template <int kThreads, bool kWhole>
__device__ __forceinline__ void fill(const Rows<const Bf16>& source, int64_t first, int count,
                                     int64_t k, uint8_t* shared) {
  for (int item = threadIdx.x; item < count * (kStep / 8); item += kThreads) {
    const int row = item / (kStep / 8);
    const int piece = item % (kStep / 8);
    const int64_t at = first + row;
    const bool inside = at < source.rows && k + piece * 8 < source.cols;
    uint8_t* to = shared + row * kPitch + piece * 16;
    if constexpr (kWhole) {
      const Bf16* from = inside ? row_of(source, at) + k + piece * 8 : source.data;
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                   "l"(from), "r"(inside ? 16 : 0)
                   : "memory");
    } else {
      *reinterpret_cast<uint4*>(to) =
          inside ? load8<false>(row_of(source, at), k / 8 + piece, source.cols) : uint4{};
    }
  }
}

template <class S>
__device__ __forceinline__ void clear(float (&sums)[S::kRowTiles][S::kColumnTiles][4]) {
#pragma unroll
  for (int r = 0; r < S::kRowTiles; ++r) {
#pragma unroll
    for (int c = 0; c < S::kColumnTiles; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[r][c][i] = 0.0F;
    }
  }
}

// The products of one stage, added to a warp's sums.
template <class S>
__device__ __forceinline__ void multiply_stage(const uint8_t* stage,
                                               float (&sums)[S::kRowTiles][S::kColumnTiles][4]) {
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int row = warp / S::kColumnWarps * S::kWarpRows;
  const int column = S::kRows + warp % S::kColumnWarps * S::kWarpColumns;
  const uint32_t base = shared_address(stage);
#pragma unroll
  for (int k = 0; k < kStep; k += 16) {
    uint32_t a[S::kRowTiles][4];
#pragma unroll
    for (int r = 0; r < S::kRowTiles; ++r) {
      // Lanes 0-15 name the rows of the left half (k 0-7), 16-31 those of the right.
      load_fragments(a[r], base + (row + r * 16 + lane % 16) * kPitch + (k + lane / 16 * 8) * 2);
    }
#pragma unroll
    for (int c = 0; c < S::kColumnTiles; c += 2) {
      uint32_t b[4];  // two tiles of 8 columns: lanes 0-7 and 8-15 the first's halves of k
      load_fragments(b, base + (column + c * 8 + lane / 16 * 8 + lane % 8) * kPitch +
                            (k + lane / 8 % 2 * 8) * 2);
#pragma unroll
      for (int r = 0; r < S::kRowTiles; ++r) {
        multiply_add(sums[r][c], a[r], b[0], b[1]);
        multiply_add(sums[r][c + 1], a[r], b[2], b[3]);
      }
    }
  }
}

// Block (columns, split or 0, rows). kOneSplit: this block has split blockIdx.y alone. Waits for
// earlier kernels.
template <class S, bool kOneSplit, bool kWhole>
__device__ __forceinline__ void gate_tile(const GateArguments& args) {
  extern __shared__ __align__(16) uint8_t shared[];
  const int64_t first_row = int64_t{blockIdx.z} * S::kRows;
  const int64_t first_column = int64_t{blockIdx.x} * S::kColumns;
  const int64_t k_begin = kOneSplit ? int64_t{blockIdx.y} * kSplit : 0;
  const int64_t k_end = kOneSplit ? min(args.x.cols, k_begin + kSplit) : args.x.cols;
  const int64_t steps = (k_end - k_begin + kStep - 1) / kStep;
  const auto load_gate = [&](int64_t step) {
    if (step >= steps) return;
    fill<S::kThreads, kWhole>(args.gate, first_column, S::kColumns, k_begin + step * kStep,
                              shared + step % S::kStages * S::kStageBytes + S::kRows * kPitch);
  };
  const auto load_x = [&](int64_t step) {
    if (step < steps) {
      fill<S::kThreads, kWhole>(args.x, first_row, S::kRows, k_begin + step * kStep,
                                shared + step % S::kStages * S::kStageBytes);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  // Constant: before the wait. It completes with the first part of x at the latest.
  for (int step = 0; step < S::kStages - 1; ++step) load_gate(step);
  await_earlier();
  float chain[S::kRowTiles][S::kColumnTiles][4];
  float total[S::kRowTiles][S::kColumnTiles][4];
  clear<S>(chain);
  clear<S>(total);
  for (int step = 0; step < S::kStages - 1; ++step) load_x(step);
  for (int64_t step = 0; step < steps; ++step) {
    asm volatile("cp.async.wait_group %0;" ::"n"(S::kStages - 2) : "memory");
    __syncthreads();  // the stage is there, and the one to be filled next is free
    load_gate(step + S::kStages - 1);
    load_x(step + S::kStages - 1);
    multiply_stage<S>(shared + step % S::kStages * S::kStageBytes, chain);
    if ((step + 1) % (kSplit / kStep) == 0 || step + 1 == steps) {
#pragma unroll
      for (int r = 0; r < S::kRowTiles; ++r) {
#pragma unroll
        for (int c = 0; c < S::kColumnTiles; ++c) {
#pragma unroll
          for (int i = 0; i < 4; ++i) total[r][c][i] += chain[r][c][i];
        }
      }
      clear<S>(chain);
    }
  }
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int64_t row = first_row + warp / S::kColumnWarps * S::kWarpRows + lane / 4;
  const int64_t column = first_column + warp % S::kColumnWarps * S::kWarpColumns + lane % 4 * 2;
  const int64_t experts = args.gate.rows;
#pragma unroll
  for (int r = 0; r < S::kRowTiles; ++r) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t at_row = row + r * 16 + i / 2 * 8;
      if (at_row >= args.x.rows) continue;
      float* to = args.logits + (at_row * args.splits + (kOneSplit ? blockIdx.y : 0)) * experts;
#pragma unroll
      for (int c = 0; c < S::kColumnTiles; ++c) {
        const int64_t at = column + c * 8 + i % 2;
        if (at < experts) to[at] = total[r][c][i];
      }
    }
  }
}

template <class S, bool kOneSplit, bool kWhole>
__global__ void __launch_bounds__(S::kThreads) gate_kernel(GateArguments args) {
  gate_tile<S, kOneSplit, kWhole>(args);
}

constexpr int kChoiceWarps = 4;

// A warp a row.
template <int kEach>
__global__ void __launch_bounds__(kChoiceWarps* kWarp) choose_kernel(ChoiceArguments args) {
  const int64_t row = int64_t{blockIdx.x} * kChoiceWarps + threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  Biases<kEach> biases;
  load_biases(args, min(row, args.experts.rows - 1), lane, kWarp, biases);
  await_earlier();
  if (row >= args.experts.rows) return;
  Places<kEach> all;
  load_places(args, row, lane, kWarp, biases, all);
  choose(args, row, all);
}

// A block a row, where rows are few and only latency counts: each warp finds the best of its
// experts, one of them the best of these.
template <int kEach>
__global__ void __launch_bounds__(kChoiceWarps* kWarp) choose_few_kernel(ChoiceArguments args) {
  Biases<kEach> biases;
  load_biases(args, blockIdx.x, threadIdx.x, kChoiceWarps * kWarp, biases);
  await_earlier();
  constexpr int kSeenMax = kChoiceWarps * (kRoutedTopKMax + 1);
  constexpr int kSeenEach = (kSeenMax + kWarp - 1) / kWarp;
  __shared__ uint32_t keys[kSeenMax];
  __shared__ int experts[kSeenMax];
  __shared__ float ps[kSeenMax];
  const int lane = threadIdx.x % kWarp;
  const int seen = places_seen(args);
  Places<kEach> all;
  load_places(args, blockIdx.x, threadIdx.x, kChoiceWarps * kWarp, biases, all);
  const int begin = static_cast<int>(threadIdx.x) / kWarp * seen;
  take_best(all, seen, [&](int place, uint32_t key, int expert, float p) {
    if (lane != 0) return;
    keys[begin + place] = key;
    experts[begin + place] = expert;
    ps[begin + place] = p;
  });
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  Places<kSeenEach> best;
#pragma unroll
  for (int i = 0; i < kSeenEach; ++i) {
    const int at = lane + i * kWarp;
    const bool inside = at < kChoiceWarps * seen;
    best.key[i] = inside ? keys[at] : 0;
    best.expert[i] = inside ? experts[at] : 0;
    best.p[i] = inside ? ps[at] : 0.0F;
  }
  choose(args, blockIdx.x, best);
}

// As choose_few_kernel, of up to 384 experts: a thread has one, and asks for all its parts at once.
constexpr int kWideThreads = 384;
constexpr int kWideTopKMax = 8;
constexpr int kWideSplitsMax = 16;

__global__ void __launch_bounds__(kWideThreads) choose_wide_kernel(ChoiceArguments args) {
  __shared__ BestShared<kWideThreads / kWarp, kWideTopKMax> shared;
  const auto thread = static_cast<int>(threadIdx.x);
  const auto row = static_cast<int64_t>(blockIdx.x);
  const bool has_expert = thread < args.expert_count;
  const float bias = has_expert ? args.bias_of_row[row][thread] : 0.0F;
  await_earlier();
  float p = 0.0F;
  uint32_t key = 0;
  if (has_expert) {
    const float* logits = args.logits + row * args.splits * args.expert_count + thread;
    float part[kWideSplitsMax];
#pragma unroll
    for (int split = 0; split < kWideSplitsMax; ++split) {
      part[split] = split < args.splits ? logits[split * args.expert_count] : 0.0F;
    }
#pragma unroll
    for (int split = 0; split < kWideSplitsMax; ++split) {
      if (split < args.splits) p += part[split];
    }
    if (args.options.gate_temperature != 1.0F) p /= args.options.gate_temperature;
    p = sqrtf(softplus(p));
    key = choice_key(p, bias);
  }
  const int top_k = args.options.top_k;
  const bool margin = wants_margin(args);
  find_best(shared, key, p, top_k + (margin ? 1 : 0), [](int /*rank*/) {});
  if (thread >= kWarp) return;
  const int32_t expert = thread < top_k ? shared.best_expert[thread] : -1;
  float sum = 0.0F;
  int ascending = 0;
#pragma unroll
  for (int other = 0; other < kWideTopKMax; ++other) {
    if (other >= top_k) continue;
    sum += shared.best_p[other];  // best first, as the reference adds them
    ascending += shared.best_expert[other] < expert ? 1 : 0;
  }
  if (thread < top_k) {
    row_of(args.experts, row)[ascending] = expert;
    row_of(args.weights, row)[ascending] =
        shared.best_p[thread] / (sum + 1e-20F) * args.options.scale;
  }
  if (args.margin != nullptr && thread == 0) {
    args.margin[row] =
        margin ? from_order_key(shared.best_key[top_k - 1]) - from_order_key(shared.best_key[top_k])
               : INFINITY;
  }
}

// Product and choice of eight rows by a block, where one split and few experts are all: a warp
// multiplies eight experts, operands straight from memory in the places that the tiles' products
// give them, so that sums are the same; then each warp has a row's choice.
constexpr int kNarrowSteps = kSplit / 16;
constexpr int kNarrowExpertsMax = 32;
constexpr int kNarrowRows = 8;

struct NarrowOperand {
  uint32_t pairs[kNarrowSteps][2];

  // Of row `row`; a lane has pairs 2 q and 2 q + 8 of each 16.
  __device__ __forceinline__ void load(const Rows<const Bf16>& source, int64_t row, int steps) {
    const bool inside = row < source.rows;
    const auto* from =
        reinterpret_cast<const uint32_t*>(row_of(source, inside ? row : 0)) + threadIdx.x % 4;
#pragma unroll
    for (int step = 0; step < kNarrowSteps; ++step) {
      pairs[step][0] = inside && step < steps ? from[step * 8] : 0;
      pairs[step][1] = inside && step < steps ? from[step * 8 + 4] : 0;
    }
  }
};

__global__ void __launch_bounds__(kNarrowRows* kWarp)
    route_narrow_kernel(const __grid_constant__ GateArguments gate,
                        const __grid_constant__ ChoiceArguments choice) {
  __shared__ float logits[kNarrowRows][kNarrowExpertsMax];
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int64_t first_row = int64_t{blockIdx.x} * kNarrowRows;
  const int64_t row = first_row + warp;
  const int experts = choice.expert_count;
  const auto steps = static_cast<int>(gate.x.cols / 16);
  const bool multiplies = warp * 8 < experts;
  NarrowOperand weights;
  if (multiplies) weights.load(gate.gate, warp * 8 + lane / 4, steps);
  Biases<1> biases;
  load_biases(choice, min(row, choice.experts.rows - 1), lane, kWarp, biases);
  await_earlier();
  if (multiplies) {
    NarrowOperand x;
    x.load(gate.x, first_row + lane / 4, steps);
    float chain[4] = {};
#pragma unroll
    for (int step = 0; step < kNarrowSteps; ++step) {
      if (step >= steps) break;
      const uint32_t a[4] = {x.pairs[step][0], 0, x.pairs[step][1], 0};
      multiply_add(chain, a, weights.pairs[step][0], weights.pairs[step][1]);
    }
    *reinterpret_cast<float2*>(&logits[lane / 4][warp * 8 + lane % 4 * 2]) = {0.0F + chain[0],
                                                                              0.0F + chain[1]};
  }
  __syncthreads();
  if (row >= choice.experts.rows) return;
  ChoiceArguments own = choice;
  own.logits = logits[warp] - row * experts;
  own.splits = 1;
  Places<1> all;
  load_places(own, row, lane, kWarp, biases, all);
  choose(own, row, all);
}

bool takes_narrow(const GateArguments& args) {
  return args.splits == 1 && args.gate.rows <= kNarrowExpertsMax && args.x.cols % 16 == 0 &&
         is_whole(args.x) && is_whole(args.gate) && args.x.rows <= kFewRows;
}

template <class S, bool kOneSplit, bool kWhole>
void launch_gate(Stream stream, const GateArguments& args) {
  constexpr int kBytes = kOneSplit ? kFewRowsBytes : S::kStages * S::kStageBytes;
  static_assert(!kOneSplit || std::is_same_v<S, FewRows>);
  const dim3 grid(static_cast<unsigned>(divide_up(args.gate.rows, S::kColumns)),
                  static_cast<unsigned>(kOneSplit ? args.splits : 1),
                  static_cast<unsigned>(divide_up(args.x.rows, S::kRows)));
  launch_kernel(gate_kernel<S, kOneSplit, kWhole>, {grid, S::kThreads, kBytes}, stream, args);
}

int64_t split_count(int64_t rows, int64_t hidden) {
  return rows <= kFewRows ? divide_up(hidden, kSplit) : 1;
}

}  // namespace

int64_t route_workspace_bytes(int64_t rows, int64_t hidden, int64_t experts) {
  // Fewer rows than these may need more.
  const int64_t few = std::min(rows, kFewRows);
  return std::max(few * split_count(few, hidden), rows) * experts *
         static_cast<int64_t>(sizeof(float));
}

void route(Stream stream, Rows<const Bf16> x, const Bf16* gate, int64_t expert_count,
           const float* const* bias_of_row, const RouterOptions& options, Rows<int32_t> experts,
           Rows<float> weights, float* margin, void* workspace) {
  CHECK(expert_count <= kRoutedExpertsMax && options.top_k <= expert_count &&
        options.top_k <= kRoutedTopKMax);
  if (x.rows == 0) return;
  const bool few = x.rows <= kFewRows;
  constexpr int64_t kExpertsMin = 128;  // as wide as a release's
  constexpr int64_t kInMin = 1024;
  ProductSet products;  // by wgmma
  products.count = 1;
  products.products[0] = {
      .x = x,
      .weight = {WeightFormat::kBf16, expert_count, x.cols, gate, nullptr},
      .y_f32 = Rows<float>(static_cast<float*>(workspace), x.rows, expert_count)};
  const bool by_wgmma = x.rows >= kSplitRows && expert_count >= kExpertsMin && x.cols >= kInMin &&
                        split_product_supports(products.products[0]);
  const bool apart = x.rows <= kApartRows;
  const GateArguments args{x, Rows<const Bf16>(gate, expert_count, x.cols),
                           static_cast<float*>(workspace),
                           by_wgmma && !apart ? 1 : split_count(x.rows, x.cols)};
  const bool whole = is_whole(x) && is_whole(gate, x.cols);
  const ChoiceArguments choice{args.logits, args.splits, static_cast<int32_t>(expert_count),
                               bias_of_row, options,     experts,
                               weights,     margin};
  if (takes_narrow(args)) {
    launch_kernel(route_narrow_kernel,
                  {static_cast<unsigned>(divide_up(x.rows, kNarrowRows)), kNarrowRows * kWarp},
                  stream, args, choice);
    return;
  }
  if (by_wgmma) {
    split_products(stream, products, kSplit, apart);
  } else if (few && whole) {
    launch_gate<FewRows, true, true>(stream, args);
  } else if (few) {
    launch_gate<FewRows, true, false>(stream, args);
  } else if (whole) {
    launch_gate<ManyRows, false, true>(stream, args);
  } else {
    launch_gate<ManyRows, false, false>(stream, args);
  }
  const auto grid = static_cast<unsigned>(divide_up(x.rows, kChoiceWarps));
  const auto launch = [&](auto kernel) {
    launch_kernel(kernel, {grid, kChoiceWarps * kWarp}, stream, choice);
  };
  if (few && expert_count > 128 && expert_count <= kWideThreads && options.top_k <= kWideTopKMax &&
      choice.splits <= kWideSplitsMax) {
    launch_kernel(choose_wide_kernel, {static_cast<unsigned>(x.rows), kWideThreads}, stream,
                  choice);
  } else if (few && expert_count > 128) {
    const auto kernel = expert_count <= 384 ? choose_few_kernel<3> : choose_few_kernel<8>;
    launch_kernel(kernel, {static_cast<unsigned>(x.rows), kChoiceWarps * kWarp}, stream, choice);
  } else if (expert_count <= 32) {
    launch(choose_kernel<1>);
  } else if (expert_count <= 128) {
    launch(choose_kernel<4>);
  } else if (expert_count <= 384) {
    launch(choose_kernel<12>);
  } else {
    launch(choose_kernel<32>);
  }
}

}  // namespace galley::kernels::cuda
