// Few rows' way from a site to their experts in one launch: the gate's product, the choice, the
// plan and the codes of x to its places.
//
// Floor: latency. 30 KB of weights a block are there before the wait; what is left is one block's
// part of a product (some 0.6 us), two ways through the L2 and the instructions of the choice.
//
// The product is route.cu's of few rows: blocks of 64 rows by 32 experts by 320 of K, by mma.sync.
// Of a tile of rows each of the first blocks has a row besides: it makes the choice, finds the
// row's places, and takes its codes there. Blocks tell each other words that are their own flags:
// parts of logits, and chosen experts. A word that is not told yet has bits that no product has;
// who reads a part takes it away, and of choices, which all blocks read, there are two halves, of
// which the next launch's is cleared by this one. So nothing is counted, no fence is waited for,
// and a sum has its order: the bits are those of route.cu and expert_plan.cu
// (CudaReleasedLayer.TogetherIsOneAfterTheOther). Blocks that wait for others are at most as many
// as rows, in a grid whose blocks fit three to a multiprocessor: the others always find room.
//
// A thread has an expert. None of the best is below the least of as many that are each the best of
// a warp, so about ten candidates are left to be ranked against each other; the choice is told
// before its weights are there, which nobody waits for. The plan is counted by each block for its
// own row: choices of an expert, those in rows before, and a prefix sum of places and blocks.
//
// Measured on an H200, us from the end of a kernel in the site's place to the start of one in the
// experts', caches swept; in three launches (gate, choice, plan with codes; of 8 rows and fewer no
// plan), in one with counters behind fences, and now. In a layer: to the end of 85 MB of experts'
// weights, the shared expert's 24 MB beside them.
//
//   rows    three   counters    now   in a layer: three   now
//   1         8.5        8.7    4.1                43.0  40.2
//   8         8.7       10.7    4.1                43.0  40.7
//   16       11.8               6.1                45.1  42.5
//   32       12.3               7.7                45.8  44.0
//   64       14.1       13.3   10.2                47.4  47.6
//   128      18.4       16.0   13.8                51.0  54.5
//
// Why not more in a layer: the shared expert's blocks, 220 KB of shared memory each, begin where no
// block of these is left, end some 14 us behind the site, and only then leave room for the
// experts'. So it is for up to 32 rows (kRoutedRowsMax was 128 where the others were measured).
//
// One row, with a plan: 2,200 cycles until its block has multiplied, 3,000 until all parts are
// there, 500 for what the choice is by, 1,100 for the best, 1,200 for weights that the block's
// first warp makes, 1,500 for codes. A warp that went through the choice once before the wait, so
// that its instructions were in the cache, brought nothing.
#include <algorithm>

#include "kernels/cuda/mma_bf16.cuh"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/route_choice.cuh"
#include "kernels/cuda/route_plan.h"
#include "kernels/cuda/row.cuh"
#include "kernels/cuda/sm90.cuh"
#include "kernels/cuda/spread_tiles.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int kStep = 64;  // of K in one stage
constexpr int kStages = kGateSplit / kStep;
constexpr int kPitch = kStep * 2 + 16;  // bytes; 16 more, so that eight rows meet different banks
constexpr int kTileRows = 64;
constexpr int kColumns = 32;
constexpr int kStageBytes = (kTileRows + kColumns) * kPitch;
constexpr int kBytes = kStages * kStageBytes;
constexpr int kThreads = 384;  // a thread owns an expert
constexpr int kWarps = kThreads / kWarp;
constexpr int kGateWarps = 8;  // 16 rows by 16 columns each
constexpr int kGateThreads = kGateWarps * kWarp;
static_assert(kGateThreads == kTileRows / 2 * (kStep / 8));
static_assert(kGateThreads == kColumns * (kStep / 8));
constexpr int kSplitsMax = 16;
constexpr int kTopKMax = 8;

// The room: parts of logits [rows][splits][experts]; choices [2][rows * top_k]; which half of them
// is the next launch's.
constexpr int64_t kParts = kRoutedRowsMax * kSplitsMax * kThreads;
constexpr int64_t kChoices = kRoutedRowsMax * kTopKMax;
constexpr uint32_t kNothing = 0xFFFFFFFFU;  // not told yet; no sum of products has these bits

__device__ __forceinline__ uint32_t peek(const uint32_t* at) {
  uint32_t value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}
__device__ __forceinline__ void tell(uint32_t* at, uint32_t value) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}
__device__ __forceinline__ void tell(uint32_t* at, uint32_t value, uint32_t next) {
  asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(at), "r"(value), "r"(next)
               : "memory");
}
__device__ __forceinline__ uint32_t part_bits(float chain) {
  const uint32_t bits = __float_as_uint(0.0F + chain);
  return bits == kNothing ? 0x7FFFFFFFU : bits;
}

// The warps that multiply, among themselves.
__device__ __forceinline__ void meet_multiplying() {
  asm volatile("bar.sync 1, %0;" ::"n"(kGateThreads) : "memory");
}
// 16 bytes of a stage's row, or zeros.
__device__ __forceinline__ void fill(uint32_t to, const Bf16* from, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(inside ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void await_loads(int under_way) {
  switch (under_way) {
    case 0:
      asm volatile("cp.async.wait_group 0;" ::: "memory");
      break;
    case 1:
      asm volatile("cp.async.wait_group 1;" ::: "memory");
      break;
    case 2:
      asm volatile("cp.async.wait_group 2;" ::: "memory");
      break;
    case 3:
      asm volatile("cp.async.wait_group 3;" ::: "memory");
      break;
    default:
      asm volatile("cp.async.wait_group 4;" ::: "memory");
      break;
  }
}

struct RouteShared {
  BestShared<kWarps, kTopKMax> best;
  uint32_t warp_sum[kWarps];
  int32_t planned[kTopKMax];  // what the plan has of this row
  int32_t before[kTopKMax];   // choices of the same experts in rows before this one
  uint32_t half;
  int32_t count[kThreads];
  int32_t begin[kThreads];
};
// Of a stage a thread loads the same piece of two rows of x and of one of the gate.
struct LoadPlace {
  int row;
  int64_t k;
  uint32_t to;
};

__device__ __forceinline__ void load_gate(const RoutePlan& args, const LoadPlace& place) {
  const int64_t column = int64_t{blockIdx.x} * kColumns + place.row;
  const bool inside = column < args.gate.rows;
  const Bf16* from = row_of(args.gate, inside ? column : 0) + place.k;
#pragma unroll
  for (int step = 0; step < kStages; ++step) {
    fill(place.to + step * kStageBytes + kTileRows * kPitch, from + step * kStep,
         inside && place.k + step * kStep < args.gate.cols);
  }
}
__device__ __forceinline__ void load_x(const RoutePlan& args, const LoadPlace& place) {
  bool inside[2];
  const Bf16* from[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = int64_t{blockIdx.z} * kTileRows + place.row + half * (kTileRows / 2);
    inside[half] = row < args.x.rows;
    from[half] = row_of(args.x, inside[half] ? row : 0) + place.k;
  }
#pragma unroll
  for (int step = 0; step < kStages; ++step) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      fill(place.to + step * kStageBytes + half * (kTileRows / 2) * kPitch,
           from[half] + step * kStep, inside[half] && place.k + step * kStep < args.x.cols);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
}

// A tile's part of its logits, told to the blocks that have its rows.
__device__ __forceinline__ void multiply_tile(const RoutePlan& args, uint32_t base,
                                              uint32_t* parts) {
  const int warp = threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int tile_row = warp / 2 * 16;
  const int tile_column = warp % 2 * 16;
  const int64_t first_row = int64_t{blockIdx.z} * kTileRows + tile_row;
  if (first_row >= args.x.rows) {
#pragma unroll
    for (int step = 0; step < kStages; ++step) {
      await_loads(kStages - 1 - step);
      meet_multiplying();
    }
    return;
  }
  // Lanes 0-15 name the rows of the left half (k 0-7), 16-31 those of the right; of the gate two
  // tiles of 8 columns, lanes 0-7 and 8-15 the first's halves of k.
  const uint32_t a_at = base + (tile_row + lane % 16) * kPitch + lane / 16 * 16;
  const uint32_t b_at =
      base + (kTileRows + tile_column + lane / 16 * 8 + lane % 8) * kPitch + lane / 8 % 2 * 16;
  constexpr int kSteps = kGateSplit / 16;
  constexpr int kAhead = 2;
  uint32_t a[kAhead + 1][4];
  uint32_t b[kAhead + 1][4];
  float chain[2][4] = {};
#pragma unroll
  for (int k = 0; k < kSteps + kAhead; ++k) {
    if (k < kSteps) {
      constexpr int kEach = kStep / 16;
      if (k % kEach == 0) {
        await_loads(kStages - 1 - k / kEach);
        meet_multiplying();
      }
      const uint32_t at = k / kEach * kStageBytes + k % kEach * 32;
      load_fragments(a[k % (kAhead + 1)], a_at + at);
      load_fragments(b[k % (kAhead + 1)], b_at + at);
    }
    if (k < kAhead) continue;
    const auto& a_of = a[(k - kAhead) % (kAhead + 1)];
    const auto& b_of = b[(k - kAhead) % (kAhead + 1)];
    multiply_add(chain[0], a_of, b_of[0], b_of[1]);
    multiply_add(chain[1], a_of, b_of[2], b_of[3]);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = first_row + lane / 4 + half * 8;
    uint32_t* to = parts + (row * kSplitsMax + blockIdx.y) * kThreads;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int64_t column = int64_t{blockIdx.x} * kColumns + tile_column + c * 8 + lane % 4 * 2;
      if (row < args.x.rows && column < args.gate.rows) {
        tell(to + column, part_bits(chain[c][half * 2]), part_bits(chain[c][half * 2 + 1]));
      }
    }
  }
}

// This thread's logit once all blocks have told their parts; who reads them takes them away.
__device__ __forceinline__ float add_parts(uint32_t* parts, int splits) {
  uint32_t part[kSplitsMax];
  bool complete;
  do {
    complete = true;
#pragma unroll
    for (int split = 0; split < kSplitsMax; ++split) {
      part[split] = split < splits ? peek(parts + split * kThreads) : 0;
    }
#pragma unroll
    for (int split = 0; split < kSplitsMax; ++split) complete &= part[split] != kNothing;
  } while (!complete);
  float sum = 0.0F;
#pragma unroll
  for (int split = 0; split < kSplitsMax; ++split) {
    if (split < splits) sum += __uint_as_float(part[split]);
  }
#pragma unroll
  for (int split = 0; split < kSplitsMax; ++split) {
    if (split < splits) tell(parts + split * kThreads, kNothing);
  }
  return sum;
}

// Places and blocks of the experts before this thread's one, and blocks of all, of plans that have
// `share` of each: places in the lower half of a word, blocks in the upper one.
__device__ __forceinline__ uint32_t sum_before(RouteShared& shared, uint32_t share, uint32_t& all) {
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  uint32_t inclusive = share;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const uint32_t there = __shfl_up_sync(kAllLanes, inclusive, step);
    if (lane >= step) inclusive += there;
  }
  if (lane == kWarp - 1) shared.warp_sum[warp] = inclusive;
  __syncthreads();
  uint32_t before = inclusive - share;
  all = 0;
#pragma unroll
  for (int other = 0; other < kWarps; ++other) {
    const uint32_t sum = shared.warp_sum[other];
    if (other < warp) before += sum;
    all += sum;
  }
  return before;
}

__global__ void __launch_bounds__(kThreads, 3)
    route_plan_kernel(const __grid_constant__ RoutePlan args) {
  extern __shared__ __align__(16) uint8_t stages[];
  __shared__ RouteShared shared;
  const int thread = threadIdx.x;
  const int lane = thread % kWarp;
  const int experts = static_cast<int>(args.gate.rows);
  const auto splits = static_cast<int>(gridDim.y);
  const auto rows = static_cast<int>(args.x.rows);
  const int top_k = args.options.top_k;
  auto* const parts = static_cast<uint32_t*>(args.room);
  // The row whose choice is this block's, if any.
  const auto block = static_cast<int>(blockIdx.y * gridDim.x + blockIdx.x);
  const int row = static_cast<int>(blockIdx.z) * kTileRows + block;
  const bool has_row = block < kTileRows && row < rows;

  const uint32_t base = shared_address(stages);
  const int load_row = thread / (kStep / 8);
  const int load_column = thread % (kStep / 8) * 8;
  const LoadPlace place{load_row, int64_t{blockIdx.y} * kGateSplit + load_column,
                        base + load_row * kPitch + load_column * 2};
  // Constant: before the wait.
  if (thread < kGateThreads) load_gate(args, place);
  const float bias = has_row && thread < experts ? args.bias_of_row[row][thread] : 0.0F;
  await_earlier();
  if (thread < kGateThreads) {
    load_x(args, place);
    multiply_tile(args, base, parts);
  }
  if (!has_row) return;

  uint32_t* const halves = parts + kParts;
  uint32_t* const next_half = halves + 2 * kChoices;
  if (thread == 0) shared.half = peek(next_half) & 1;
  shared.count[thread] = 0;
  if (thread < kTopKMax) {
    shared.before[thread] = 0;
    shared.planned[thread] = -1;
  }
  __syncthreads();
  const uint32_t half = shared.half;
  uint32_t* const choices = halves + half * kChoices;
  // A piece of the row's codes, on its way meanwhile.
  const bool has_piece = thread < args.chunks * kRowPieces;
  SpreadPiece piece{};
  if (has_piece) {
    piece = load_piece({.from = args.from, .rows = rows}, thread / kRowPieces,
                       row * kRowPieces + thread % kRowPieces);
  }
  float p = 0.0F;
  uint32_t key = 0;
  if (thread < experts) {
    p = add_parts(parts + int64_t{row} * kSplitsMax * kThreads + thread, splits);
    if (args.options.gate_temperature != 1.0F) p /= args.options.gate_temperature;
    p = sqrtf(softplus(p));
    key = choice_key(p, bias);
  }
  const bool wants_margin = args.margin != nullptr && top_k < experts;
  const bool plans = args.plan.place != nullptr;
  const bool plans_these = args.plan_experts == args.experts.data;
  const int own_first = row * top_k;
  uint32_t* const own_choices = plans && rows > 1 ? choices + own_first : nullptr;
  // Those that the plan takes are told.
  find_best(shared.best, key, p, top_k + (wants_margin ? 1 : 0), [&](int rank) {
    if (rank >= top_k) return;
    if (plans_these) shared.planned[rank] = thread;
    if (own_choices != nullptr) tell(own_choices + rank, static_cast<uint32_t>(thread));
  });

  // A lane has the choice of that number, best first.
  const int32_t expert = lane < top_k ? shared.best.best_expert[lane] : -1;
  int32_t planned = expert;
  float weight = 0.0F;
  int ascending = 0;
  if (thread < kWarp) {
    float sum = 0.0F;
#pragma unroll
    for (int other = 0; other < kTopKMax; ++other) {
      if (other >= top_k) continue;
      sum += shared.best.best_p[other];  // best first, as the reference adds them
      ascending += shared.best.best_expert[other] < expert ? 1 : 0;
    }
    weight = shared.best.best_p[min(lane, top_k)] / (sum + 1e-20F) * args.options.scale;
    if (lane < top_k) {
      row_of(args.experts, row)[ascending] = expert;
      row_of(args.weights, row)[ascending] = weight;
    }
    if (args.margin != nullptr && lane == 0) {
      args.margin[row] = wants_margin ? from_order_key(shared.best.best_key[top_k - 1]) -
                                            from_order_key(shared.best.best_key[top_k])
                                      : INFINITY;
    }
  }
  if (!plans) return;
  if (!plans_these) {
    ascending = lane;
    planned = lane < top_k ? args.plan_experts[own_first + lane] : -1;
    if (lane < top_k) weight = args.plan_weights[own_first + lane];
    if (thread < top_k) shared.planned[thread] = planned;
    __syncthreads();
  }
  if (planned >= args.plan_expert_count) planned = -1;

  int32_t to_place = -1;
  if (rows == 1) {
    // Experts of a row differ.
    int less = 0;
    int all = 0;
#pragma unroll
    for (int other = 0; other < kTopKMax; ++other) {
      const int32_t theirs = __shfl_sync(kAllLanes, planned, other);
      less += theirs >= 0 && theirs < planned ? 1 : 0;
      all += theirs >= 0 ? 1 : 0;
    }
    if (planned >= 0) {
      to_place = less * 8;
      if (thread < kWarp) args.plan.blocks[less] = {planned, to_place, 1, 0};
    }
    if (thread == 0) *args.plan.totals = {all, 8 * all, 0};
  } else {
    int32_t own[kTopKMax];
#pragma unroll
    for (int k = 0; k < kTopKMax; ++k) own[k] = shared.planned[k];
#pragma unroll 1
    for (int i = thread; i < rows * top_k; i += kThreads) {
      uint32_t told;
      do {
        told = peek(choices + i);
      } while (told == kNothing);
      const int32_t id = plans_these ? static_cast<int32_t>(told) : args.plan_experts[i];
      if (id < 0 || id >= args.plan_expert_count) continue;
      atomicAdd(shared.count + id, 1);
      if (i >= own_first) continue;
#pragma unroll
      for (int k = 0; k < kTopKMax; ++k) {
        if (id == own[k]) atomicAdd(shared.before + k, 1);
      }
    }
    __syncthreads();
    const int32_t count = shared.count[thread];
    const int32_t block_rows = rows_of_block(count, args.block_tokens);
    const auto blocks = static_cast<uint32_t>((count + block_rows - 1) / block_rows);
    uint32_t all;
    const uint32_t before =
        sum_before(shared, static_cast<uint32_t>(count + 7) / 8 * 8 | blocks << 16, all);
    const auto first_place = static_cast<int32_t>(before & 0xFFFFU);
    shared.begin[thread] = first_place;
    __syncthreads();
    if (planned >= 0) to_place = shared.begin[planned] + shared.before[lane];
    if (row == 0) {
      const auto first_block = static_cast<int32_t>(before >> 16);
      for (int32_t n = 0; n * block_rows < count; ++n) {
        args.plan.blocks[first_block + n] = {thread, first_place + n * block_rows,
                                             min(block_rows, count - n * block_rows), 0};
      }
      if (thread == 0) {
        *args.plan.totals = {static_cast<int32_t>(all >> 16), static_cast<int32_t>(all & 0xFFFFU),
                             0};
      }
      // The next launch's half. All rows' choices were told: nobody asks for this launch's any
      // more.
      uint32_t* const next = halves + (half ^ 1) * kChoices;
      for (int i = thread; i < kChoices; i += kThreads) next[i] = kNothing;
      if (thread == 0) *next_half = half ^ 1;
    }
  }
  uint8_t* const codes_to = args.to.x8 + int64_t{thread / kRowPieces} * args.to.places * kChunk;
  float* const scale_to = args.to.scale + int64_t{thread / kRowPieces} * args.to.places;
  const int which = thread % kRowPieces ^ (row & 7);
#pragma unroll
  for (int k = 0; k < kTopKMax; ++k) {
    const int32_t to = __shfl_sync(kAllLanes, to_place, k);
    if (to < 0 || !has_piece) continue;
    *reinterpret_cast<uint4*>(codes_to + to * kChunk + (which ^ (to & 7)) * 16) = piece.codes;
    if (which == 0) scale_to[to] = piece.scale;
  }
  if (thread < top_k) {
    args.plan.place[own_first + ascending] = to_place;
    if (to_place >= 0) args.plan.row_weight[to_place] = weight;
  }
}

}  // namespace

int64_t route_plan_room_bytes() { return (kParts + 2 * kChoices + 4) * int64_t{sizeof(uint32_t)}; }

bool route_plan_supports(const RoutePlan& r) {
  const int64_t experts = r.gate.rows;
  const int64_t splits = divide_up(r.x.cols, kGateSplit);
  return r.room != nullptr && r.x.rows > 0 && r.x.rows <= kRoutedRowsMax && experts <= kThreads &&
         experts % 2 == 0 && r.options.top_k <= kTopKMax && r.options.top_k <= experts &&
         splits <= kSplitsMax && is_whole(r.x) && is_whole(r.gate) &&
         divide_up(experts, kColumns) * splits >= std::min<int64_t>(r.x.rows, kTileRows);
}
bool route_plan_takes(int64_t experts, int64_t chunks, int32_t block_tokens) {
  return experts <= kThreads && chunks * kRowPieces <= kThreads && block_tokens < kPairStripsBlock;
}

void route_alone(Stream stream, const RoutePlan& r) {
  route(stream, r.x, r.gate.data, r.gate.rows, r.bias_of_row, r.options, r.experts, r.weights,
        r.margin, r.workspace);
}

void route_and_plan(Stream stream, const RoutePlan& r) {
  CHECK(route_plan_supports(r) && route_plan_takes(r.plan_expert_count, r.chunks, r.block_tokens));
  const dim3 grid(static_cast<unsigned>(divide_up(r.gate.rows, kColumns)),
                  static_cast<unsigned>(divide_up(r.x.cols, kGateSplit)),
                  static_cast<unsigned>(divide_up(r.x.rows, kTileRows)));
  launch_kernel(route_plan_kernel, {grid, kThreads, kBytes}, stream, r);
}

}  // namespace galley::kernels::cuda
