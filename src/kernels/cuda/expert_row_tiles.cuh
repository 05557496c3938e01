// The routed experts' product where an expert has many rows: fp8 activations times fp4 weights, up
// to 256 rows of one expert by 128 slots.
//
// Floor: as expert_many_rows.cuh has it, 2 rows N K over the tensor cores.
//
// Design. Rows are A of wgmma and weights B, so that a thread needs two scales of tokens a unit of
// 64 rows, not 64 (expert_many_rows.cuh reads as many bytes of scales as of operands). Weights are
// unpacked into shared memory, once for all rows, by warps of their own: slices of 16 slots, seven
// warps in turns. Two warpgroups multiply, two units each: 128 registers of sums and 64 of a
// product. A warp copies codes, and two chunks behind them rows; tiles are drawn (drawn_tiles.cuh).
// A unit costs the same for 64 rows as for one, so an expert's blocks are whole units but for the
// last; 64 rows or fewer are halved by slots. Tables of magnitudes are arithmetic, two factors of a
// shift; blocks of zeros and shifts that make subnormal numbers take the tables in shared memory.
// A row gets whole sectors straight from registers; scales of slots and factors of rows came with
// the tile.
//
// On one H200, TFLOP/s, with experts of up to 128 rows by expert_many_rows.cuh, and that alone
// (`before`), each the better of two turns in one run; gate and up | down:
//
//                                                      before          before
//   384 experts, 256 rows each                 1,067   935  |   979   882
//   384 experts, drawn uniformly                 826   832  |   786   786
//   384 experts, skewed as 1 / rank              839   800  |   794   774
//   52 experts, even                             921   846  |   957   836
//   52 experts, skewed                         1,027   916  |   961   891
//   7 experts, even                            1,090   966  |   901   853
//   7 experts of 1,536 rows, drawn uniformly   1,008   905  |   960   904
//
// 384 rows of 7 experts 147 and 83 us instead of 150 and 78, 256 of 52 832 and 418 instead of 808
// and 415, 128 of 52 528 and 265 instead of 460 and 231: units that are not full, so fewer rows do
// not come here.
//
// Alone, of fewer choices, gate and up are 2 to 8 % faster from 200 rows an expert on (but for 257
// to 352), down is not: 220 rows of 7 experts, drawn, 84 us instead of 90, 52 instead of 49; 658
// 235 instead of 255, 128 instead of 131.
//
// What limits it (ncu, 256 rows, gate and up): a chunk takes 1,640 cycles, its products 1,024.
// Shared memory is read for 850 of them and written for 470, operands 700 and 256, and both seem to
// count: dense_tiles.cuh has 1,170 of both and takes 1,180. With one or two units a chunk still
// takes 1,370: who unpacks has 155 instructions for a slice, at seven cycles each.
//
// Tried, on one H200:
// - one warpgroup that unpacks, each warp a quarter of every chunk: 1,775 cycles with 256 rows,
//   1,480 with 128. Seven warps, but each chunk's codes asked for when they are needed, and codes
//   copied just before the same chunk's rows: 1,730.
// - tables from shared memory: 5 % slower with 256 rows, 14 % with 128.
// - up to 128 rows with 11 warps that unpack: 1,250 cycles for two units.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/drawn_tiles.cuh"
#include "kernels/cuda/grouped_product.cuh"
#include "kernels/cuda/ring_place.cuh"
#include "kernels/cuda/sm90_memory.cuh"

namespace galley::kernels::cuda {

// What RingPlace and make_ring want to know of a ring.
template <int kStageBytesIn, int kStagesIn>
struct RingForm {
  static constexpr int kStageBytes = kStageBytesIn;
  static constexpr int kStages = kStagesIn;
};

template <ResultForm kResultIn>
struct RowTilesForm {
  static_assert(kResultIn != ResultForm::kF32);
  static constexpr ResultForm kResult = kResultIn;
  static constexpr int kTokens = kRowTilesUnit * kRowTilesUnits;
  static constexpr int kSlots = 128;
  static constexpr int kMultipliers = 8;  // warps
  static constexpr int kUnpackers = 7;
  static constexpr int kThreads = (kMultipliers + kUnpackers + 1) * 32;  // the last one copies
  static constexpr int kMultiplierRegisters = 208;
  static constexpr int kOtherRegisters = 48;
  static constexpr int kSlices = kSlots / 16;  // of a chunk, what an unpacker does at a time
  static constexpr int kSliceBytes = 16 * kChunk;
  static constexpr int kStripBytes = kFp4Codes + kFp4Shifts;
  static constexpr int kUnitBytes = kRowTilesUnit * kChunk;
  // Rings of rows with their scales, of codes, and of unpacked codes.
  static constexpr int kScalesAt = kTokens * kChunk;
  using Rows = RingForm<kScalesAt + kTokens * 4, 4>;
  using Codes = RingForm<kSlots / kStripSlots * kStripBytes, 4>;
  using Unpacked = RingForm<kSlots * kChunk, 3>;
  static constexpr int kUnpackedAt = Rows::kStages * Rows::kStageBytes;
  static constexpr int kCodesAt = kUnpackedAt + Unpacked::kStages * Unpacked::kStageBytes;
  static constexpr int kTableAt = kCodesAt + Codes::kStages * Codes::kStageBytes;
  // Barriers, 8 bytes for each stage.
  static constexpr int kRowsFull = kTableAt + 128;
  static constexpr int kRowsEmpty = kRowsFull + 64;
  static constexpr int kCodesFull = kRowsEmpty + 64;
  static constexpr int kCodesEmpty = kCodesFull + 64;
  static constexpr int kUnpackedFull = kCodesEmpty + 64;
  static constexpr int kUnpackedEmpty = kUnpackedFull + 64;
  static constexpr int kGoesOn =
      kUnpackedEmpty + 64;  // a word for each stage of codes: not the end
  static constexpr int kToldAt = kGoesOn + 64;
  // Of a tile, by turns as tiles are told: scales of its slots, and factors of its rows.
  static constexpr int kTileAt = kToldAt + kToldBytes;
  static constexpr int kFactorsAt = kSlots * 4;
  static constexpr int kTileBytes = kFactorsAt + kTokens * 4;
  static constexpr int kSharedBytes = kTileAt + kToldTiles * kTileBytes + 1024;
  static_assert(kTableAt % 256 == 0 && kSharedBytes <= 227 * 1024);
};

// Copies the rows of the tiles that were told.
template <class Form>
struct RowsCopier {
  uint32_t base;
  RingPlace place;
  uint32_t turn = 0;
  int32_t chunk = 0;
  const uint8_t* x = nullptr;
  const float* x_scale = nullptr;
  uint32_t rows = 0;

  __device__ __forceinline__ void step(const ProductArguments& args) {
    const uint32_t full = base + Form::kRowsFull + place.barrier;
    barrier_wait_asleep(base + Form::kRowsEmpty + place.barrier, place.parity ^ 1);
    if (chunk == 0) {
      const DrawnTile tile = told_tile(base + Form::kToldAt, turn);
      const uint32_t of_tile = base + Form::kTileAt + turn % kToldTiles * Form::kTileBytes;
      ++turn;
      rows = (tile.block.rows + 7) & ~7;
      x = args.x + static_cast<int64_t>(tile.block.row) * kChunk;
      x_scale = args.x_scale + tile.block.row;
      const bool weighs = Form::kResult == ResultForm::kSwiGlu && args.row_weight != nullptr;
      barrier_expect(full, rows * (kChunk + 4) + Form::kSlots * 4 + (weighs ? rows * 4 : 0));
      bulk_load(of_tile,
                args.row_scale + static_cast<int64_t>(tile.block.expert) * args.slots +
                    tile.tile * Form::kSlots,
                Form::kSlots * 4, full);
      if (weighs) {
        bulk_load(of_tile + Form::kFactorsAt, args.row_weight + tile.block.row, rows * 4, full);
      }
    } else {
      barrier_expect(full, rows * (kChunk + 4));
    }
    bulk_load(base + place.bytes, x, rows * kChunk, full);
    bulk_load(base + place.bytes + Form::kScalesAt, x_scale, rows * 4, full);
    x += args.x_rows * kChunk;
    x_scale += args.x_rows;
    chunk = chunk + 1 == args.chunks ? 0 : chunk + 1;
    place.template advance<typename Form::Rows>();
  }
};

// The thread that draws tiles and copies what they read.
template <class Form>
__device__ __forceinline__ void copy_row_tiles(const ProductArguments& args, uint32_t base) {
  constexpr int32_t kAhead = 2;  // chunks that codes are ahead of rows, as their unpacking is
  TileDraw<kRowTilesUnit> draw(args.slots / Form::kSlots, 0,
                               args.all_blocks ? args.totals->blocks : args.totals->row_blocks);
  RowsCopier<Form> rows{base};
  RingPlace place;
  uint32_t turn = 0;
  int32_t ahead = 0;
  for (DrawnTile tile; draw.next(args, tile); ++turn) {
    tell_tile(base + Form::kToldAt, turn, tile);
    const int32_t strip = tile.tile * (Form::kSlots / kStripSlots);
    const uint8_t* weights =
        args.weights + tile.block.expert * args.expert_bytes +
        (static_cast<int64_t>(strip / 4) * args.chunks * 4 + strip % 4) * Form::kStripBytes;
#pragma unroll 1
    for (int32_t chunk = 0; chunk < args.chunks; ++chunk) {
      const uint32_t full = base + Form::kCodesFull + place.barrier;
      barrier_wait_asleep(base + Form::kCodesEmpty + place.barrier, place.parity ^ 1);
      store_shared(base + Form::kGoesOn + place.barrier, 1U);
      barrier_expect(full, Form::Codes::kStageBytes);
      bulk_load(base + Form::kCodesAt + place.bytes, weights, Form::Codes::kStageBytes, full);
      weights += 4 * Form::kStripBytes;
      place.template advance<typename Form::Codes>();
      if (++ahead > kAhead) {
        rows.step(args);
        --ahead;
      }
    }
  }
  for (; ahead > 0; --ahead) rows.step(args);
  // An end for who unpacks, one for who multiplies.
  barrier_wait_asleep(base + Form::kCodesEmpty + place.barrier, place.parity ^ 1);
  store_shared(base + Form::kGoesOn + place.barrier, 0U);
  barrier_arrive(base + Form::kCodesFull + place.barrier);
  barrier_wait_asleep(base + Form::kRowsEmpty + rows.place.barrier, rows.place.parity ^ 1);
  tell_tile(base + Form::kToldAt, turn, {});
  barrier_arrive(base + Form::kRowsFull + rows.place.barrier);
}

// A lane's codes of 16 slots, to `to` and its neighbours: row g of 16, K 4 t, unswizzled.
template <bool kTables>
__device__ __forceinline__ void unpack_slice(const StoredCodes& codes, uint32_t table,
                                             uint32_t to) {
  const uint32_t words[8] = {codes.first.x,  codes.first.y,  codes.first.z,  codes.first.w,
                             codes.second.x, codes.second.y, codes.second.z, codes.second.w};
  // As unpack_fp4 has them.
  const uint32_t even = (codes.shift << 3) & 0x78787878;
  const uint32_t odd = (codes.shift >> 1) & 0x78787878;
#pragma unroll
  for (uint32_t j = 0; j < 4; ++j) {
#pragma unroll
    for (uint32_t upper = 0; upper < 2; ++upper) {
      const uint32_t byte = 2 * upper + j / 2;
      const uint32_t shifts = j % 2 == 0 ? even : odd;
      uint2 magnitudes;
      if constexpr (kTables) {
        magnitudes = load_table(permute_bytes(shifts, table, 0x7650 | byte));
      } else {
        // An octave is 8 in E4M3; of magnitudes 0, 0.5, 1, 1.5 and 2, 3, 4, 6.
        const uint32_t octaves = permute_bytes(shifts, 0, 0x4440 | byte);
        magnitudes.x = octaves * 0x01010100U + (0x3c383000U - kShiftBias * 0x08080800U);
        magnitudes.y = octaves * 0x01010101U + (0x4c484440U - kShiftBias * 0x08080808U);
      }
      const uint32_t word = words[2 * j + upper];
      const uint32_t chosen = word & 0x77777777;
      store_shared((to ^ (2 * j << 4)) + upper * 8 * kChunk,
                   permute_bytes(magnitudes.x, magnitudes.y, chosen) | ((word << 4) & 0x80808080));
      store_shared((to ^ ((2 * j + 1) << 4)) + upper * 8 * kChunk,
                   permute_bytes(magnitudes.x, magnitudes.y, chosen >> 16) | (word & 0x80808080));
    }
  }
}

// Whether every nibble is 3 to 14: no magnitude but 0 is below E4M3's normal numbers.
__device__ __forceinline__ bool all_normal(uint32_t shifts) {
  const uint32_t next = shifts + 0x11111111;
  return ((next | next >> 1) & 0x44444444) == 0x44444444;
}

template <class Form>
struct UnpackPlace {
  RingPlace codes;
  RingPlace out;
  uint32_t slice;

  __device__ __forceinline__ void advance() {
    static_assert(Form::kUnpackers < Form::kSlices);
    slice += Form::kUnpackers;
    if (slice < Form::kSlices) return;
    slice -= Form::kSlices;
    codes.template advance<typename Form::Codes>();
    out.template advance<typename Form::Unpacked>();
  }
};

template <class Form>
__device__ __forceinline__ void unpack_row_tiles(uint32_t base, uint32_t unpacker) {
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t g = lane >> 2;
  // 16-byte pieces are exchanged by row mod 8.
  const uint32_t to = base + Form::kUnpackedAt + g * kChunk + (lane & 3) * 4 + g * 16;
  const uint32_t from = base + Form::kCodesAt + lane * 16;
  const uint32_t shifts = base + Form::kCodesAt + kFp4Codes + g * 4;
  UnpackPlace<Form> at{{}, {}, unpacker};
  StoredCodes codes;
  bool goes_on;
  const auto load = [&] {
    barrier_wait(base + Form::kCodesFull + at.codes.barrier, at.codes.parity);
    goes_on = load_shared_word(base + Form::kGoesOn + at.codes.barrier) != 0;
    const uint32_t strip = at.codes.bytes + at.slice / 4 * Form::kStripBytes;
    const uint32_t warp = at.slice % 4;  // whose codes they would be, as operand A
    codes.shift = load_shared_word(shifts + strip + warp * 32);
    codes.first = load_shared_16(from + strip + warp * 512);
    codes.second = load_shared_16(from + strip + warp * 512 + kFp4Codes / 2);
  };
  load();
#pragma unroll 1
  while (goes_on) {
    __syncwarp();
    if (lane == 0) {
      const uint32_t loaded = codes.shift | codes.first.x | codes.second.x;
      barrier_arrive(behind_loads(base + Form::kCodesEmpty + at.codes.barrier, loaded));
    }
    const UnpackPlace<Form> here = at;
    const StoredCodes now = codes;
    at.advance();
    load();  // on its way meanwhile
    const bool normal = __all_sync(0xffffffffU, all_normal(now.shift)) != 0;
    barrier_wait(base + Form::kUnpackedEmpty + here.out.barrier, here.out.parity ^ 1);
    const uint32_t slice = to + here.out.bytes + here.slice * Form::kSliceBytes;
    if (normal) {
      unpack_slice<false>(now, base + Form::kTableAt, slice);
    } else {
      unpack_slice<true>(now, base + Form::kTableAt, slice);
    }
    fence_async_proxy();
    __syncwarp();
    if (lane == 0) barrier_arrive(base + Form::kUnpackedFull + here.out.barrier);
  }
}

// Who multiplies.
template <class Form>
struct RowTilesView {
  uint32_t base;
  uint32_t group;  // warpgroup
  RingPlace rows;
  RingPlace weights;

  __device__ __forceinline__ void wait() const {
    barrier_wait(base + Form::kRowsFull + rows.barrier, rows.parity);
    barrier_wait(base + Form::kUnpackedFull + weights.barrier, weights.parity);
  }
  __device__ __forceinline__ void release(uint32_t loaded) const {
    __syncwarp();
    if (!elected()) return;
    barrier_arrive(behind_loads(base + Form::kRowsEmpty + rows.barrier, loaded));
    barrier_arrive(base + Form::kUnpackedEmpty + weights.barrier);
  }
  __device__ __forceinline__ void advance() {
    rows.template advance<typename Form::Rows>();
    weights.template advance<typename Form::Unpacked>();
  }
};

// Sums of 64 rows by kSlots slots: element 4 j + {0, 1} is row g, slots 8 j + 2 t + {0, 1};
// 4 j + {2, 3} the same slots of row g + 8. Row `first` of the block and 8 more are this thread's.
template <class Form, int kSlots>
__device__ __forceinline__ void store_unit(const ProductArguments& args, uint32_t of_tile,
                                           const TokenBlock& block, int32_t first, int32_t slot,
                                           const float (&sum)[kSlots / 2]) {
  const int32_t t = threadIdx.x & 3;
  const int32_t left = block.rows - first;
  const uint32_t scales = of_tile + (slot & (Form::kSlots - 1)) * 4 + t * 8;
  auto* y =
      static_cast<__nv_bfloat16*>(args.y) + static_cast<int64_t>(block.row + first) * args.y_stride;
  const int64_t lower = 8 * args.y_stride;
  const auto bits = [](float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  };
  if constexpr (Form::kResult == ResultForm::kSwiGlu) {
    float weight[2] = {1.0F, 1.0F};
    if (args.row_weight != nullptr) {
      weight[0] = load_shared_float(of_tile + Form::kFactorsAt + first * 4);
      weight[1] = load_shared_float(of_tile + Form::kFactorsAt + first * 4 + 32);
    }
    // Neighbours exchange: even lanes get four channels of the first sixteen slots, odd ones of the
    // second.
    const bool odd = (t & 1) != 0;
    const int32_t channel = slot / 2 + (odd ? 8 : 0) + (t & 2) * 2;
#pragma unroll
    for (int32_t i = 0; i < kSlots / 16; i += 2) {
      uint32_t pair[2][2];  // [sixteen][row]
#pragma unroll
      for (int32_t k = 0; k < 2; ++k) {
        const float* at = sum + (i + k) * 8;
        const float2 gate = load_shared_pair(scales + (i + k) * 64);
        const float2 up = load_shared_pair(scales + (i + k) * 64 + 32);
#pragma unroll
        for (int32_t r = 0; r < 2; ++r, at += 2) {
          pair[k][r] = bits(swiglu_of(at[0] * gate.x, at[4] * up.x, args.limit, weight[r]),
                            swiglu_of(at[1] * gate.y, at[5] * up.y, args.limit, weight[r]));
        }
      }
      const bool there = channel + 8 * i < args.outputs;
#pragma unroll
      for (int32_t r = 0; r < 2; ++r) {
        const uint32_t other = __shfl_xor_sync(0xffffffffU, odd ? pair[0][r] : pair[1][r], 1);
        if (!there || left <= 8 * r) continue;
        *reinterpret_cast<uint2*>(y + r * lower + channel + 8 * i) =
            odd ? uint2{other, pair[1][r]} : uint2{pair[0][r], other};
      }
    }
  } else {
    const int32_t output = slot + 4 * t;
#pragma unroll
    for (int32_t i = 0; i < kSlots / 16; ++i) {
      const float* at = sum + i * 8;
      const float2 even = load_shared_pair(scales + i * 64);
      const float2 odd = load_shared_pair(scales + i * 64 + 32);
      const bool there = output + 16 * i < args.outputs;
#pragma unroll
      for (int32_t r = 0; r < 2; ++r, at += 2) {
        const uint2 four = {bits(at[0] * even.x, at[4] * odd.x),
                            bits(at[1] * even.y, at[5] * odd.y)};
        if (!there || left <= 8 * r) continue;
        *reinterpret_cast<uint2*>(y + r * lower + output + 16 * i) = four;
      }
    }
  }
}

// kUnits units of 64 rows, every other one, by all slots of the tile; or one by the warpgroup's
// half of them.
template <class Form, int kUnits, int kSlots>
__device__ __forceinline__ void multiply_tile(const ProductArguments& args,
                                              RowTilesView<Form>& view, const DrawnTile& tile,
                                              uint32_t of_tile) {
  constexpr bool kHalf = kSlots < Form::kSlots;
  static_assert(!kHalf || kUnits == 1);
  const uint32_t unit = kHalf ? 0 : view.group;
  const uint32_t part = kHalf ? view.group : 0;
  const int32_t mine = (threadIdx.x & 127) / 32 * 16 + ((threadIdx.x & 31) >> 2);
  float sum[kUnits][kSlots / 2] = {};
  const uint32_t scales = view.base + Form::kScalesAt + unit * kRowTilesUnit * 4 + mine * 4;
#pragma unroll 1
  for (int32_t chunk = 0; chunk < args.chunks; ++chunk) {
    const uint64_t a =
        swizzled_descriptor(warp_uniform(view.base + view.rows.bytes + unit * Form::kUnitBytes));
    const uint64_t b = swizzled_descriptor(
        warp_uniform(view.base + Form::kUnpackedAt + view.weights.bytes + part * kSlots * kChunk));
    view.wait();
    float scale[kUnits][2];
    uint32_t loaded = 0;
#pragma unroll
    for (int32_t u = 0; u < kUnits; ++u) {
      const uint32_t at = scales + view.rows.bytes + u * 2 * kRowTilesUnit * 4;
      scale[u][0] = load_shared_float(at);
      scale[u][1] = load_shared_float(at + 32);
      loaded |= __float_as_uint(scale[u][0]) | __float_as_uint(scale[u][1]);
    }
#pragma unroll
    for (int32_t u = 0; u < kUnits; ++u) {
      float partial[kSlots / 2];
      wgmma_fence();
#pragma unroll
      for (int32_t j = 0; j < 4; ++j) {
        Wgmma<kSlots, false>::run(partial, advance_descriptor(a, u * 2 * Form::kUnitBytes + 32 * j),
                                  advance_descriptor(b, 32 * j), j > 0);
      }
      wgmma_commit();
      wgmma_wait<0>();
      if (u + 1 == kUnits) view.release(loaded);
        // The one order of the sum.
#pragma unroll
      for (int32_t i = 0; i < kSlots / 2; ++i) {
        sum[u][i] = fmaf(partial[i], scale[u][i / 2 % 2], sum[u][i]);
      }
    }
    view.advance();
  }
  const auto slot = static_cast<int32_t>(tile.tile * Form::kSlots + part * kSlots);
#pragma unroll
  for (int32_t u = 0; u < kUnits; ++u) {
    const auto first = static_cast<int32_t>(unit + 2 * u) * kRowTilesUnit + mine;
    store_unit<Form, kSlots>(args, of_tile, tile.block, first, slot, sum[u]);
  }
}

template <class Form>
__global__ void __launch_bounds__(Form::kThreads, 1)
    expert_row_tiles_kernel(const __grid_constant__ ProductArguments args) {
  extern __shared__ uint8_t shared_memory[];
  const uint32_t begin = shared_address(shared_memory);
  const uint32_t base = (begin + 1023) & ~1023U;
  fill_shift_table(shared_memory + (base - begin) + Form::kTableAt);
  if (threadIdx.x == 0) {
    make_ring<typename Form::Rows>(base + Form::kRowsFull, base + Form::kRowsEmpty, 1,
                                   Form::kMultipliers);
    make_ring<typename Form::Codes>(base + Form::kCodesFull, base + Form::kCodesEmpty, 1,
                                    Form::kSlices);
    make_ring<typename Form::Unpacked>(base + Form::kUnpackedFull, base + Form::kUnpackedEmpty,
                                       Form::kSlices, Form::kMultipliers);
    barrier_init_fence();
  }
  __syncthreads();
  await_earlier();

  const int32_t warp = threadIdx.x >> 5;
  if (warp >= Form::kMultipliers) {
    registers_give<Form::kOtherRegisters>();
    if (warp < Form::kMultipliers + Form::kUnpackers) {
      unpack_row_tiles<Form>(base, warp - Form::kMultipliers);
    } else if ((threadIdx.x & 31) == 0) {
      copy_row_tiles<Form>(args, base);
    }
    __syncwarp();
    return;
  }
  registers_take<Form::kMultiplierRegisters>();
  RowTilesView<Form> view{base, warp_uniform(warp / 4), {}, {}};
  for (uint32_t turn = 0;; ++turn) {
    barrier_wait(base + Form::kRowsFull + view.rows.barrier, view.rows.parity);
    const DrawnTile tile = told_tile(base + Form::kToldAt, turn);
    if (tile.block.rows == 0) break;
    const uint32_t of_tile = base + Form::kTileAt + turn % kToldTiles * Form::kTileBytes;
    const auto units = static_cast<uint32_t>((tile.block.rows + kRowTilesUnit - 1) / kRowTilesUnit);
    if (units > 2 + view.group) {
      multiply_tile<Form, 2, 128>(args, view, tile, of_tile);
    } else if (units > 1) {
      multiply_tile<Form, 1, 128>(args, view, tile, of_tile);
    } else {
      multiply_tile<Form, 1, 64>(args, view, tile, of_tile);
    }
  }
}

}  // namespace galley::kernels::cuda
