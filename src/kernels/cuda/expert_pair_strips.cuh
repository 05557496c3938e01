// The routed experts' product where an expert has about 73 to 128 rows, or three times as many: fp8
// activations times fp4 weights, up to 128 rows of one expert by 256 slots.
//
// Floor: the weights' bytes up to 80 rows, then 2 rows N K over the tensor cores
// (grouped_product.cuh, expert_many_rows.cuh).
//
// Design. As expert_many_rows.cuh has it (weights are A of wgmma, unpacked in registers, tiles are
// drawn), but a warpgroup has two strips of 64 slots: their products take turns, so that one is
// multiplied while the other one is unpacked or promoted, and both are promoted with the same
// scales of tokens. So a tile has 256 slots and an expert 18 of gate and up: those of seven experts
// fill one round of 132 multiprocessors. Down's 140 do not: what the last round has left goes by
// strips, or a quarter of a strip's rows, which both warpgroups share.
//
// On one H200, 7 experts, us, gate and up | down; before: expert_many_rows.cuh, and in brackets
// four warpgroups of a strip each (grouped_product.cuh with more tokens, for the experiment):
//
//   rows each      before              before
//   96        43.8   49.7 (42)   | 30.3   31.5 (29.8)
//   110       46.8   58.0 (47)   | 32.0   34.3 (34)
//   128       51.9   59.7 (66)   | 34.3   36.6 (38)
//   110, drawn 55.2  58.5        | 33.9   35.1
//   160       74     69          | 45     39.8
//   220       87.5   84          | 50.5   46.3
//   329       129    139         | 69     73
//   384       145    141         | 77     74
//
// 52 experts of 100 rows, drawn: gate and up 6 % faster than before.
//
// What limits it (ncu, 110 rows, gate and up): a chunk takes 1,900 cycles, its products 896. Of two
// warps on a scheduler one issues in 44 % of them: a warp has 349 instructions, whose time goes to
// being issued (22 %), their fixed latencies (16), reads of shared memory (14), the tensor cores
// and the other warps of a group (13) and the register file, which products in flight share with
// fma (13). The weights' bytes and the tokens' from the L2, 71 MB with 256 slots a tile, take 28 us
// of its ports. Without reading scales 43 us instead of 50, without unpacking as well 38, with a
// quarter of the products 40 (four warpgroups).
//
// Tried: tables of magnitudes by arithmetic: nothing. The second strip's codes read behind the
// first one's products: 0 to 1 % faster. Who of a warp releases a stage elected: 2 to 5 % faster,
// it is. What is left of down by 32 rows, not strips: 34 us for 110 rows; by whole strips 31.7, by
// quarters of their rows 30.4.
#pragma once

#include <cstdint>

#include "kernels/cuda/drawn_tiles.cuh"
#include "kernels/cuda/expert_many_rows.cuh"

namespace galley::kernels::cuda {

// Two strips a warpgroup.
template <ResultForm kResult>
struct PairStripsForm : DrawnForm<kResult, 2, 4, kPairStripsBlock> {};

// Tiles of four strips; what the last round has left goes by two strips, one, or a half or quarter
// of one's rows.
struct StripTile {
  int32_t first;
  int32_t count;

  // As it is told.
  static __device__ __forceinline__ int32_t told(int32_t first, int32_t count) {
    return first | count << 16;
  }
  static __device__ __forceinline__ StripTile of(int32_t told) {
    return {told & 0xffff, told >> 16};
  }
};

class StripDraw {
 public:
  __device__ __forceinline__ StripDraw(int32_t tiles, int32_t blocks)
      : tiles_(tiles), parts_(LastPieces::of(tiles * blocks, 16)), draw_(parts_.total) {}

  // False when nothing is left; it is then not called again.
  __device__ __forceinline__ bool next(const ProductArguments& args, DrawnTile& to) {
    for (int32_t at; draw_.next(args, at);) {
      const int32_t item = parts_.item(at);
      const bool whole = at < parts_.whole;
      const int32_t pieces = whole ? 1 : parts_.pieces;
      const int32_t piece = whole ? 0 : parts_.piece(at);
      const int32_t cuts = pieces > 4 ? pieces / 4 : 1;  // of a strip's rows
      const int32_t strips = pieces > 4 ? 1 : 4 / pieces;
      to.block = block_at(args, item / tiles_, 0);
      to.tile = StripTile::told(item % tiles_ * 4 + piece / cuts * strips, strips);
      const int32_t each = (to.block.rows + 8 * cuts - 1) / (8 * cuts) * 8;
      if (take_rows(to.block, piece % cuts, each)) return true;
    }
    return false;
  }

 private:
  int32_t tiles_;
  LastPieces parts_;
  ItemDraw draw_;
};

// The thread that draws tiles and copies what they read.
template <class Form>
__device__ __forceinline__ void produce_strips(const ProductArguments& args, uint32_t ring,
                                               uint32_t full, uint32_t empty, uint32_t told) {
  StripDraw draw(args.slots / (kStripSlots * Form::kStrips), args.totals->blocks);
  RingPlace place;
  uint32_t turn = 0;
  for (DrawnTile tile; draw.next(args, tile); ++turn) {
    tell_tile(told, turn, tile);
    const StripTile strips = StripTile::of(tile.tile);
    const uint32_t tile_bytes = strips.count * Form::kStripBytes;
    const uint8_t* weights =
        args.weights + tile.block.expert * args.expert_bytes +
        (static_cast<int64_t>(strips.first / 4) * args.chunks * 4 + strips.first % 4) *
            Form::kStripBytes;
    copy_tile<Form>(args, tile.block, weights, tile_bytes, ring, full, empty, place);
  }
  tell_end(full, empty, told, turn, place);
}

// Two strips, and kParts x kPart tokens: products (part, strip), strips in turns, two under way.
template <class Form, int kPart, int kParts>
__device__ __forceinline__ void consume_pair(const ProductArguments& args,
                                             const ManyRowsView<Form>& view, RingPlace& place,
                                             const TokenBlock& block, int32_t slot) {
  float sum[2][kParts][kPart / 2];
#pragma unroll
  for (int32_t i = 0; i < kParts * kPart; ++i) {
    sum[i % 2][i / 2 / (kPart / 2)][i / 2 % (kPart / 2)] = 0.0F;
  }
  constexpr int32_t kPairs = kPart / 8;  // of scales
  constexpr int32_t kProducts = 2 * kParts;
#pragma unroll 1
  for (int32_t chunk = 0; chunk < args.chunks; ++chunk) {
    OperandA a[2];
    float partial[2][kPart / 2];
    float2 scale[kPairs];
    const uint64_t stage = swizzled_descriptor(view.ring + place.bytes);
    const uint32_t scales = view.scales + place.bytes;
    const auto load_scales = [&](int32_t part) {
#pragma unroll
      for (int32_t j = 0; j < kPairs; ++j) {
        scale[j] = load_shared_pair(scales + part * kPart * 4 + j * 32);
      }
    };
    const StoredCodes first = view.wait_codes(place);
    const StoredCodes second = view.codes_of(place.bytes + Form::kStripBytes);
    unpack_fp4(first, view.table, a[0]);
    multiply_chunk<kPart>(stage, a[0], 0, partial[0]);
    load_scales(0);
    unpack_fp4(second, view.table, a[1]);
    multiply_chunk<kPart>(stage, a[1], 0, partial[1]);
#pragma unroll
    for (int32_t product = 0; product < kProducts; ++product) {
      const int32_t strip = product % 2;
      const int32_t part = product / 2;
      if (strip == 0 && part > 0) load_scales(part);
      if (product + 1 == kProducts) {
        wgmma_wait<0>();
        view.release(place, bits_of(scale));  // behind all parts' scales
      } else {
        wgmma_wait<1>();
      }
      // The one order of the sum.
#pragma unroll
      for (int32_t j = 0; j < kPairs; ++j) {
        const float* from = partial[strip] + 4 * j;
        float* to = sum[strip][part] + 4 * j;
        to[0] = fmaf(from[0], scale[j].x, to[0]);
        to[1] = fmaf(from[1], scale[j].y, to[1]);
        to[2] = fmaf(from[2], scale[j].x, to[2]);
        to[3] = fmaf(from[3], scale[j].y, to[3]);
      }
      if (product + 2 < kProducts) {
        multiply_chunk<kPart>(stage, a[strip], (part + 1) * kPart, partial[strip]);
      }
    }
    place.template advance<Form>();
  }
#pragma unroll
  for (int32_t strip = 0; strip < 2; ++strip) {
    const int32_t of_strip = slot + strip * kStripSlots;
    const float2 row_scale = row_scale_at(args, block, of_strip);
#pragma unroll
    for (int32_t part = 0; part < kParts; ++part) {
      store_part<Form, kPart>(args, view, block, of_strip, part * kPart, row_scale,
                              sum[strip][part]);
    }
  }
}

// What a warpgroup does of a tile.
template <class Form>
__device__ __forceinline__ void consume_strips(const ProductArguments& args,
                                               const ManyRowsView<Form>& whole, RingPlace& place,
                                               const TokenBlock& block, const StripTile& strips) {
  const int32_t group = whole.strip;
  if (strips.count == Form::kStrips) {
    ManyRowsView<Form> view = whole;
    view.codes += group * 2 * Form::kStripBytes;
    view.shifts += group * 2 * Form::kStripBytes;
    const auto consume = [&]<int kPart, int kParts>() {
      consume_pair<Form, kPart, kParts>(args, view, place, block,
                                        (strips.first + group * 2) * kStripSlots);
    };
    if (block.rows <= 32) {
      consume.template operator()<32, 1>();
    } else if (block.rows <= 64) {
      consume.template operator()<64, 1>();
    } else if (block.rows <= 80) {
      consume.template operator()<40, 2>();
    } else if (block.rows <= 96) {
      consume.template operator()<48, 2>();
    } else if (block.rows <= 112) {
      consume.template operator()<56, 2>();
    } else if (block.rows <= 120) {
      consume.template operator()<40, 3>();
    } else {
      consume.template operator()<32, 4>();
    }
    return;
  }
  // One strip: its own, or half of the tokens of the one that both have.
  ManyRowsView<Form> view = whole;
  TokenBlock mine = block;
  int32_t strip = 0;
  if (strips.count == 2) {
    strip = group;
    view.codes += group * Form::kStripBytes;
    view.shifts += group * Form::kStripBytes;
  } else {
    const int32_t half = (block.rows + 15) / 16 * 8;
    const int32_t from = group * half;
    mine.row += from;
    mine.rows = min(block.rows - from, half);
    view.ring = warp_uniform(view.ring + from * kChunk);
    view.scales += from * 4;
  }
  const auto consume = [&]<int kPart, int kParts>() {
    consume_parts<Form, kPart, kParts>(args, view, place, mine,
                                       (strips.first + strip) * kStripSlots);
  };
  if (mine.rows <= 32) {  // or none: a tile has one row at least
    consume.template operator()<32, 1>();
  } else if (mine.rows <= 64) {
    consume.template operator()<32, 2>();
  } else if (mine.rows <= 96) {
    consume.template operator()<48, 2>();
  } else {
    consume.template operator()<64, 2>();
  }
}

template <class Form>
__global__ void __launch_bounds__(Form::kThreads, 1)
    expert_pair_strips_kernel(const __grid_constant__ ProductArguments args) {
  extern __shared__ uint8_t shared_memory[];
  const DrawnBlock<Form> memory(shared_memory);
  if (memory.copies([&] {
        produce_strips<Form>(args, memory.ring, memory.full(), memory.empty(), memory.told());
      })) {
    return;
  }
  const int32_t warp = threadIdx.x >> 5;
  const int32_t thread = threadIdx.x & 127;
  const uint32_t base = warp_uniform(kept(memory.ring));
  const uint32_t group = warp_uniform(warp / 4);
  const ManyRowsView<Form> view{
      .ring = base,
      .full = base + DrawnBlock<Form>::kFullAt,
      .empty = base + DrawnBlock<Form>::kEmptyAt,
      .table = base + DrawnBlock<Form>::kTableAt,
      .codes = base + Form::kCodesAt + thread * 16,
      .shifts = base + Form::kCodesAt + kFp4Codes + (thread >> 2) * 4,
      .scales = base + Form::kScalesAt + (thread & 3) * 8,
      .store = base + DrawnBlock<Form>::kStoreAt + group * Form::kStoreBytes,
      .told = base + DrawnBlock<Form>::kToldAt,
      .strip = static_cast<int32_t>(group),
  };
  RingPlace place;
  for (uint32_t turn = 0;; ++turn) {
    barrier_wait(view.full + place.barrier, place.parity);
    const DrawnTile drawn = told_tile(view.told, turn);
    if (drawn.block.rows == 0) break;
    consume_strips<Form>(args, view, place, drawn.block, StripTile::of(drawn.tile));
  }
}

}  // namespace galley::kernels::cuda
