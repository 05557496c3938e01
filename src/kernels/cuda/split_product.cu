// Products of many rows with narrow bf16 weights by wgmma, sums in parts: each part's one chain
// from zero, parts added in order. The gate's 384 x 5,120, and a compressor's two of 512 x 5,120
// with the indexer's 32. The bits are those of the kernels for few rows (route.cu,
// narrow_product.cu), since mma.sync and wgmma add the same 16 of K to a sum with the same bits.
//
// Floor, 16,384 rows: the gate's 64 GFLOP 95 us at 680 TFLOP/s, the compressor's 177 GFLOP 260.
//
// Design. A cluster of two blocks has six strips of 64 outputs, whichever matrices they are of, and
// a block of tokens: outputs are A of wgmma, a strip a warpgroup, three of them a block; tokens are
// B, and come to both blocks at once, half from each. So a block reads 24 KB of weights and half of
// 16 KB of tokens for 64 of K, which is what the L2 bears. Sums of a part and of those before it
// are two sets of registers, which three warpgroups and 128 tokens leave room for. Blocks of 64 or
// 32 tokens share weights worse, and are taken where larger ones would leave multiprocessors idle.
//
// Where tokens are few, too few clusters would each go through all of K: there a cluster takes one
// part, all of whose weights are on their way before the wait, and leaves its sum in memory.
//
// Measured on an H200, the choice included: gate of 16,384 rows 138 us, where mma.sync took 345.
// The choice takes about 40 of them, so the product has some 650 TFLOP/s.
#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/launch_product.cuh"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/ring_place.cuh"
#include "kernels/cuda/row.cuh"
#include "kernels/cuda/sm90.cuh"
#include "kernels/cuda/sm90_memory.cuh"
#include "kernels/cuda/split_product.h"
#include "kernels/cuda/tensor_map.cuh"
#include "kernels/cuda/wgmma_bf16.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int kChunkK = 64;  // of a stage
constexpr int kChunkBytes = kChunkK * 2;
constexpr int kStrip = 64;  // outputs of a warpgroup
constexpr int kStripBytes = kStrip * kChunkBytes;

template <int kTokensIn>
struct SplitForm {
  static constexpr int kTokens = kTokensIn;
  static constexpr int kStrips = 3;
  static constexpr int kCluster = 2;
  static constexpr int kThreads = (kStrips + 1) * 128;  // registers are dealt in warpgroups
  static constexpr int kBoxTokens = kTokens / kCluster;
  static constexpr int kWeightsAt = kTokens * kChunkBytes;
  static constexpr int kStageBytes = kWeightsAt + kStrips * kStripBytes;
  static constexpr int kStages = (225 * 1024 - 2048) / kStageBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes + 2048;
  static_assert(kBoxTokens % 8 == 0);
};

// One matrix of a set.
struct SplitPart {
  Rows<Bf16> y;
  Rows<float> y_f32;
  int32_t outputs;
  int32_t strips;
};
struct SplitArguments {
  CUtensorMap x;                          // boxes of a block's part of the tokens x 64
  CUtensorMap weights[ProductSet::kMax];  // boxes of a strip x 64
  SplitPart parts[ProductSet::kMax];
  int32_t count;
  int32_t chunks;  // of 64
  int32_t split_chunks;
  int32_t apart;  // parts that items have one each of, and leave in memory: 1, or all of K's
  int32_t rows;
  int32_t tiles;  // of a cluster's strips
  int32_t token_blocks;
};

// Where a strip of the set is; part = count: nowhere.
struct StripPlace {
  int32_t part;
  int32_t output;
};
__device__ __forceinline__ StripPlace find_strip(const SplitArguments& args, int32_t strip) {
  int32_t part = 0;
  for (; part < args.count; ++part) {
    if (strip < args.parts[part].strips) break;
    strip -= args.parts[part].strips;
  }
  return {part, strip * kStrip};
}
// What an item is, of all tiles of strips by blocks of tokens by parts that are left apart.
struct ItemPlace {
  int32_t token_block;
  int32_t part;
  int32_t first_chunk;
  int32_t end_chunk;
};
__device__ __forceinline__ ItemPlace place_item(const SplitArguments& args, int32_t item) {
  const int32_t rest = item / args.tiles;
  if (args.apart == 1) return {rest, 0, 0, args.chunks};
  const int32_t part = rest % args.apart;
  return {rest / args.apart, part, part * args.split_chunks,
          min((part + 1) * args.split_chunks, args.chunks)};
}
// The first of this block's.
template <class Form>
__device__ __forceinline__ int32_t first_strip(const SplitArguments& args, int32_t item) {
  const int32_t block = item % args.tiles * Form::kCluster + static_cast<int32_t>(cluster_rank());
  return block * Form::kStrips;
}

// One warpgroup's sums over all of K.
template <class Form>
__device__ __forceinline__ void sum_tokens(const SplitArguments& args, uint32_t ring, uint32_t full,
                                           uint32_t empty, int32_t strip, const ItemPlace& item,
                                           RingPlace& place, float (&total)[Form::kTokens / 2]) {
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t a = warp_uniform(Form::kWeightsAt + strip * kStripBytes);
  const auto release = [&](uint32_t barrier) {
    __syncwarp();
    if (lane < Form::kCluster) barrier_arrive_remote(empty + barrier, lane);
  };
#pragma unroll
  for (int32_t i = 0; i < Form::kTokens / 2; ++i) total[i] = 0.0F;
#pragma unroll 1
  for (int32_t first = item.first_chunk; first < item.end_chunk; first += args.split_chunks) {
    float chain[Form::kTokens / 2];
    const int32_t end = min(first + args.split_chunks, item.end_chunk);
    uint32_t before = 0;
#pragma unroll 1
    for (int32_t chunk = first; chunk < end; ++chunk) {
      barrier_wait(full + place.barrier, place.parity);
      const uint64_t b = swizzled_descriptor(warp_uniform(ring + place.bytes));
      wgmma_fence();
#pragma unroll
      for (int32_t j = 0; j < kChunkK / 16; ++j) {
        WgmmaBf16<Form::kTokens>::run(chain, advance_descriptor(b, a + 32 * j),
                                      advance_descriptor(b, 32 * j), chunk > first || j > 0);
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (chunk > first) release(before);
      before = place.barrier;
      place.advance<Form>();
    }
    wgmma_wait<0>();
    hold_registers(chain);
    release(before);
#pragma unroll
    for (int32_t i = 0; i < Form::kTokens / 2; ++i) total[i] += chain[i];
  }
}

// The threads that copy: one brings weights, which are constant, the other one this block's half of
// the tokens to both blocks, behind the kernel that makes them.
template <class Form>
__device__ __forceinline__ void produce(const SplitArguments& args, bool copies_weights,
                                        uint32_t ring, uint32_t full, uint32_t empty) {
  if (!copies_weights) {
    prefetch_map(args.x);
    await_earlier();
  }
  const auto rank = static_cast<int32_t>(cluster_rank());
  const int32_t items = args.tiles * args.token_blocks * args.apart;
  RingPlace place;
  for (int32_t item = blockIdx.x / Form::kCluster; item < items;
       item += gridDim.x / Form::kCluster) {
    const ItemPlace at = place_item(args, item);
    StripPlace strips[Form::kStrips];
    uint32_t weight_bytes = 0;
#pragma unroll
    for (int32_t i = 0; i < Form::kStrips; ++i) {
      strips[i] = find_strip(args, first_strip<Form>(args, item) + i);
      if (strips[i].part < args.count) weight_bytes += kStripBytes;
    }
    const int32_t token = at.token_block * Form::kTokens + rank * Form::kBoxTokens;
    for (int32_t chunk = at.first_chunk; chunk < at.end_chunk; ++chunk) {
      barrier_wait(empty + place.barrier, place.parity ^ 1);
      const uint32_t barrier = full + place.barrier;
      const uint32_t to = ring + place.bytes;
      if (copies_weights) {
        barrier_expect(barrier, weight_bytes);
#pragma unroll
        for (int32_t i = 0; i < Form::kStrips; ++i) {
          if (strips[i].part == args.count) continue;
          box_load(to + Form::kWeightsAt + i * kStripBytes, args.weights[strips[i].part],
                   chunk * kChunkK, strips[i].output, barrier);
        }
      } else {
        constexpr uint16_t kAll = (1 << Form::kCluster) - 1;
        barrier_expect(barrier, Form::kWeightsAt);
        box_load_multicast(to + rank * Form::kBoxTokens * kChunkBytes, args.x, chunk * kChunkK,
                           token, barrier, kAll);
      }
      place.advance<Form>();
    }
  }
}

template <class Form>
__global__ void __launch_bounds__(Form::kThreads, 1)
    split_product_kernel(const __grid_constant__ SplitArguments args) {
  extern __shared__ uint8_t shared_memory[];
  const uint32_t ring = (shared_address(shared_memory) + 1023) & ~1023U;
  const uint32_t full = ring + Form::kStages * Form::kStageBytes;
  const uint32_t empty = full + Form::kStages * 8;
  const auto warp = static_cast<int32_t>(warp_uniform(threadIdx.x >> 5));
  if (threadIdx.x == 0) {
    make_ring<Form>(full, empty, 2, Form::kStrips * 4 * Form::kCluster);  // weights and tokens
    barrier_init_fence();
  }
  __syncthreads();
  cluster_sync();
  if (warp >= Form::kStrips * 4) {
    registers_give<32>();
    if (warp < Form::kStrips * 4 + 2 && (threadIdx.x & 31) == 0) {
      produce<Form>(args, warp == Form::kStrips * 4, ring, full, empty);
    }
    __syncwarp();
    await_earlier();
  } else {
    registers_take<160>();
    await_earlier();
    const int32_t lane = threadIdx.x & 31;
    const int32_t items = args.tiles * args.token_blocks * args.apart;
    RingPlace place;
    for (int32_t item = blockIdx.x / Form::kCluster; item < items;
         item += gridDim.x / Form::kCluster) {
      const ItemPlace at = place_item(args, item);
      float total[Form::kTokens / 2];
      sum_tokens<Form>(args, ring, full, empty, warp / 4, at, place, total);
      const StripPlace strip = find_strip(args, first_strip<Form>(args, item) + warp / 4);
      if (strip.part == args.count) continue;
      const SplitPart& part = args.parts[strip.part];
      const int32_t output = strip.output + warp % 4 * 16 + (lane >> 2);
      const int32_t token = at.token_block * Form::kTokens + 2 * (lane & 3);
      const auto store = [&](int64_t row, int32_t to, float sum) {
        if (to >= part.outputs) return;
        if (part.y.data != nullptr) {
          row_of(part.y, row)[to].bits = static_cast<uint16_t>(pack_bf16(sum, 0.0F));
        } else {
          row_of(part.y_f32, row * args.apart + at.part)[to] = sum;
        }
      };
#pragma unroll
      for (int32_t j = 0; j < Form::kTokens / 8; ++j) {
#pragma unroll
        for (int32_t i = 0; i < 2; ++i) {
          const int32_t row = token + 8 * j + i;
          if (row >= args.rows) continue;
          store(row, output, total[4 * j + i]);
          store(row, output + 8, total[4 * j + 2 + i]);
        }
      }
    }
  }
  cluster_sync();  // nobody leaves while others copy to it
}

template <class Form>
void launch(Stream stream, const ProductSet& set, int64_t split, int32_t apart) {
  const auto kernel = split_product_kernel<Form>;
  static const LaunchLimits limits =
      LaunchLimits::of(kernel, Form::kThreads, Form::kSharedBytes, Form::kCluster);
  const Rows<const Bf16>& x = set.products[0].x;
  SplitArguments args{};
  args.x = matrix_map(x.data, x.rows, x.cols, x.stride * 2, 2, Form::kBoxTokens, kChunkK);
  int32_t strips = 0;
  for (int32_t i = 0; i < set.count; ++i) {
    const RowProduct& one = set.products[i];
    args.weights[i] =
        matrix_map(one.weight.data, one.weight.out, x.cols, x.cols * 2, 2, kStrip, kChunkK);
    args.parts[i] = {one.y, one.y_f32, static_cast<int32_t>(one.weight.out),
                     static_cast<int32_t>(divide_up(one.weight.out, kStrip))};
    strips += args.parts[i].strips;
  }
  args.count = set.count;
  args.chunks = static_cast<int32_t>(x.cols / kChunkK);
  args.split_chunks = static_cast<int32_t>(split / kChunkK);
  args.apart = apart;
  args.rows = static_cast<int32_t>(x.rows);
  args.tiles = static_cast<int32_t>(divide_up(strips, Form::kStrips * Form::kCluster));
  args.token_blocks = static_cast<int32_t>(divide_up(x.rows, Form::kTokens));
  const int32_t blocks = args.tiles * args.token_blocks * apart * Form::kCluster;
  launch_kernel(kernel,
                {std::min(blocks, limits.blocks), Form::kThreads,
                 static_cast<size_t>(Form::kSharedBytes), static_cast<uint32_t>(Form::kCluster)},
                stream, args);
}

}  // namespace

bool split_product_supports(const RowProduct& product) {
  const WeightView& w = product.weight;
  return w.format == WeightFormat::kBf16 && !w.folded && product.groups == 1 && !product.quantise &&
         w.in % kChunkK == 0 && is_whole(product.x) &&
         is_whole(static_cast<const Bf16*>(w.data), w.in);
}

void split_products(Stream stream, const ProductSet& set, int64_t split, bool apart) {
  if (set.count == 0 || set.products[0].x.rows == 0) return;
  CHECK(split % kChunkK == 0);
  const int64_t parts = apart ? divide_up(set.products[0].x.cols, split) : 1;
  int64_t strips = 0;
  for (int32_t i = 0; i < set.count; ++i) {
    CHECK(split_product_supports(set.products[i]));
    CHECK(set.products[i].x.data == set.products[0].x.data);
    CHECK(!apart || set.products[i].y.data == nullptr);
    strips += divide_up(set.products[i].weight.out, kStrip);
  }
  // Rounds of all clusters, times what a round takes.
  const auto cost = [&](int64_t tokens, double round) {
    constexpr int64_t kClusters = 66;
    const int64_t items = divide_up(strips, 6) * divide_up(set.products[0].x.rows, tokens) * parts;
    return static_cast<double>(divide_up(items, kClusters)) * round;
  };
  const double of_128 = cost(128, 1.0);
  const double of_64 = cost(64, 0.6);
  const double of_32 = cost(32, 0.45);
  if (of_128 <= std::min(of_64, of_32)) {
    launch<SplitForm<128>>(stream, set, split, static_cast<int32_t>(parts));
  } else if (of_64 <= of_32) {
    launch<SplitForm<64>>(stream, set, split, static_cast<int32_t>(parts));
  } else {
    launch<SplitForm<32>>(stream, set, split, static_cast<int32_t>(parts));
  }
}

}  // namespace galley::kernels::cuda
