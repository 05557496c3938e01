// The routed experts' products of up to 8 rows without a plan, or of a plan with 8 rows in all.
//
// Floor: the weights' bytes. One row's six experts are 71 MB of gate and up and 35 of down: 15.4
// and 7.7 us at 4.6 TB/s; a kernel that only reads takes 17.5 and 9.8, its launch included.
//
// Design. Work is cut in items of 16 slots over all of K, so that 132 blocks of threads get alike
// many: 13 to 20 of six to eight experts, one a warp. A warp loads its codes from memory straight
// into registers, two chunks ahead of those that it unpacks: a warp's part of a chunk is two pieces
// of 512 bytes in the order of wgmma's A. Nobody waits for anybody but the four warps of a product,
// whose items are neighbours and whose tokens are the same 8 columns: rows of x, which all experts
// share, or rows of inner, side by side for the two experts that a block may see. Columns that an
// item's expert has no row in are computed and not stored. Two chunks are multiplied at a time, so
// that one is unpacked while the other one is on the tensor cores. Sums have the order, and so the
// bits, of grouped_product.cuh.
//
// Choice c's result is row c, and each warp finds the experts among at most 64 choices by itself.
// Down quantises what it reads (18 chunks of a row by half a warp each) and asks for its first
// weights while gate and up still run: two launches where there were four.
//
// On one H200, us, of graphs of calls over changing weights; before (a plan, products in which four
// warpgroups shared 64 slots and added their chunks through shared memory, Q8 between them):
//
//   rows (experts)   1 (6)   2 (10.7)  3 (16.2)  4 (20.5)  6 (29.5)  8 (35)
//   before            51.9      64.8      89.3     105.8     143.6    166.0
//   now               34.7      56.6      77.6      96.9     134.8    160.2
//   bytes             23.1      41.0      62.1      78.8     113.4    134.5
//
// Products of 8 rows of a plan, alone; before, and in per cent of the bytes' floor:
//
//   experts    6             7             8
//   gate, up   30.4 -> 23.2  30.4 -> 25.7 (70)  36.9 -> 28.2 (73)
//   down       16.9 -> 12.2  20.5 -> 13.5 (67)  20.7 -> 14.6 (70)
//
// Of one to three experts most warps have nothing to do: gate and up take 15.5 to 18.2 us where it
// was 9.2 to 16.7.
//
// What limits it: for 7 experts gate and up take 25.4 us. Loads alone, nothing unpacked, are 23.7
// (16 items in the fullest block where 15.3 are the mean, and 2 us until the first codes are
// there); unpacking alone, always the same codes, is 20.9. A warp's chunk is 133 instructions.
//
// Tried:
// - one chunk at a time: 27 us, four chunks ahead or three or two; with 24 warps, too. The next
//   chunk unpacked while the last one is multiplied, in turns without end: 28.4.
// - mma.sync, so that no warp waits for three others: of e4m3 it is compiled to conversions, f16
//   products and additions in f32, another sum. Not run.
// - tables of a shift computed, two IMAD each, where all E4M3 are normal numbers: the same bits,
//   29.7 us; the branch for all others keeps two chunks apart.
// - lines of the next 4, 8, 12 or 16 chunks asked for into the L2: 29.1 to 32.9 us.
// - codes kept in the L1: 2 us slower. 24 warps with 80 registers: they spill, 30.7 us.
#pragma once

#include "kernels/cuda/expert_few_rows.h"
#include "kernels/cuda/global_loads.cuh"
#include "kernels/cuda/grouped_product.cuh"
#include "kernels/cuda/launch_product.cuh"
#include "kernels/cuda/sm90_memory.cuh"
#include "kernels/cuda/tile_codes.cuh"

namespace galley::kernels::cuda {

constexpr int32_t kItemSlots = 16;  // of a warp at a time

// kTokens: columns that the rows of a block of threads take, 8 or 16. kPlanned: groups are blocks
// of a plan, whose rows are at most 8 together.
template <ResultForm kResultIn, int kTokensIn, bool kPlannedIn = false>
struct ExpertRowsForm {
  static constexpr bool kPlanned = kPlannedIn;
  static constexpr ResultForm kResult = kResultIn;
  static constexpr int kTokens = kTokensIn;
  static constexpr int kWarpgroups = 5;
  static constexpr int kDepth = 2;  // chunks on their way to a warp
  static constexpr int kThreads = kWarpgroups * 128;
  static constexpr int kWarps = kWarpgroups * 4;
  static constexpr int kChunksMax = 40;
  static constexpr int kItemsMax = 320;
  static constexpr int kGroupsMax = kPlanned ? 8 : 2;
  static constexpr int kChoicesMax = 64;
  static constexpr int kXBytes = kTokens * kChunk;
  static constexpr int kScalesAt = kChunksMax * kXBytes;
  static constexpr int kTableAt = kScalesAt + kChunksMax * kTokens * 4;
  static constexpr int kGroupsAt = kTableAt + 128;
  static constexpr int kItemsAt = kGroupsAt + kGroupsMax * 64;
  static constexpr int kSharedBytes = kItemsAt + kItemsMax * 32 + 1024;
  static_assert(kTableAt % 256 == 0 && kDepth % 2 == 0);

  static bool takes(int64_t slots, int64_t chunks) {
    return chunks % 2 == 0 && chunks > kDepth && chunks <= kChunksMax &&
           slots <= kItemsMax * kItemSlots;
  }
};

// Rows of one expert.
struct __align__(16) ExpertRowsGroup {
  int32_t expert;
  int32_t column;  // of its first row among the tokens
  int32_t spare[2];
  int32_t row[8];  // of y, at the columns from there on; below 0: none
};

// 16 slots of a group.
struct __align__(16) ExpertRowsItem {
  const uint8_t* codes;  // its first chunk's
  int32_t shifts;        // from there to its shifts
  int32_t scale;         // of its slots' factors, the first one
  int32_t slot;
  int32_t group;
};

// Who computes what, as every warp finds it for itself. A group is an expert that was chosen.
template <class Form>
struct ExpertRowsPlan {
  int32_t id[2];       // of the choices lane and lane + 32
  uint32_t leader[2];  // choices that are their expert's first one

  // By all lanes of a warp; the number of groups.
  __device__ __forceinline__ int32_t make(const ExpertRowsArguments& args) {
    if constexpr (Form::kPlanned) return block_total(args, 8);
    const int32_t lane = threadIdx.x & 31;
    const int32_t choices = args.rows * args.top_k;
    const uint32_t before = (1U << lane) - 1U;
    id[0] = lane < choices ? load_written(args.chosen + lane) : -1;
    const uint32_t same = __match_any_sync(kAllLanes, id[0]);
    leader[0] = __ballot_sync(kAllLanes, id[0] >= 0 && (same & before) == 0);
    id[1] = -1;
    leader[1] = 0;
    if (choices > 32) {
      if (lane + 32 < choices) id[1] = load_written(args.chosen + lane + 32);
      const uint32_t same_high = __match_any_sync(kAllLanes, id[1]);
      bool first = id[1] >= 0 && (same_high & before) == 0;
#pragma unroll 8
      for (int32_t i = 0; i < 32; ++i) {
        const int32_t other = __shfl_sync(kAllLanes, id[0], i);
        first = first && other != id[1];
      }
      leader[1] = __ballot_sync(kAllLanes, first);
    }
    return __popc(leader[0]) + __popc(leader[1]);
  }
  // By all lanes of a warp.
  __device__ __forceinline__ int32_t expert(const ExpertRowsArguments& args, int32_t group) const {
    if constexpr (Form::kPlanned) return block_at(args, group, 8).expert;
    const int32_t lane = threadIdx.x & 31;
    const uint32_t before = (1U << lane) - 1U;
    const int32_t low = __popc(leader[0]);
    const int32_t half = group < low ? 0 : 1;
    const uint32_t mine = half == 0 ? leader[0] : leader[1];
    const bool is = (mine >> lane & 1U) != 0 && __popc(mine & before) == group - half * low;
    const int32_t at = __ffs(static_cast<int32_t>(__ballot_sync(kAllLanes, is))) - 1;
    return __shfl_sync(kAllLanes, half == 0 ? id[0] : id[1], at);
  }
  // Rows of groups first..last, by all lanes of one warp.
  __device__ __forceinline__ void list(const ExpertRowsArguments& args, int32_t first, int32_t last,
                                       ExpertRowsGroup* groups) const {
    const int32_t lane = threadIdx.x & 31;
    int32_t column = 0;
    for (int32_t at = first; at <= last; ++at) {
      ExpertRowsGroup& group = groups[at - first];
      const int32_t e = expert(args, at);
      int32_t row = -1;
      int32_t columns = 0;
      if constexpr (Form::kPlanned) {
        const TokenBlock block = block_at(args, at, 8);
        if (lane < block.rows) row = block.row + lane;
        columns = block.rows;
      } else {
        const uint64_t same = __ballot_sync(kAllLanes, id[0] == e) |
                              static_cast<uint64_t>(__ballot_sync(kAllLanes, id[1] == e)) << 32;
        if (lane < args.rows) {
          const uint32_t bits =
              static_cast<uint32_t>(same >> (lane * args.top_k)) & ((1U << args.top_k) - 1U);
          if (bits != 0) row = lane * args.top_k + __ffs(static_cast<int32_t>(bits)) - 1;
        }
        // Gate and up of all experts read the same rows.
        if (args.values != nullptr) columns = Form::kTokens == 8 ? args.rows : 8;
      }
      if (lane < 8) group.row[lane] = row;
      if (lane == 0) {
        group.expert = e;
        group.column = column;
      }
      column += columns;
    }
  }
};

__device__ __forceinline__ ExpertRowsItem expert_rows_item(const ExpertRowsArguments& args,
                                                           int32_t expert, int32_t part,
                                                           int32_t group) {
  const uint8_t* strip = args.weights + expert * args.expert_bytes +
                         static_cast<int64_t>(part / 16) * args.chunks * fp4_chunk_bytes() +
                         fp4_codes_at(part / 4 % 4);
  return {strip + part % 4 * 512, kFp4Codes - part % 4 * (512 - 32),
          expert * args.slots + part * kItemSlots, part * kItemSlots, group};
}

// What is read becomes columns in the order of wgmma's B: rows of x (all columns of one group, as
// it were, without a plan)...
template <class Form>
__device__ __forceinline__ void stage_row(const ExpertRowsArguments& args, int32_t at, int64_t row,
                                          int32_t column, uint32_t shared) {
  const int32_t piece = at & 7;
  const int32_t chunk = at >> 3;
  const int64_t from = static_cast<int64_t>(chunk) * args.x_rows + row;
  const int32_t to = piece ^ ((static_cast<int32_t>(row) ^ column) & 7);
  store_shared(shared + chunk * Form::kXBytes + column * kChunk + to * 16,
               *reinterpret_cast<const uint4*>(args.x + from * kChunk + piece * 16));
  if (piece == 0) {
    store_shared(shared + Form::kScalesAt + (chunk * Form::kTokens + column) * 4,
                 __float_as_uint(args.x_scale[from]));
  }
}
template <class Form>
__device__ __forceinline__ void stage_rows(const ExpertRowsArguments& args, int32_t groups,
                                           const ExpertRowsGroup* group, uint32_t shared) {
  for (int32_t i = threadIdx.x; i < args.chunks * 64; i += Form::kThreads) {
    if constexpr (Form::kPlanned) {
      for (int32_t at = 0; at < groups; ++at) {
        const int32_t row = group[at].row[i & 7];
        if (row >= 0) stage_row<Form>(args, i >> 3, row, group[at].column + (i & 7), shared);
      }
    } else {
      if ((i & 7) < args.rows) stage_row<Form>(args, i >> 3, i & 7, i & 7, shared);
    }
  }
}

// ...or the groups' rows of values, in Q8: half a warp has 128 of them.
template <class Form>
__device__ __forceinline__ void stage_values(const ExpertRowsArguments& args, int32_t groups,
                                             const ExpertRowsGroup* group, uint32_t shared) {
  const int32_t lane = threadIdx.x & 31;
  const int32_t pairs = (args.chunks + 1) / 2 * 8;  // of chunks, with each row of a group
  for (int32_t at = 0; at < groups; ++at) {
    const ExpertRowsGroup& from = group[at];
    for (int32_t pair = threadIdx.x >> 5; pair < pairs; pair += Form::kWarps) {
      const int32_t row = from.row[pair & 7];
      if (row < 0) continue;
      const int32_t chunk = (pair >> 3) * 2 + (lane >> 4);
      const int32_t column = chunk * kChunk + (lane & 15) * 8;
      uint4 raw = {0, 0, 0, 0};
      if (column < args.columns) {
        raw = *reinterpret_cast<const uint4*>(args.values + row * args.columns + column);
      }
      const TileCodes tile = tile_codes(raw);
      if (chunk >= args.chunks) continue;
      const int32_t to = from.column + (pair & 7);
      const uint32_t there = shared + chunk * Form::kXBytes + to * kChunk +
                             (((lane & 15) / 2 ^ to) & 7) * 16 + (lane & 1) * 8;
      store_shared(there, tile.codes);
      if ((lane & 15) == 0) {
        store_shared(shared + Form::kScalesAt + (chunk * Form::kTokens + to) * 4,
                     __float_as_uint(tile.scale));
      }
    }
  }
}

// A warp's 16 slots x its group's rows, of all columns.
template <class Form>
__device__ __forceinline__ void store_item(const ExpertRowsArguments& args,
                                           const ExpertRowsGroup& group, int32_t slot,
                                           float2 row_scale,
                                           const float (&sum)[Form::kTokens / 2]) {
  const int32_t lane = threadIdx.x & 31;
  const int32_t g = lane >> 2;
#pragma unroll
  for (int32_t part = 0; part < Form::kTokens / 8; ++part) {
    const int32_t at = part * 8 + 2 * (lane & 3) - group.column;
    const int32_t low_row = at >= 0 && at < 8 ? group.row[at] : -1;
    const int32_t high_row = at >= -1 && at < 7 ? group.row[at + 1] : -1;
    const float* from = sum + 4 * part;
    if constexpr (Form::kResult == ResultForm::kSwiGlu) {
      // Neighbours exchange, so that each lane has two channels of one row.
      const bool odd = (g & 1) != 0;
      const int32_t channel = (slot / 2 + g) & ~1;
      const int32_t row = odd ? high_row : low_row;
      float2 weight = {1.0F, 1.0F};
      if (args.row_weight != nullptr) {
        if (low_row >= 0) weight.x = load_written(args.row_weight + low_row);
        if (high_row >= 0) weight.y = load_written(args.row_weight + high_row);
      }
      const float low =
          swiglu_of(from[0] * row_scale.x, from[2] * row_scale.y, args.limit, weight.x);
      const float high =
          swiglu_of(from[1] * row_scale.x, from[3] * row_scale.y, args.limit, weight.y);
      const float other = __shfl_xor_sync(kAllLanes, odd ? low : high, 4);
      const __nv_bfloat162 pair =
          odd ? __floats2bfloat162_rn(other, high) : __floats2bfloat162_rn(low, other);
      if (channel < args.outputs && row >= 0) {
        *reinterpret_cast<__nv_bfloat162*>(static_cast<__nv_bfloat16*>(args.y) +
                                           row * args.y_stride + channel) = pair;
      }
    } else {
      const int32_t output = slot + 2 * g;
      if (output >= args.outputs) continue;
      auto* y = static_cast<__nv_bfloat16*>(args.y) + output;
      if (low_row >= 0) {
        *reinterpret_cast<__nv_bfloat162*>(y + low_row * args.y_stride) =
            __floats2bfloat162_rn(from[0] * row_scale.x, from[2] * row_scale.y);
      }
      if (high_row >= 0) {
        *reinterpret_cast<__nv_bfloat162*>(y + high_row * args.y_stride) =
            __floats2bfloat162_rn(from[1] * row_scale.x, from[3] * row_scale.y);
      }
    }
  }
}

template <class Form>
__global__ void __launch_bounds__(Form::kThreads, 1)
    expert_few_rows_kernel(const __grid_constant__ ExpertRowsArguments args) {
  extern __shared__ uint8_t shared_memory[];
  const uint32_t begin = shared_address(shared_memory);
  const uint32_t shared = (begin + 1023) & ~1023U;
  uint8_t* base = shared_memory + (shared - begin);
  auto* groups = reinterpret_cast<ExpertRowsGroup*>(base + Form::kGroupsAt);
  auto* list = reinterpret_cast<ExpertRowsItem*>(base + Form::kItemsAt);
  fill_shift_table(base + Form::kTableAt);
  // Who multiplies what may be older than the launch before this one.
  const bool early = Form::kPlanned ? args.planned_early : args.values != nullptr;
  if (!early) await_earlier();

  const auto warp = static_cast<int32_t>(warp_uniform(threadIdx.x >> 5));
  const int32_t lane = threadIdx.x & 31;
  ExpertRowsPlan<Form> plan;
  const int32_t per = args.slots / kItemSlots;
  const int64_t all =
      static_cast<int64_t>(warp_uniform(static_cast<uint32_t>(plan.make(args)))) * per;
  const auto first = static_cast<int32_t>(all * blockIdx.x / gridDim.x);
  const int32_t count = static_cast<int32_t>(all * (blockIdx.x + 1) / gridDim.x) - first;
  const int32_t first_group = first / per;
  const int32_t rounds = (count + Form::kWarps - 1) / Form::kWarps;
  const int32_t width = rounds == 0 ? 0 : (count + rounds - 1) / rounds;

  // Codes on their way, two chunks at a time.
  StoredCodes ring[Form::kDepth];
#pragma unroll
  for (int32_t i = 0; i < Form::kDepth; ++i) ring[i] = {{0, 0, 0, 0}, {0, 0, 0, 0}, 0};
  const int32_t lane_codes = lane * 16;
  const int32_t lane_shifts = (lane >> 2) * 4;
  const uint8_t* codes = nullptr;
  int32_t shifts = 0;
  int32_t ahead = args.chunks;  // of the item, not asked for
  int32_t next = warp;
  const auto ask = [&](StoredCodes& one, StoredCodes& other) {
    constexpr int64_t kNext = 4 * (kFp4Codes + kFp4Shifts);
    if (codes != nullptr) {
      one.first = load_once(codes);
      one.second = load_once(codes + 2048);
      other.first = load_once(codes + kNext);
      other.second = load_once(codes + kNext + 2048);
      const uint8_t* at = codes + shifts;
      one.shift = load_constant_word(at);
      other.shift = load_constant_word(at + kNext);
      codes += 2 * kNext;
    }
    ahead -= 2;
    if (ahead == 0) {
      ahead = args.chunks;
      next += width;
      codes = nullptr;
      if (warp < width && next < count) {
        codes = list[next].codes + lane_codes;
        shifts = list[next].shifts + lane_shifts - lane_codes;
      }
    }
  };
  if (warp < width) {  // and so below the count
    const int32_t at = first + warp;
    const ExpertRowsItem item = expert_rows_item(args, plan.expert(args, at / per), at % per, 0);
    codes = item.codes + lane_codes;
    shifts = item.shifts + lane_shifts - lane_codes;
  }
#pragma unroll
  for (int32_t i = 0; i < Form::kDepth; i += 2) ask(ring[i], ring[i + 1]);  // less than an item
  if (early) await_earlier();
  if (count == 0) return;

  const int32_t last_group = (first + count - 1) / per;
  if (warp == 0) plan.list(args, first_group, last_group, groups);
  __syncthreads();
  for (int32_t i = threadIdx.x; i < count; i += Form::kThreads) {
    const int32_t group = (first + i) / per - first_group;
    list[i] = expert_rows_item(args, groups[group].expert, (first + i) % per, group);
  }
  if (args.values == nullptr) {
    stage_rows<Form>(args, last_group - first_group + 1, groups, shared);
  } else {
    stage_values<Form>(args, last_group - first_group + 1, groups, shared);
  }
  fence_async_proxy();
  __syncthreads();
  if (warp / 4 * 4 >= width) return;

  const uint32_t table = shared + Form::kTableAt;
  const uint32_t scales_begin = shared + Form::kScalesAt + (lane & 3) * 8;
  constexpr int kSums = Form::kTokens / 2;
  float sum[kSums];
#pragma unroll
  for (float& value : sum) value = 0.0F;
  uint32_t tokens = shared;
  uint32_t scales = scales_begin;
  int32_t left = args.chunks;
  int32_t index = warp;
  for (int32_t step = rounds * args.chunks; step > 0; step -= Form::kDepth) {
#pragma unroll
    for (int32_t i = 0; i < Form::kDepth; i += 2) {
      if (i > 0 && step <= i) break;
      float partial[2][kSums];
      OperandA a[2];
#pragma unroll
      for (int32_t k = 0; k < 2; ++k) {
        unpack_fp4(ring[i + k], table, a[k]);
        if (k == 1) ask(ring[i], ring[i + 1]);
          // All of A before the first product: the compiler would fence each of them.
#pragma unroll
        for (int32_t j = 0; j < 16; ++j) asm volatile("" : "+r"(a[k][j / 4][j % 4]));
        const uint64_t b = swizzled_descriptor(warp_uniform(tokens + k * Form::kXBytes));
        wgmma_fence();
#pragma unroll
        for (int32_t j = 0; j < 4; ++j) {
          Wgmma<Form::kTokens, true>::run(partial[k], a[k][j], advance_descriptor(b, 32 * j),
                                          j > 0);
        }
        wgmma_commit();
      }
#pragma unroll
      for (int32_t k = 0; k < 2; ++k) {
        float2 scale[Form::kTokens / 8];
#pragma unroll
        for (int32_t part = 0; part < Form::kTokens / 8; ++part) {
          scale[part] = load_shared_pair(scales + (k * Form::kTokens + part * 8) * 4);
        }
        if (k == 0) {
          wgmma_wait<1>();
        } else {
          wgmma_wait<0>();
        }
#pragma unroll
        for (int32_t part = 0; part < Form::kTokens / 8; ++part) {
          const float* from = partial[k] + 4 * part;
          float* to = sum + 4 * part;
          to[0] = fmaf(from[0], scale[part].x, to[0]);
          to[1] = fmaf(from[1], scale[part].y, to[1]);
          to[2] = fmaf(from[2], scale[part].x, to[2]);
          to[3] = fmaf(from[3], scale[part].y, to[3]);
        }
      }
      tokens += 2 * Form::kXBytes;
      scales += 2 * Form::kTokens * 4;
      left -= 2;
      if (left == 0) {
        left = args.chunks;
        tokens = shared;
        scales = scales_begin;
        if (warp < width && index < count) {
          const ExpertRowsItem& item = list[index];
          const float* row_scale = args.row_scale + item.scale + (lane >> 2);
          store_item<Form>(args, groups[item.group], item.slot,
                           {load_constant(row_scale), load_constant(row_scale + 8)}, sum);
        }
        index += width;
#pragma unroll
        for (float& value : sum) value = 0.0F;
      }
    }
  }
}

// `groups`: the most that there may be. As many blocks of threads: none has items of more than two.
template <class Form>
void launch_few_rows(Stream stream, int32_t groups, const ExpertRowsArguments& args) {
  const auto kernel = expert_few_rows_kernel<Form>;
  static const LaunchLimits limits =
      LaunchLimits::of(kernel, Form::kThreads, Form::kSharedBytes, 1);
  const int32_t blocks = limits.blocks > groups ? limits.blocks : groups;
  launch_kernel(kernel, {blocks, Form::kThreads, size_t{Form::kSharedBytes}}, stream, args);
}

}  // namespace galley::kernels::cuda
