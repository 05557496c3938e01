// Floor: half a byte in and 0.52 out for each fp4 value, 1 and 1.004 for fp8; the load of a
// checkpoint is bound by the link to the host (55 GB/s), thirty times slower than this.
#include <cuda_fp8.h>

#include "kernels/cuda/fold_weights.h"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/weight_tiles.h"

namespace galley::kernels::cuda {
namespace {

constexpr int kThreads = 256;

struct FoldArguments {
  RawWeight part[2];
  int64_t rows;
  int64_t in;
  int64_t chunks;
  bool paired;
};

__device__ __forceinline__ float scale_value(int32_t exponent) {  // 2^exponent, also subnormal
  return ldexpf(1.0F, exponent);
}

__device__ __forceinline__ bool is_zero_block(const uint8_t* block) {
  uint32_t seen = 0;
  for (int32_t i = 0; i < 16; ++i) seen |= block[i] & 0x77U;
  return seen == 0;
}

// A warp folds one slot: its 4 lanes a word, 8 blocks of 32 at a time.
__global__ void __launch_bounds__(kThreads)
    fold_fp4_kernel(FoldArguments args, int64_t slots, uint8_t* __restrict__ tiles,
                    float* __restrict__ row_scale, int32_t* __restrict__ misfits) {
  await_earlier();
  const int64_t slot = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  const int32_t lane = threadIdx.x & 31;
  if (slot >= slots) return;
  const SlotSource source = slot_source(slot, args.paired);
  const bool real = source.row < args.rows;
  const int64_t blocks = args.in / 32;
  const uint8_t* codes = args.part[source.part].codes + source.row * (args.in / 2);
  const uint8_t* scale = args.part[source.part].scale + source.row * blocks;

  int32_t largest = 0;
  if (real) {
    for (int64_t block = lane; block < blocks; block += 32) {
      largest = max(largest, static_cast<int32_t>(scale[block]));
    }
  }
  for (int32_t mask = 16; mask > 0; mask /= 2) {
    largest = max(largest, __shfl_xor_sync(0xffffffffU, largest, mask));
  }
  if (lane == 0) row_scale[slot] = real ? scale_value(largest - 127 - kShiftMax) : 0.0F;

  const int32_t inside = static_cast<int32_t>(slot % kStripSlots);
  const int32_t warp = inside / 16;
  const int32_t g = inside % 8;
  const int32_t upper = (inside % 16) / 8;
  const int32_t strip = static_cast<int32_t>(slot / kStripSlots) % 4;
  uint8_t* tile = tiles + slot / kTileSlots * args.chunks * fp4_chunk_bytes();
  for (int64_t first = 0; first < args.chunks * 4; first += 8) {
    const int64_t block = first + lane / 4;
    const int32_t t = lane % 4;
    if (block >= args.chunks * 4) continue;
    const int32_t j = static_cast<int32_t>(block % 4);
    uint8_t* chunk = tile + block / 4 * fp4_chunk_bytes();
    uint32_t word = 0;
    int32_t nibble = kZeroBlock;
    if (real && block < blocks) {
      nibble = kShiftMax + kShiftBias - (largest - scale[block]);
      if (nibble < 0) {
        nibble = kZeroBlock;
        if (t == 0 && !is_zero_block(codes + block * 16)) atomicAdd(misfits, 1);
      }
      word = fold_fp4_word(codes + block * 16, t);
    }
    const int32_t thread = warp * 32 + g * 4 + t;
    *reinterpret_cast<uint32_t*>(chunk + fp4_codes_at(strip) + j / 2 * 2048 + thread * 16 +
                                 (j % 2 * 2 + upper) * 4) = word;
    // Two blocks share a byte: the lane of the even one writes both.
    const int32_t next = __shfl_down_sync(__activemask(), nibble, 4);
    if (t == 0 && j % 2 == 0) {
      chunk[fp4_shifts_at(strip) + (warp * 8 + g) * 4 + upper * 2 + j / 2] =
          static_cast<uint8_t>(nibble | (next << 4));
    }
  }
}

__device__ __forceinline__ float decode_e4m3(uint8_t code) {
  const __half_raw half = __nv_cvt_fp8_to_halfraw(code, __NV_E4M3);
  return __half2float(__half(half));
}

// 8 lanes fold one slot's chunk, 16 codes each.
__global__ void __launch_bounds__(kThreads)
    fold_fp8_kernel(FoldArguments args, int64_t slots, uint8_t* __restrict__ tiles) {
  await_earlier();
  const int64_t item = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 8;
  const int32_t lane = threadIdx.x & 7;
  const int64_t slot = item / args.chunks;
  const int64_t chunk = item % args.chunks;
  if (slot >= slots) return;
  const SlotSource source = slot_source(slot, args.paired);
  const bool real = source.row < args.rows;
  const int64_t blocks = (args.in + 31) / 32;
  const uint8_t* scale = args.part[source.part].scale + source.row / 32 * blocks;
  const int64_t begin = chunk * kChunk + lane * 16;

  int32_t largest = 0;
  if (real) {
    for (int64_t block = chunk * 4; block < min(chunk * 4 + 4, blocks); ++block) {
      largest = max(largest, static_cast<int32_t>(scale[block]));
    }
  }
  uint32_t words[4] = {0, 0, 0, 0};
  if (real && begin < args.in) {
    const uint8_t* codes = args.part[source.part].codes + source.row * args.in + begin;
    const int32_t gap = largest - scale[begin / 32];
    for (int32_t i = 0; i < 16 && begin + i < args.in; ++i) {
      uint8_t code = codes[i];
      if (gap > 0) {
        const float value = ldexpf(decode_e4m3(code), -gap);
        code = __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
      }
      words[i / 4] |= static_cast<uint32_t>(code) << (8 * (i % 4));
    }
  }
  const int32_t inside = static_cast<int32_t>(slot % kStripSlots);
  const int32_t strip = static_cast<int32_t>(slot / kStripSlots) % 4;
  uint8_t* out = tiles + (slot / kTileSlots * args.chunks + chunk) * fp8_chunk_bytes();
  *reinterpret_cast<uint4*>(out + fp8_codes_at(strip) + inside * kChunk +
                            ((lane ^ (inside & 7)) * 16)) =
      make_uint4(words[0], words[1], words[2], words[3]);
  if (lane == 0 && inside % 8 == 0) {
    *reinterpret_cast<float*>(out + fp8_scales_at(strip) + inside / 8 * 4) =
        real ? scale_value(largest - 127) : 0.0F;
  }
}

// A warp looks at one tile of 32 x 128, a row a lane.
__global__ void __launch_bounds__(kThreads)
    count_fp8_kernel(RawWeight weight, int64_t rows, int64_t in, int64_t tiles,
                     FoldCounters counters) {
  await_earlier();
  const int64_t tile = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  if (tile >= tiles) return;
  const int64_t chunks = (in + kChunk - 1) / kChunk;
  const int64_t row = tile / chunks * 32 + (threadIdx.x & 31);
  const int64_t begin = tile % chunks * kChunk;
  const int64_t blocks = (in + 31) / 32;
  Fp8RowFold fold;
  if (row < rows) {
    fold =
        fold_fp8_row(weight.codes + row * in + begin, weight.scale + row / 32 * blocks + begin / 32,
                     static_cast<int32_t>(min(in - begin, static_cast<int64_t>(kChunk))));
  }
  const uint32_t largest = __reduce_max_sync(0xffffffffU, fold.largest);
  const int32_t rounded = __reduce_add_sync(0xffffffffU, fold.rounded);
  if ((threadIdx.x & 31) != 0 || rounded == 0) return;
  if (largest < kFp8TileLargest) {
    atomicAdd(counters.misfits, 1);
  } else {
    atomicAdd(counters.rounded, rounded);
  }
}

void count_fp8(Stream stream, const RawWeight& weight, const FoldShape& shape,
               const FoldCounters& counters) {
  const int64_t tiles = (shape.rows + 31) / 32 * shape.chunks();
  const auto grid = static_cast<uint32_t>((tiles * 32 + kThreads - 1) / kThreads);
  launch_kernel(count_fp8_kernel, {grid, kThreads}, stream, weight, shape.rows, shape.in, tiles,
                counters);
}

FoldArguments arguments(const RawWeight& first, const RawWeight& second, const FoldShape& shape) {
  return {{first, second}, shape.rows, shape.in, shape.chunks(), shape.paired};
}

}  // namespace

int64_t FoldShape::slots() const { return tiled_slots(paired ? (rows + 7) / 8 * 16 : rows); }
int64_t FoldShape::chunks() const { return tiled_chunks(in); }

int64_t folded_fp4_bytes(const FoldShape& shape) {
  return shape.slots() / kTileSlots * shape.chunks() * fp4_chunk_bytes();
}
int64_t folded_fp8_bytes(const FoldShape& shape) {
  return shape.slots() / kTileSlots * shape.chunks() * fp8_chunk_bytes();
}

void fold_fp4(Stream stream, const RawWeight& first, const RawWeight& second,
              const FoldShape& shape, uint8_t* tiles, float* row_scale, int32_t* misfits) {
  const int64_t slots = shape.slots();
  const auto grid = static_cast<uint32_t>((slots * 32 + kThreads - 1) / kThreads);
  launch_kernel(fold_fp4_kernel, {grid, kThreads}, stream, arguments(first, second, shape), slots,
                tiles, row_scale, misfits);
}

void fold_fp8(Stream stream, const RawWeight& first, const RawWeight& second,
              const FoldShape& shape, uint8_t* tiles, const FoldCounters& counters) {
  const int64_t slots = shape.slots();
  const auto grid = static_cast<uint32_t>((slots * shape.chunks() * 8 + kThreads - 1) / kThreads);
  launch_kernel(fold_fp8_kernel, {grid, kThreads}, stream, arguments(first, second, shape), slots,
                tiles);
  count_fp8(stream, first, shape, counters);
  if (shape.paired) count_fp8(stream, second, shape, counters);
}

}  // namespace galley::kernels::cuda
