// Floors: the plan reads 8 bytes a choice and writes 8: nothing but latency; the quantiser reads 2
// bytes and writes 1.03 (top_k + 1); combine reads 2 (top_k + 1) and writes 2 bytes a value.
//
// The plan is one launch: a block where there are few choices, else a cluster of eight whose blocks
// tell each other their counts. Every warp has a run of choices and counts of its own for each
// expert, so that prefixes of counts give each choice the same place however the warps run: the
// choices of an expert lie in their order. Runs of 32 stay in registers, longer ones are read
// twice.
//
// The other two are bound by memory once enough of it is asked for at a time: no division by a
// run-time width, places asked for in front of the rows, all rows of a sum at once, and one launch
// for all that one input becomes.
//
// On an H200, us, in a graph of calls; before: a warp of each expert read all choices, and the
// shared expert's rows had launches of their own.
//
//   rows x 6 of experts                     before   now
//   plan, 4 of 384                             3.5   2.2
//   plan, 64 of 7                              4.9   2.0
//   plan, 384 of 7                            12.6   3.6
//   plan, 16,384 of 384                        512    23
//   input, 64 of 7                             4.4   2.1
//   input, 16,384 of 384                       351   265  2.9 TB/s, five sixths of them written
//   inner, 64 of 7                             3.8   2.1
//   inner, 16,384 of 384                       312   217  3.7 TB/s
//   combine, 16,384 of 384                     313   302  4.45 TB/s
//
// Where who made the input left it in Q8, codes are copied: of up to 1,024 choices by the plan's
// own launch, every block of which makes the whole plan and takes a chunk of all rows to their
// places.
//
//   rows x 6 of experts      plan, quantised input    plan, copied codes
//   1 of 384                                   3.5                   2.5
//   64 of 7                                    4.0                   3.3
//   16,384 of 384                              291                   233
//
// Every block making the plan of more than 1,024 choices, 80 of them, is slower than the two
// launches: 14.1 us for 384 rows where they take 12.4, 27.7 for 1,024 where they take 19.5.
//
// The plan of many choices is bound by its scattered stores of 4 bytes, which eight multiprocessors
// issue. Inners taken in the order of their places, not of the choices, would be 38 us faster
// still; their number is known on the device alone.
#include <cuda_bf16.h>

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/expert_plan.h"
#include "kernels/cuda/global_loads.cuh"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/quantise_tiles.cuh"
#include "kernels/cuda/sm90.cuh"
#include "kernels/cuda/spread_tiles.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int32_t kPlanThreads = kExpertsMax;  // a thread owns an expert
constexpr int32_t kPlanWarps = kPlanThreads / 32;
constexpr int64_t kPlanCluster = 8;
constexpr int32_t kCombineThreads = 128;
constexpr int64_t kGridRowsMax = 65535;  // blocks of y

__device__ __forceinline__ int32_t read_remote(const int32_t* value, uint32_t rank) {
  int32_t result;
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %1, %2;\n"
      "ld.shared::cluster.s32 %0, [remote];\n}\n"
      : "=r"(result)
      : "r"(shared_address(value)), "r"(rank)
      : "memory");
  return result;
}

// Sums of both numbers over the threads before this one, and over all of them.
struct BlockScan {
  int2 before;
  int2 all;
};
__device__ __forceinline__ int2 warp_scan(int2 inclusive) {
  const int32_t lane = threadIdx.x & 31;
  for (int32_t step = 1; step < 32; step *= 2) {
    const int32_t x = __shfl_up_sync(0xffffffffU, inclusive.x, step);
    const int32_t y = __shfl_up_sync(0xffffffffU, inclusive.y, step);
    if (lane >= step) inclusive = {inclusive.x + x, inclusive.y + y};
  }
  return inclusive;
}
__device__ __forceinline__ int2 from_lane(int2 value, int32_t lane) {
  return {__shfl_sync(0xffffffffU, value.x, lane), __shfl_sync(0xffffffffU, value.y, lane)};
}
__device__ __forceinline__ BlockScan block_scan(int2 mine, int2 (&warp_sum)[kPlanWarps]) {
  const auto lane = static_cast<int32_t>(threadIdx.x & 31);
  const auto warp = static_cast<int32_t>(threadIdx.x >> 5);
  const int2 inclusive = warp_scan(mine);
  if (lane == 31) warp_sum[warp] = inclusive;
  __syncthreads();
  const int32_t warps = static_cast<int32_t>(blockDim.x >> 5);
  const int2 sums = warp_scan(lane < warps ? warp_sum[lane] : int2{0, 0});
  const int2 before = warp > 0 ? from_lane(sums, warp - 1) : int2{0, 0};
  return {{before.x + inclusive.x - mine.x, before.y + inclusive.y - mine.y}, from_lane(sums, 31)};
}

// Where large blocks are planned, those of the experts with the largest come first: who multiplies
// takes them in order, so that the last ones are short.
constexpr int32_t kSizeShift = 22;
__device__ __forceinline__ uint32_t size_of(int32_t rows, int32_t blocks) {
  return static_cast<uint32_t>(rows) << kSizeShift | static_cast<uint32_t>(blocks);
}
// Blocks of the experts before one with so many rows in a block, in that order, of all sizes.
__device__ __forceinline__ int32_t blocks_before(const uint32_t* sizes, int32_t experts,
                                                 int32_t expert, uint32_t rows) {
  uint32_t before = 0;
#pragma unroll 4
  for (int32_t e = 0; e < experts; ++e) {
    const uint32_t size = sizes[e];
    const uint32_t other = size >> kSizeShift;
    if (other > rows || (other == rows && e < expert)) before += size;
  }
  return static_cast<int32_t>(before & ((1U << kSizeShift) - 1));
}

// One cluster of gridDim.x blocks. Shared: [warps][experts] counts, then [experts] each of the
// block's counts, of first places and of sizes. kOnce: no warp has more than 32 choices, which then
// stay in its registers. kSpreads: no cluster, each block makes the whole plan, and takes a chunk
// of all rows to their places; the first one tells the plan.
template <bool kOnce, bool kSpreads>
__global__ void __launch_bounds__(kPlanThreads)
    plan_kernel(const int32_t* experts, const float* weights, int64_t choices, int32_t expert_count,
                int32_t block_tokens, ExpertPlan plan, SpreadTask spread) {
  static_assert(kOnce || !kSpreads);
  extern __shared__ int32_t counts[];
  __shared__ int2 warp_sum[kPlanWarps];
  __shared__ int32_t place_of[kSpreads ? kPlanThreads : 1];
  const auto rank = static_cast<int64_t>(kSpreads ? 0 : blockIdx.x);
  const auto blocks = static_cast<int64_t>(kSpreads ? 1 : gridDim.x);
  const bool tells = !kSpreads || blockIdx.x == 0;
  const auto warps = static_cast<int32_t>(blockDim.x >> 5);
  const auto warp = static_cast<int32_t>(threadIdx.x >> 5);
  const auto lane = static_cast<int32_t>(threadIdx.x & 31);
  int32_t* const block_count = counts + warps * expert_count;
  int32_t* const begin_of = block_count + expert_count;
  auto* const sizes = reinterpret_cast<uint32_t*>(begin_of + expert_count);
  int32_t* const mine = counts + warp * expert_count;
  const auto expert = static_cast<int32_t>(threadIdx.x);

  // A warp's run of choices, a multiple of 32, and the warps of this block that have one.
  const int64_t threads = blocks * blockDim.x;
  const int64_t run = kOnce ? 32 : (choices + threads - 1) / threads * 32;
  const int64_t block_first = rank * warps * run;
  const int64_t first = block_first + warp * run;
  const int64_t last = min(first + run, choices);
  const int64_t used = (choices - block_first + run - 1) / run;
  const auto expert_of = [&](int64_t i) {
    const int32_t id = i < last ? load_written(experts + i) : -1;
    return id < expert_count ? id : -1;
  };
  for (int32_t e = lane; e < expert_count; e += 32) mine[e] = 0;
  __syncwarp();
  await_earlier();

  SpreadPiece piece;  // on its way meanwhile
  if constexpr (kSpreads) piece = load_piece(spread, blockIdx.x, threadIdx.x);
  int32_t id = expert_of(first + lane);
  float weight = 0.0F;
  uint32_t equal = 0;
  if constexpr (kOnce) {
    if (first + lane < last) weight = load_written(weights + first + lane);
    equal = __match_any_sync(0xffffffffU, id);
    if (id >= 0 && (equal & ((1U << lane) - 1)) == 0) mine[id] = __popc(equal);
  } else {
    // Counts of whole numbers: the order of additions does not show.
    int32_t other = id;
    for (int64_t i = first + lane; i < last; i += 32) {
      if (other >= 0) atomicAdd(mine + other, 1);
      other = expert_of(i + 32);
    }
  }
  __syncthreads();
  if (expert < expert_count) {
    int32_t before = 0;
#pragma unroll
    for (int32_t w = 0; w < kPlanWarps; ++w) {
      if (w >= warps || w >= used) continue;
      const int32_t count = counts[w * expert_count + expert];
      counts[w * expert_count + expert] = before;
      before += count;
    }
    block_count[expert] = before;
  }
  int32_t before = 0;  // of this expert, in blocks before this one
  int32_t count = 0;
  if (blocks > 1) {
    cluster_sync();
    if (expert < expert_count) {
#pragma unroll
      for (int64_t b = 0; b < kPlanCluster; ++b) {
        const int32_t there = read_remote(block_count + expert, static_cast<uint32_t>(b));
        before += b < rank ? there : 0;
        count += there;
      }
    }
  } else if (expert < expert_count) {
    count = block_count[expert];
  }
  const int32_t block_rows = rows_of_block(count, block_tokens);
  const int32_t own_blocks = (count + block_rows - 1) / block_rows;
  const BlockScan scan = block_scan({(count + 7) / 8 * 8, own_blocks}, warp_sum);
  if (expert < expert_count) {
    begin_of[expert] = scan.before.x + before;
    sizes[expert] = size_of(min(block_rows, count), own_blocks);
  }
  __syncthreads();

  for (int64_t start = first; start < last; start += 32) {
    const int64_t i = start + lane;
    const int32_t next = kOnce ? -1 : expert_of(i + 32);
    if constexpr (!kOnce) {
      weight = id >= 0 ? load_written(weights + i) : 0.0F;
      equal = __match_any_sync(0xffffffffU, id);
    }
    const uint32_t lower = equal & ((1U << lane) - 1);
    const int32_t place = id >= 0 ? begin_of[id] + mine[id] + __popc(lower) : -1;
    if constexpr (!kOnce) {
      __syncwarp();
      if (id >= 0 && lower == 0) mine[id] += __popc(equal);
      __syncwarp();
    }
    if (i < last && tells) plan.place[i] = place;
    if (id >= 0 && tells) plan.row_weight[place] = weight;
    if constexpr (kSpreads) {
      if (i < last) place_of[i] = place;
    }
    id = next;
  }
  // The list of token blocks.
  if (expert < expert_count && tells) {
    const int32_t first_block =
        block_tokens < kPairStripsBlock
            ? scan.before.y
            : blocks_before(sizes, expert_count, expert, sizes[expert] >> kSizeShift);
    for (int64_t n = rank; n * block_rows < count; n += blocks) {
      const auto row = static_cast<int32_t>(n * block_rows);
      plan.blocks[first_block + n] = {expert, scan.before.x + row, min(block_rows, count - row), 0};
    }
  }
  if (rank == 0 && threadIdx.x == 0 && tells) {
    *plan.totals = {scan.all.y, scan.all.x, 0};
  }
  if constexpr (kSpreads) {
    __syncthreads();
    for (int64_t item = threadIdx.x; item < spread.rows * kRowPieces; item += blockDim.x) {
      const SpreadPiece next = load_piece(spread, blockIdx.x, item + blockDim.x);
      spread_piece(spread, blockIdx.x, item, place_of, piece);
      piece = next;
    }
  } else if (blocks > 1) {
    cluster_sync();  // nobody leaves whose counts another one reads
  }
}

constexpr int32_t kSpreadThreads = 256;

// Of many choices; blockIdx.y is the chunk.
__global__ void __launch_bounds__(kSpreadThreads)
    spread_kernel(const __grid_constant__ SpreadTask task, const int32_t* place) {
  await_earlier();
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kSpreadThreads + threadIdx.x;
  spread_piece(task, blockIdx.y, item, place, load_piece(task, blockIdx.y, item));
}

// As quantise_tiles_kernel, in the order of the places.
__global__ void __launch_bounds__(kQuantiseThreads)
    quantise_sources_kernel(Rows<const Bf16> x, const int32_t* source, const PlanTotals* totals,
                            QuantisedRows to) {
  await_earlier();
  const int64_t place = static_cast<int64_t>(blockIdx.x) * kQuantiseRows + threadIdx.x / 32;
  const auto lane = static_cast<int32_t>(threadIdx.x & 7);
  const auto chunk = static_cast<int32_t>(blockIdx.y * kQuantiseChunks + (threadIdx.x & 31) / 8);
  const int32_t column = chunk * kChunk + lane * 16;
  if (place >= totals->places) return;
  const int64_t from = source[place];
  if (from < 0 || from >= x.rows) return;
  uint4 raw[2] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
  load_values(x, from, column, raw);
  const QuantisedPiece piece = quantise_piece(raw);
  if (chunk * kChunk < x.cols) store_piece(to, chunk, place, lane, piece);
}

// y[row] of 8 columns a thread. kTopK 0: any number of choices.
template <int kTopK>
__global__ void __launch_bounds__(kCombineThreads)
    combine_kernel(Rows<const Bf16> expert_rows, const int32_t* place, int32_t top_k,
                   Rows<const Bf16> shared, Rows<Bf16> y) {
  await_earlier();
  constexpr int kAtOnce = kTopK > 0 ? kTopK : 4;
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * kCombineThreads + threadIdx.x) * 8;
  if (column >= y.cols) return;
  const auto load = [&](const Rows<const Bf16>& rows, int64_t from) {
    return *reinterpret_cast<const uint4*>(rows.data + from * rows.stride + column);
  };
  const auto add = [](uint4 raw, float(&sum)[8]) {
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      sum[2 * i] += __uint_as_float(words[i] << 16);
      sum[2 * i + 1] += __uint_as_float(words[i] & 0xffff0000U);
    }
  };
  const int32_t count = kTopK > 0 ? kTopK : top_k;
  for (int64_t row = blockIdx.y; row < y.rows; row += gridDim.y) {
    float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    uint4 of_shared = {0, 0, 0, 0};
    if (shared.data != nullptr) of_shared = load(shared, row);
    for (int32_t first = 0; first < count; first += kAtOnce) {
      int32_t from[kAtOnce];
      uint4 raw[kAtOnce];
#pragma unroll
      for (int32_t k = 0; k < kAtOnce; ++k) {
        from[k] = first + k < count ? place[row * count + first + k] : -1;
      }
#pragma unroll
      for (int32_t k = 0; k < kAtOnce; ++k) {
        raw[k] = {0, 0, 0, 0};
        if (from[k] >= 0) raw[k] = load(expert_rows, from[k]);
      }
#pragma unroll
      for (int32_t k = 0; k < kAtOnce; ++k) {
        if (from[k] >= 0) add(raw[k], sum);
      }
    }
    if (shared.data != nullptr) add(of_shared, sum);
    __nv_bfloat162 pairs[4];
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) pairs[i] = __floats2bfloat162_rn(sum[2 * i], sum[2 * i + 1]);
    *reinterpret_cast<uint4*>(y.data + row * y.stride + column) =
        *reinterpret_cast<const uint4*>(pairs);
  }
}

void launch_quantise(Stream stream, const QuantiseTask& first, const QuantiseTask& second = {},
                     const CopyTask& copies = {}) {
  const auto blocks_of = [](int64_t count, int32_t of_block) {
    return static_cast<uint32_t>((count + of_block - 1) / of_block);
  };
  const uint32_t first_blocks = blocks_of(first.items, kQuantiseRows);
  const uint32_t blocks = first_blocks + blocks_of(second.items, kQuantiseRows);
  if (blocks == 0) return;
  const int64_t chunks = std::max(tiled_chunks(first.x.cols), tiled_chunks(second.x.cols));
  const uint32_t columns = blocks_of(chunks, kQuantiseChunks);
  const uint32_t more = blocks_of(copies.count, static_cast<int32_t>(columns));
  launch_kernel(quantise_tiles_kernel, {dim3(blocks + more, columns), kQuantiseThreads}, stream,
                first, second, static_cast<int32_t>(first_blocks), static_cast<int32_t>(blocks),
                copies);
}

// Of a plan by one block: a thread a choice, and one an expert.
int64_t plan_threads(int64_t choices, int64_t expert_count) {
  return (std::max(choices, expert_count) + 31) / 32 * 32;
}
size_t plan_shared_bytes(int64_t threads, int64_t expert_count) {
  return sizeof(int32_t) * static_cast<size_t>((threads / 32 + 3) * expert_count);
}

}  // namespace

void plan_experts(Stream stream, const int32_t* experts, const float* weights, int64_t choices,
                  int32_t expert_count, int32_t block_tokens, const ExpertPlan& plan) {
  CHECK(expert_count <= kExpertsMax);
  const int64_t blocks = choices <= kPlanThreads ? 1 : kPlanCluster;
  const int64_t threads = blocks > 1 ? kPlanThreads : plan_threads(choices, expert_count);
  launch_kernel(
      choices <= blocks * threads ? plan_kernel<true, false> : plan_kernel<false, false>,
      {blocks, threads, plan_shared_bytes(threads, expert_count), static_cast<uint32_t>(blocks)},
      stream, experts, weights, choices, expert_count, block_tokens, plan, SpreadTask{});
}

void plan_and_spread(Stream stream, const int32_t* experts, const float* weights, int64_t rows,
                     int32_t top_k, int32_t expert_count, int32_t block_tokens,
                     const ExpertPlan& plan, const QuantisedRows& from, const QuantisedRows& to,
                     int32_t chunks) {
  const int64_t choices = rows * top_k;
  if (choices <= kPlanThreads) {
    CHECK(expert_count <= kExpertsMax);
    const SpreadTask spread{.from = from, .rows = rows, .top_k = top_k, .to = to};
    const int64_t threads = plan_threads(choices, expert_count);
    launch_kernel(plan_kernel<true, true>,
                  {chunks, threads, plan_shared_bytes(threads, expert_count)}, stream, experts,
                  weights, choices, expert_count, block_tokens, plan, spread);
    return;
  }
  plan_experts(stream, experts, weights, choices, expert_count, block_tokens, plan);
  spread_rows(stream, from, rows, top_k, plan.place, to, chunks);
}

void spread_rows(Stream stream, const QuantisedRows& from, int64_t rows, int32_t top_k,
                 const int32_t* place, const QuantisedRows& to, int32_t chunks) {
  const SpreadTask spread{.from = from, .rows = rows, .top_k = top_k, .to = to};
  const auto blocks =
      static_cast<uint32_t>((rows * kRowPieces + kSpreadThreads - 1) / kSpreadThreads);
  launch_kernel(spread_kernel, {dim3(blocks, static_cast<uint32_t>(chunks)), kSpreadThreads},
                stream, spread, place);
}

void quantise_choices(Stream stream, Rows<const Bf16> x, const int32_t* place, int32_t top_k,
                      const QuantisedRows& choices, const QuantisedRows& rows) {
  launch_quantise(stream, {.x = x,
                           .items = x.rows,
                           .place = place,
                           .copies = top_k,
                           .listed = choices,
                           .numbered = rows});
}

void quantise_places(Stream stream, Rows<const Bf16> x, const int32_t* place, int64_t choices,
                     const QuantisedRows& to, Rows<const Bf16> rows, const QuantisedRows& rows_to) {
  launch_quantise(stream,
                  {.x = x, .items = choices, .place = place, .in_place = true, .listed = to},
                  {.x = rows, .items = rows.rows, .numbered = rows_to});
}

void quantise_sources(Stream stream, Rows<const Bf16> x, const int32_t* source,
                      const PlanTotals* totals, const QuantisedRows& to) {
  const dim3 grid(
      static_cast<uint32_t>((to.places + kQuantiseRows - 1) / kQuantiseRows),
      static_cast<uint32_t>((tiled_chunks(x.cols) + kQuantiseChunks - 1) / kQuantiseChunks));
  launch_kernel(quantise_sources_kernel, {grid, kQuantiseThreads}, stream, x, source, totals, to);
}

void quantise_rows(Stream stream, Rows<const Bf16> x, int64_t places, uint8_t* x8, float* x_scale) {
  launch_quantise(stream, {.x = x, .items = x.rows, .numbered = {x8, x_scale, places}});
}

void quantise_rows_and_copy(Stream stream, Rows<const Bf16> x, int64_t places, uint8_t* x8,
                            float* x_scale, const RowCopy* copies, int64_t count) {
  CHECK(x.rows > 0);
  launch_quantise(stream, {.x = x, .items = x.rows, .numbered = {x8, x_scale, places}}, {},
                  {copies, count});
}

void combine_experts(Stream stream, Rows<const Bf16> expert_rows, const int32_t* place,
                     int32_t top_k, Rows<const Bf16> shared, Rows<Bf16> y) {
  if (y.rows == 0) return;
  constexpr int64_t kColumns = kCombineThreads * 8;
  const dim3 grid(static_cast<uint32_t>((y.cols + kColumns - 1) / kColumns),
                  static_cast<uint32_t>(std::min<int64_t>(y.rows, kGridRowsMax)));
  launch_kernel(top_k == 6 ? combine_kernel<6> : combine_kernel<0>, {grid, kCombineThreads}, stream,
                expert_rows, place, top_k, shared, y);
}

}  // namespace galley::kernels::cuda
