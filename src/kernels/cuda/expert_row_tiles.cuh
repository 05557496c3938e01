// The routed experts' product where an expert has more than about 112 rows: fp8 activations times
// fp4 weights, up to 256 rows of one expert by 128 slots.
//
// Floor: 2 rows N K over the tensor cores, 4,096 products a cycle and multiprocessor: 1,560 TFLOP/s
// at the 1,450 MHz that power leaves them.
//
// Design. Rows are A of wgmma and weights B, so that a thread needs two scales of tokens a unit of
// 64 rows; as B, rows would have 64 of them, as many bytes of shared memory as operands. Weights
// are unpacked into shared memory, once for all rows. Two warpgroups multiply, two units each: 128
// registers of sums and 64 of a product. The third one unpacks: each of its warps always has the
// same two slices of 16 slots, whose addresses are then constants of a lane. Its barriers are asked
// about a slice ahead, stores are eight rows of 16 bytes for each of four matrices, and the fence
// behind them comes when the next chunk's codes are on their way. Three warps of the fourth copy:
// codes, rows, and all scales; the first of them also draws tiles (drawn_tiles.cuh) and tells them.
// A unit costs the same for 64 rows as for one, so an expert's blocks are whole units but for the
// last; 64 rows or fewer, and the third of three units, are halved by slots. Tables of magnitudes
// are arithmetic, two factors of a shift; blocks of zeros and shifts that make subnormal numbers
// take the tables in shared memory.
// A row gets whole sectors straight from registers; scales of slots and factors of rows came with
// the tile.
//
// On one H200, us in one program, in turns; before: slices unpacked by seven warps in turns, one
// thread that copied, and weights as A (unpacked in registers, rows as B) for experts of up to 128
// rows, up to 200 of few experts, and all of few experts' down; gate and up | down:
//
//                                                before              before
//   7 experts of 128 rows                  55.6     62.3  |   35.8     36.4
//   7 of 128, drawn uniformly              64.4     65.1  |   38.6     36.6
//   7 of 160, drawn                        70.8     77.5  |   42.1     41.9
//   7 of 220, drawn                        86.8     88.5  |   48.3     48.3
//   7 of 256                               92.1     94.9  |   49.4     50.9
//   7 of 300, drawn                         138      147  |   76.8     74.0
//   7 of 585                                236      246  |    119      132
//   7 of 585, skewed as 1 / rank            226      240  |    117      128
//   52 of 128, drawn                        478      472  |    242      244
//   52 of 256                               690      719  |    355      377
//   52 of 1,890                           5,071    5,245  |  2,625    2,813
//   384 of 256                            4,953    5,130  |  2,634    2,782
//   384 of 256, drawn                     5,791    6,188  |  3,052    3,262
//   384 of 256, skewed                    6,102    6,126  |  3,096    3,196
//
// What limits it. Blocks of 256 rows: shared memory. A chunk asks for 1,284 cycles of it: operands
// 768, copies 322, codes and what they become 194; its products take 1,280 (80 for 64 rows by 128
// slots by 32, 16 of them for A alone) and all of it 1,500, 1,420 with nothing unpacked. And power:
// 16,384 tokens over and over leave 1,300 to 1,470 MHz. Blocks of up to 128 rows: who unpacks, 246
// instructions for two slices, which issue every third or fourth cycle: 1,100 cycles a chunk.
// Without unpacking it is 870, since a warpgroup with one unit waits for each product.
//
// Tried, on one H200, us for 128 rows | 256 rows of 7 experts, gate and up, in one run each:
// - before: slices in turns by seven warps, one thread that copied everything 61 | 90; six such
//   warps and two that copy 69 | 97. A slice that changes from chunk to chunk has its addresses
//   computed again, in 48 registers, which spill.
// - four warps, not asking ahead 59 | 84, asking ahead 53 | 87: so it asks where rows are few.
// - single stores of four bytes 62 | 90 where those of matrices are 60 | 87; no fence (not right)
//   58 | 90.
// - two units of few rows by half of the slots for each warpgroup, both products under way: 57.
//   Products of two chunks under way: the compiler has too few registers, whatever is left out.
// - the third of three units by one warpgroup: 7 experts of 128 rows, drawn, 72 us instead of 64.
// - tables from shared memory: 5 % slower with 256 rows, 14 % with 128.
// - the kernel that had rows as B, 256 of them, weights unpacked in registers: 61 | 102.
//   7 experts of 585 rows 259 where it is 230 here, 384 of 256 6,024 and 4,830. It read scales for
//   512 cycles a chunk, as many as operand B: scales packed as bf16 pairs were 4 to 9 % slower,
//   spread by products with the identity 20 %, the next chunk unpacked meanwhile 0 to 8 %.
// - experts of up to 128 rows by such blocks behind row tiles, two launches: 52 experts of 79 rows,
//   skewed, 387 where it is 405 here; 384 of 256 3 % slower.
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
  static constexpr int kTokens = kRowTilesBlock;
  static constexpr int kSlots = 128;
  // Warps, a role after the other: each has whole warpgroups, whose registers it sets.
  static constexpr int kMultipliers = 8;
  static constexpr int kUnpackers = 4;
  static constexpr int kThreads = (kMultipliers + kUnpackers + 4) * 32;  // the last four copy
  static constexpr int kMultiplierRegisters = 208;
  static constexpr int kUnpackerRegisters = 64;
  static constexpr int kCopierRegisters = 32;
  static constexpr int kSliceBytes = 16 * kChunk;  // unpacked, of what is one warp's of operand A
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
  // Barriers, 8 bytes for each stage, and for each tile that is told.
  static constexpr int kRowsFull = kTableAt + 128;
  static constexpr int kRowsEmpty = kRowsFull + 64;
  static constexpr int kCodesFull = kRowsEmpty + 64;
  static constexpr int kCodesEmpty = kCodesFull + 64;
  static constexpr int kUnpackedFull = kCodesEmpty + 64;
  static constexpr int kUnpackedEmpty = kUnpackedFull + 64;
  static constexpr int kToldFull = kUnpackedEmpty + 64;
  static constexpr int kToldAt = kToldFull + kToldTiles * 8;
  // Of a tile, by turns as tiles are told: scales of its slots, and factors of its rows.
  static constexpr int kTileAt = kToldAt + kToldBytes;
  static constexpr int kTileRooms = 8;
  static constexpr int kFactorsAt = kSlots * 4;
  static constexpr int kTileBytes = kFactorsAt + kTokens * 4;
  static constexpr int kSharedBytes = kTileAt + kTileRooms * kTileBytes + 1024;
  // Rows may be as many tiles ahead of the last results as their ring has stages.
  static_assert(kTileRooms > Rows::kStages + 1);
  static_assert(kToldTiles > Codes::kStages + Unpacked::kStages + 2);
  static_assert(kTableAt % 256 == 0 && kSharedBytes <= 227 * 1024);

  static __device__ __forceinline__ uint32_t tile_room(uint32_t base, uint32_t turn) {
    return base + kTileAt + turn % kTileRooms * kTileBytes;
  }
};

// The tile of this turn, once it is known; one without rows stands for the end.
template <class Form>
__device__ __forceinline__ DrawnTile await_tile(uint32_t base, uint32_t turn) {
  barrier_wait(base + Form::kToldFull + turn % kToldTiles * 8, turn / kToldTiles & 1);
  return told_tile(base + Form::kToldAt, turn);
}

// The warp that draws tiles, tells them and copies their codes.
template <class Form>
__device__ __forceinline__ void copy_row_tiles(const ProductArguments& args, uint32_t base) {
  TileDraw<kRowTilesUnit> draw(args.slots / Form::kSlots, args.totals->blocks);
  const bool draws = (threadIdx.x & 31) == 0;
  RingPlace place;
  for (uint32_t turn = 0;; ++turn) {
    if (draws) {
      DrawnTile drawn;
      if (!draw.next(args, drawn)) drawn = {};
      tell_tile(base + Form::kToldAt, turn, drawn);
      barrier_arrive(base + Form::kToldFull + turn % kToldTiles * 8);
    }
    __syncwarp();
    const DrawnTile tile = await_tile<Form>(base, turn);
    if (tile.block.rows == 0) return;
    const int32_t strip = tile.tile * (Form::kSlots / kStripSlots);
    const uint8_t* weights =
        args.weights + tile.block.expert * args.expert_bytes +
        (static_cast<int64_t>(strip / 4) * args.chunks * 4 + strip % 4) * Form::kStripBytes;
#pragma unroll 1
    for (int32_t chunk = 0; chunk < args.chunks; ++chunk) {
      const uint32_t full = base + Form::kCodesFull + place.barrier;
      barrier_wait(base + Form::kCodesEmpty + place.barrier, place.parity ^ 1);
      if (elected()) {
        barrier_expect(full, Form::Codes::kStageBytes);
        bulk_load(base + Form::kCodesAt + place.bytes, weights, Form::Codes::kStageBytes, full);
      }
      weights += 4 * Form::kStripBytes;
      place.template advance<typename Form::Codes>();
    }
  }
}

// What the two warps that copy rows bring of a chunk: codes...
template <class Form>
struct RowCodes {
  const uint8_t* from;
  uint32_t bytes;

  __device__ __forceinline__ RowCodes(const ProductArguments& args, uint32_t, uint32_t,
                                      const DrawnTile& tile)
      : from(args.x + static_cast<int64_t>(tile.block.row) * kChunk),
        bytes(((tile.block.rows + 7) & ~7) * kChunk) {}
  __device__ __forceinline__ void copy(const ProductArguments&, bool, uint32_t stage,
                                       uint32_t full) const {
    barrier_expect(full, bytes);
    bulk_load(stage, from, bytes, full);
  }
  __device__ __forceinline__ void next(const ProductArguments& args) {
    from += args.x_rows * kChunk;
  }
};

// ...or scales, and with the first ones those of slots and factors of rows.
template <class Form>
struct RowScales {
  const float* from;
  uint32_t bytes;
  uint32_t room;
  const float* slots;
  const float* factors;

  __device__ __forceinline__ RowScales(const ProductArguments& args, uint32_t base, uint32_t turn,
                                       const DrawnTile& tile)
      : from(args.x_scale + tile.block.row),
        bytes(((tile.block.rows + 7) & ~7) * 4),
        room(Form::tile_room(base, turn)),
        slots(args.row_scale + static_cast<int64_t>(tile.block.expert) * args.slots +
              tile.tile * Form::kSlots),
        factors(Form::kResult != ResultForm::kSwiGlu || args.row_weight == nullptr
                    ? nullptr
                    : args.row_weight + tile.block.row) {}
  __device__ __forceinline__ void copy(const ProductArguments&, bool first, uint32_t stage,
                                       uint32_t full) const {
    const uint32_t of_tile = first ? Form::kSlots * 4 + (factors != nullptr ? bytes : 0) : 0;
    barrier_expect(full, bytes + of_tile);
    bulk_load(stage + Form::kScalesAt, from, bytes, full);
    if (!first) return;
    bulk_load(room, slots, Form::kSlots * 4, full);
    if (factors != nullptr) bulk_load(room + Form::kFactorsAt, factors, bytes, full);
  }
  __device__ __forceinline__ void next(const ProductArguments& args) { from += args.x_rows; }
};

template <class Form, class Share>
__device__ __forceinline__ void copy_rows_of_tiles(const ProductArguments& args, uint32_t base) {
  RingPlace place;
  for (uint32_t turn = 0;; ++turn) {
    const DrawnTile tile = await_tile<Form>(base, turn);
    if (tile.block.rows == 0) return;
    Share share(args, base, turn, tile);
#pragma unroll 1
    for (int32_t chunk = 0; chunk < args.chunks; ++chunk) {
      barrier_wait(base + Form::kRowsEmpty + place.barrier, place.parity ^ 1);
      if (elected()) {
        share.copy(args, chunk == 0, base + place.bytes, base + Form::kRowsFull + place.barrier);
      }
      share.next(args);
      place.template advance<typename Form::Rows>();
    }
  }
}

// A lane's codes of 16 slots: words [K of 32][slot g or g + 8, K 4 t.. or 16 more].
template <bool kTables>
__device__ __forceinline__ void unpack_slice(const StoredCodes& codes, uint32_t table,
                                             uint32_t (&out)[4][4]) {
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
      out[j][2 * upper] =
          permute_bytes(magnitudes.x, magnitudes.y, chosen) | ((word << 4) & 0x80808080);
      out[j][2 * upper + 1] =
          permute_bytes(magnitudes.x, magnitudes.y, chosen >> 16) | (word & 0x80808080);
    }
  }
}

// Whether every nibble is 3 to 14: no magnitude but 0 is below E4M3's normal numbers.
__device__ __forceinline__ bool all_normal(uint32_t shifts) {
  const uint32_t next = shifts + 0x11111111;
  return ((next | next >> 1) & 0x44444444) == 0x44444444;
}

// A lane's codes of two neighbouring slices, unpacked to `to` and its neighbours in the order of
// wgmma's B: rows of 128 bytes, 16-byte pieces exchanged by row mod 8. between() is called between
// the two.
template <class Form, bool kTables, class Between>
__device__ __forceinline__ void unpack_pair(const StoredCodes (&codes)[2], uint32_t table,
                                            uint32_t to, const Between& between) {
#pragma unroll
  for (uint32_t i = 0; i < 2; ++i) {
    uint32_t word[4][4];
    unpack_slice<kTables>(codes[i], table, word);
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j) {
      store_matrices((to + i * Form::kSliceBytes) ^ (2 * j << 4), word[j][0], word[j][1],
                     word[j][2], word[j][3]);
    }
    if (i == 0) between();
  }
}

// Who unpacks: two slices of every chunk, the same ones, so that a lane's addresses never change.
template <class Form>
__device__ __forceinline__ void unpack_row_tiles(uint32_t base, uint32_t unpacker, int32_t chunks) {
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t strip = base + Form::kCodesAt + unpacker / 2 * Form::kStripBytes;
  const uint32_t from = kept(strip + unpacker % 2 * 1024 + lane * 16);
  const uint32_t shifts = kept(strip + kFp4Codes + unpacker % 2 * 64 + (lane >> 2) * 4);
  // Lanes of eight say where the rows of a matrix of 8 x 16 bytes go: rows 0 to 7, K 0 and 16,
  // then rows 8 to 15.
  const uint32_t to =
      kept(base + Form::kUnpackedAt + unpacker * 2 * Form::kSliceBytes +
           ((lane >> 4) * 8 + (lane & 7)) * kChunk + ((lane >> 3 & 1) ^ (lane & 7)) * 16);
  RingPlace codes_at;
  RingPlace out;
  uint32_t pending = 0;  // the barrier of what was stored last
  bool codes_there = false;
  bool out_free = false;
  // A fence waits until stores are done: those of a chunk have the time until the next one's codes
  // are asked for.
  const auto tell_pending = [&] {
    if (pending == 0) return;
    fence_async_proxy();
    __syncwarp();
    if (elected()) barrier_arrive(pending);
  };
  for (uint32_t turn = 0;; ++turn) {
    const int32_t rows = await_tile<Form>(base, turn).block.rows;
    if (rows == 0) break;
    // Who multiplies waits for who unpacks. Where it does not, codes that are there at once make it
    // up to 5 % slower.
    const bool hurries = rows <= 2 * kRowTilesUnit;
#pragma unroll 1
    for (int32_t chunk = 0; chunk < chunks; ++chunk) {
      if (!codes_there) barrier_wait(base + Form::kCodesFull + codes_at.barrier, codes_at.parity);
      StoredCodes codes[2];
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i) {
        codes[i].shift = load_shared_word(shifts + codes_at.bytes + i * 32);
        codes[i].first = load_shared_16(from + codes_at.bytes + i * 512);
        codes[i].second = load_shared_16(from + codes_at.bytes + i * 512 + kFp4Codes / 2);
      }
      tell_pending();
      pending = base + Form::kUnpackedFull + out.barrier;
      if (!out_free) barrier_wait(base + Form::kUnpackedEmpty + out.barrier, out.parity ^ 1);
      const bool normal =
          __all_sync(0xffffffffU, all_normal(codes[0].shift) && all_normal(codes[1].shift)) != 0;
      if (elected()) {
        const uint32_t loaded = codes[0].shift | codes[0].first.x | codes[0].second.x |
                                codes[1].shift | codes[1].first.x | codes[1].second.x;
        barrier_arrive(
            behind_loads(base + Form::kCodesEmpty + codes_at.barrier, loaded, blockIdx.z));
      }
      const uint32_t pair = to + out.bytes;
      codes_at.template advance<typename Form::Codes>();
      out.template advance<typename Form::Unpacked>();
      // Asked for in between, so that the answers' latency passes meanwhile.
      const auto look_ahead = [&] {
        codes_there =
            hurries && barrier_passed(base + Form::kCodesFull + codes_at.barrier, codes_at.parity);
        out_free =
            hurries && barrier_passed(base + Form::kUnpackedEmpty + out.barrier, out.parity ^ 1);
      };
      if (__builtin_expect(normal, 1)) {
        unpack_pair<Form, false>(codes, base + Form::kTableAt, pair, look_ahead);
      } else {
        unpack_pair<Form, true>(codes, base + Form::kTableAt, pair, look_ahead);
      }
    }
  }
  tell_pending();
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
  __device__ __forceinline__ uint64_t unit_descriptor(uint32_t unit) const {
    return swizzled_descriptor(warp_uniform(base + rows.bytes + unit * Form::kUnitBytes));
  }
  __device__ __forceinline__ uint64_t slots_descriptor(uint32_t slot) const {
    return swizzled_descriptor(
        warp_uniform(base + Form::kUnpackedAt + weights.bytes + slot * kChunk));
  }
  // Of row `row` of a unit, and of the one 8 further.
  __device__ __forceinline__ float2 scales(uint32_t unit, int32_t row) const {
    const uint32_t at = base + Form::kScalesAt + rows.bytes +
                        (unit * kRowTilesUnit + static_cast<uint32_t>(row)) * 4;
    return {load_shared_float(at), load_shared_float(at + 32)};
  }
  // Behind the loads of these.
  template <int kCount>
  __device__ __forceinline__ void release(const float2 (&loaded_scales)[kCount]) const {
    uint32_t loaded = 0;
#pragma unroll
    for (const float2& scale : loaded_scales) {
      loaded |= __float_as_uint(scale.x) | __float_as_uint(scale.y);
    }
    __syncwarp();
    if (!elected()) return;
    barrier_arrive(behind_loads(base + Form::kRowsEmpty + rows.barrier, loaded, blockIdx.z));
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
    // Neighbours exchange here, too: even lanes get eight outputs of the first sixteen.
    const bool odd = (t & 1) != 0;
    const int32_t output = slot + (odd ? 16 : 0) + (t & 2) * 4;
#pragma unroll
    for (int32_t i = 0; i < kSlots / 16; i += 2) {
      uint2 four[2][2];  // [sixteen][row]
#pragma unroll
      for (int32_t k = 0; k < 2; ++k) {
        const float* at = sum + (i + k) * 8;
        const float2 low = load_shared_pair(scales + (i + k) * 64);
        const float2 high = load_shared_pair(scales + (i + k) * 64 + 32);
#pragma unroll
        for (int32_t r = 0; r < 2; ++r, at += 2) {
          four[k][r] = {bits(at[0] * low.x, at[4] * high.x), bits(at[1] * low.y, at[5] * high.y)};
        }
      }
      const bool there = output + 16 * i < args.outputs;
#pragma unroll
      for (int32_t r = 0; r < 2; ++r) {
        const uint2 mine = odd ? four[1][r] : four[0][r];
        const uint2 given = odd ? four[0][r] : four[1][r];
        const uint2 other = {__shfl_xor_sync(0xffffffffU, given.x, 1),
                             __shfl_xor_sync(0xffffffffU, given.y, 1)};
        if (!there || left <= 8 * r) continue;
        *reinterpret_cast<uint4*>(y + r * lower + output + 16 * i) =
            odd ? uint4{other.x, other.y, mine.x, mine.y} : uint4{mine.x, mine.y, other.x, other.y};
      }
    }
  }
}

// The product of a unit's chunk with kSlots slots.
template <int kSlots>
__device__ __forceinline__ void multiply_unit(uint64_t a, uint64_t b,
                                              float (&partial)[kSlots / 2]) {
  wgmma_fence();
#pragma unroll
  for (int32_t j = 0; j < 4; ++j) {
    Wgmma<kSlots, false>::run(partial, advance_descriptor(a, 32 * j), advance_descriptor(b, 32 * j),
                              j > 0);
  }
  wgmma_commit();
  wgmma_wait<0>();
}

// The one order of the sum.
template <int kCount>
__device__ __forceinline__ void promote_unit(const float (&partial)[kCount], float2 scale,
                                             float (&sum)[kCount]) {
#pragma unroll
  for (int32_t i = 0; i < kCount; ++i) {
    sum[i] = fmaf(partial[i], i / 2 % 2 == 0 ? scale.x : scale.y, sum[i]);
  }
}

// Row of the block's first unit that this thread has, and the one 8 further.
__device__ __forceinline__ int32_t row_of_unit() {
  return static_cast<int32_t>((threadIdx.x & 127) / 32 * 16 + ((threadIdx.x & 31) >> 2));
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
  const int32_t mine = row_of_unit();
  float sum[kUnits][kSlots / 2] = {};
#pragma unroll 1
  for (int32_t chunk = 0; chunk < args.chunks; ++chunk) {
    const uint64_t a = view.unit_descriptor(unit);
    const uint64_t b = view.slots_descriptor(part * kSlots);
    view.wait();
    float2 scale[kUnits];
#pragma unroll
    for (uint32_t u = 0; u < kUnits; ++u) scale[u] = view.scales(unit + 2 * u, mine);
#pragma unroll
    for (int32_t u = 0; u < kUnits; ++u) {
      float partial[kSlots / 2];
      multiply_unit<kSlots>(advance_descriptor(a, u * 2 * Form::kUnitBytes), b, partial);
      if (u + 1 == kUnits) view.release(scale);
      promote_unit(partial, scale[u], sum[u]);
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

// Three units: one of its own, and the third by its half of the slots.
template <class Form>
__device__ __forceinline__ void multiply_three(const ProductArguments& args,
                                               RowTilesView<Form>& view, const DrawnTile& tile,
                                               uint32_t of_tile) {
  constexpr int kHalf = Form::kSlots / 2;
  const int32_t mine = row_of_unit();
  float own[Form::kSlots / 2] = {};
  float third[kHalf / 2] = {};
#pragma unroll 1
  for (int32_t chunk = 0; chunk < args.chunks; ++chunk) {
    const uint64_t a = view.unit_descriptor(view.group);
    const uint64_t a_third = view.unit_descriptor(2);
    const uint64_t b = view.slots_descriptor(0);
    const uint64_t b_half = view.slots_descriptor(view.group * kHalf);
    view.wait();
    const float2 scale[2] = {view.scales(view.group, mine), view.scales(2, mine)};
    // In the same registers: of two kinds at once, ptxas says, there are too many.
    float partial[Form::kSlots / 2];
    multiply_unit<Form::kSlots>(a, b, partial);
    promote_unit(partial, scale[0], own);
    auto& half = reinterpret_cast<float(&)[kHalf / 2]>(partial);
    multiply_unit<kHalf>(a_third, b_half, half);
    view.release(scale);
    promote_unit(half, scale[1], third);
    view.advance();
  }
  const int32_t slot = tile.tile * Form::kSlots;
  store_unit<Form, Form::kSlots>(args, of_tile, tile.block,
                                 static_cast<int32_t>(view.group) * kRowTilesUnit + mine, slot,
                                 own);
  store_unit<Form, kHalf>(args, of_tile, tile.block, 2 * kRowTilesUnit + mine,
                          slot + static_cast<int32_t>(view.group) * kHalf, third);
}

template <class Form>
__global__ void __launch_bounds__(Form::kThreads, 1)
    expert_row_tiles_kernel(const __grid_constant__ ProductArguments args) {
  extern __shared__ uint8_t shared_memory[];
  const uint32_t begin = shared_address(shared_memory);
  const uint32_t base = (begin + 1023) & ~1023U;
  fill_shift_table(shared_memory + (base - begin) + Form::kTableAt);
  if (threadIdx.x == 0) {
    make_ring<typename Form::Rows>(base + Form::kRowsFull, base + Form::kRowsEmpty, 2,
                                   Form::kMultipliers);
    make_ring<typename Form::Codes>(base + Form::kCodesFull, base + Form::kCodesEmpty, 1,
                                    Form::kUnpackers);
    make_ring<typename Form::Unpacked>(base + Form::kUnpackedFull, base + Form::kUnpackedEmpty,
                                       Form::kUnpackers, Form::kMultipliers);
    for (uint32_t i = 0; i < kToldTiles; ++i) barrier_init(base + Form::kToldFull + i * 8, 1);
    barrier_init_fence();
  }
  __syncthreads();
  await_earlier();

  const auto warp = static_cast<int32_t>(warp_uniform(threadIdx.x >> 5));
  constexpr int32_t kCopier = Form::kMultipliers + Form::kUnpackers;
  if (warp >= kCopier) {
    registers_give<Form::kCopierRegisters>();
    if (warp == kCopier) {
      copy_row_tiles<Form>(args, base);
    } else if (warp == kCopier + 1) {
      copy_rows_of_tiles<Form, RowCodes<Form>>(args, base);
    } else if (warp == kCopier + 2) {
      copy_rows_of_tiles<Form, RowScales<Form>>(args, base);
    }
    return;
  }
  if (warp >= Form::kMultipliers) {
    registers_give<Form::kUnpackerRegisters>();
    unpack_row_tiles<Form>(base, warp - Form::kMultipliers, args.chunks);
    return;
  }
  registers_take<Form::kMultiplierRegisters>();
  RowTilesView<Form> view{base, warp_uniform(warp / 4), {}, {}};
  for (uint32_t turn = 0;; ++turn) {
    const DrawnTile tile = await_tile<Form>(base, turn);
    if (tile.block.rows == 0) break;
    const uint32_t of_tile = Form::tile_room(base, turn);
    const auto units = static_cast<uint32_t>((tile.block.rows + kRowTilesUnit - 1) / kRowTilesUnit);
    if (units > 3) {
      multiply_tile<Form, 2, 128>(args, view, tile, of_tile);
    } else if (units == 3) {
      multiply_three<Form>(args, view, tile, of_tile);
    } else if (units > 1) {
      multiply_tile<Form, 1, 128>(args, view, tile, of_tile);
    } else {
      multiply_tile<Form, 1, 64>(args, view, tile, of_tile);
    }
  }
}

}  // namespace galley::kernels::cuda
