// The gate's product of many rows by wgmma: logits of all experts, each split's sum one chain from
// zero, splits added in order. The bits are those of route.cu's kernels for few rows.
//
// Floor at the released shape (384 x 5,120), 16,384 rows: 64 GFLOP, 95 us at 680 TFLOP/s.
//
// Design. A cluster of two blocks has all experts of 384 and a block of tokens: experts are A of
// wgmma, 64 a warpgroup, three of them a block; tokens are B, and come to both blocks at once, half
// from each. So a block reads 24 KB of weights and half of 16 KB of tokens for 64 of K, which is
// what the L2 bears. Sums of a split and of those before it are two sets of registers, which three
// warpgroups and 128 tokens leave room for. Blocks of 64 or 32 tokens share weights worse, and are
// taken where larger ones would leave multiprocessors idle.
//
// Measured on an H200, the choice included: 138 us for 16,384 rows, where mma.sync took 345. The
// choice takes about 40 of them, so the product has some 650 TFLOP/s, and is no longer first to
// look at.
#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/gate_product.h"
#include "kernels/cuda/launch_product.cuh"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/ring_place.cuh"
#include "kernels/cuda/row.cuh"
#include "kernels/cuda/sm90.cuh"
#include "kernels/cuda/sm90_memory.cuh"
#include "kernels/cuda/tensor_map.cuh"
#include "kernels/cuda/wgmma_bf16.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int kChunkK = 64;  // of a stage
constexpr int kChunkBytes = kChunkK * 2;
constexpr int kStrip = 64;  // experts of a warpgroup

template <int kTokensIn>
struct GateForm {
  static constexpr int kTokens = kTokensIn;
  static constexpr int kStrips = 3;
  static constexpr int kCluster = 2;
  static constexpr int kOutputs = kStrips * kStrip;
  static constexpr int kThreads = (kStrips + 1) * 128;  // registers are dealt in warpgroups
  static constexpr int kBoxTokens = kTokens / kCluster;
  static constexpr int kWeightsAt = kTokens * kChunkBytes;
  static constexpr int kWeightBytes = kOutputs * kChunkBytes;
  static constexpr int kStageBytes = kWeightsAt + kWeightBytes;
  static constexpr int kStages = (225 * 1024 - 2048) / kStageBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes + 2048;
  static_assert(kBoxTokens % 8 == 0);
};

struct GateProduct {
  CUtensorMap gate;  // boxes of a block's experts x 64
  CUtensorMap x;     // boxes of a block's part of the tokens x 64
  float* logits;
  int32_t chunks;  // of 64
  int32_t split_chunks;
  int32_t experts;
  int32_t rows;
  int32_t tiles;  // of a cluster's experts
  int32_t token_blocks;
};

// One warpgroup's sums over all of K.
template <class Form>
__device__ __forceinline__ void sum_tokens(const GateProduct& args, uint32_t ring, uint32_t full,
                                           uint32_t empty, int32_t strip, RingPlace& place,
                                           float (&total)[Form::kTokens / 2]) {
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t a = warp_uniform(Form::kWeightsAt + strip * kStrip * kChunkBytes);
  const auto release = [&](uint32_t barrier) {
    __syncwarp();
    if (lane < Form::kCluster) barrier_arrive_remote(empty + barrier, lane);
  };
#pragma unroll
  for (int32_t i = 0; i < Form::kTokens / 2; ++i) total[i] = 0.0F;
#pragma unroll 1
  for (int32_t first = 0; first < args.chunks; first += args.split_chunks) {
    float chain[Form::kTokens / 2];
    const int32_t end = min(first + args.split_chunks, args.chunks);
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
__device__ __forceinline__ void produce(const GateProduct& args, bool copies_weights, uint32_t ring,
                                        uint32_t full, uint32_t empty) {
  prefetch_map(copies_weights ? args.gate : args.x);
  if (!copies_weights) await_earlier();
  const auto rank = static_cast<int32_t>(cluster_rank());
  const int32_t items = args.tiles * args.token_blocks;
  RingPlace place;
  for (int32_t item = blockIdx.x / Form::kCluster; item < items;
       item += gridDim.x / Form::kCluster) {
    const int32_t output = (item % args.tiles * Form::kCluster + rank) * Form::kOutputs;
    const int32_t token = item / args.tiles * Form::kTokens + rank * Form::kBoxTokens;
    for (int32_t chunk = 0; chunk < args.chunks; ++chunk) {
      barrier_wait(empty + place.barrier, place.parity ^ 1);
      const uint32_t barrier = full + place.barrier;
      const uint32_t to = ring + place.bytes;
      if (copies_weights) {
        barrier_expect(barrier, Form::kWeightBytes);
        box_load(to + Form::kWeightsAt, args.gate, chunk * kChunkK, output, barrier);
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
    gate_product_kernel(const __grid_constant__ GateProduct args) {
  extern __shared__ uint8_t shared_memory[];
  const uint32_t ring = (shared_address(shared_memory) + 1023) & ~1023U;
  const uint32_t full = ring + Form::kStages * Form::kStageBytes;
  const uint32_t empty = full + Form::kStages * 8;
  const auto warp = static_cast<int32_t>(warp_uniform(threadIdx.x >> 5));
  if (threadIdx.x == 0) {
    for (int32_t stage = 0; stage < Form::kStages; ++stage) {
      barrier_init(full + stage * 8, 2);  // weights and tokens
      barrier_init(empty + stage * 8, Form::kStrips * 4 * Form::kCluster);
    }
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
    const int32_t items = args.tiles * args.token_blocks;
    RingPlace place;
    for (int32_t item = blockIdx.x / Form::kCluster; item < items;
         item += gridDim.x / Form::kCluster) {
      float total[Form::kTokens / 2];
      sum_tokens<Form>(args, ring, full, empty, warp / 4, place, total);
      const int32_t tile =
          item % args.tiles * Form::kCluster + static_cast<int32_t>(cluster_rank());
      const int32_t expert = tile * Form::kOutputs + warp * 16 + (lane >> 2);
      const int32_t token = item / args.tiles * Form::kTokens + 2 * (lane & 3);
#pragma unroll
      for (int32_t j = 0; j < Form::kTokens / 8; ++j) {
#pragma unroll
        for (int32_t i = 0; i < 2; ++i) {
          if (token + 8 * j + i >= args.rows) continue;
          float* to = args.logits + int64_t{token + 8 * j + i} * args.experts;
          if (expert < args.experts) to[expert] = total[4 * j + i];
          if (expert + 8 < args.experts) to[expert + 8] = total[4 * j + 2 + i];
        }
      }
    }
  }
  cluster_sync();  // nobody leaves while others copy to it
}

template <class Form>
void launch(Stream stream, Rows<const Bf16> x, Rows<const Bf16> gate, int64_t split,
            float* logits) {
  const auto kernel = gate_product_kernel<Form>;
  static const LaunchLimits limits =
      LaunchLimits::of(kernel, Form::kThreads, Form::kSharedBytes, Form::kCluster);
  constexpr int64_t kTile = Form::kOutputs * Form::kCluster;
  GateProduct args{};
  args.gate =
      matrix_map(gate.data, gate.rows, gate.cols, gate.stride * 2, 2, Form::kOutputs, kChunkK);
  args.x = matrix_map(x.data, x.rows, x.cols, x.stride * 2, 2, Form::kBoxTokens, kChunkK);
  args.logits = logits;
  args.chunks = static_cast<int32_t>(x.cols / kChunkK);
  args.split_chunks = static_cast<int32_t>(split / kChunkK);
  args.experts = static_cast<int32_t>(gate.rows);
  args.rows = static_cast<int32_t>(x.rows);
  args.tiles = static_cast<int32_t>(divide_up(gate.rows, kTile));
  args.token_blocks = static_cast<int32_t>(divide_up(x.rows, Form::kTokens));
  const int32_t blocks = args.tiles * args.token_blocks * Form::kCluster;
  launch_kernel(kernel,
                {std::min(blocks, limits.blocks), Form::kThreads,
                 static_cast<size_t>(Form::kSharedBytes), static_cast<uint32_t>(Form::kCluster)},
                stream, args);
}

}  // namespace

bool gate_product_supports(Rows<const Bf16> x, Rows<const Bf16> gate) {
  constexpr int64_t kExpertsMin = 128;
  constexpr int64_t kInMin = 1024;
  return gate.rows >= kExpertsMin && x.cols >= kInMin && x.cols % kChunkK == 0 && is_whole(x) &&
         is_whole(gate);
}

void gate_product(Stream stream, Rows<const Bf16> x, Rows<const Bf16> gate, int64_t split,
                  float* logits) {
  CHECK(gate_product_supports(x, gate) && split % kChunkK == 0);
  // Rounds of all clusters, times what a round takes.
  const auto cost = [&](int64_t tokens, double round) {
    constexpr int64_t kClusters = 66;
    return static_cast<double>(divide_up(divide_up(x.rows, tokens), kClusters)) * round;
  };
  const double of_128 = cost(128, 1.0);
  const double of_64 = cost(64, 0.6);
  const double of_32 = cost(32, 0.45);
  if (of_128 <= std::min(of_64, of_32)) {
    launch<GateForm<128>>(stream, x, gate, split, logits);
  } else if (of_64 <= of_32) {
    launch<GateForm<64>>(stream, x, gate, split, logits);
  } else {
    launch<GateForm<32>>(stream, x, gate, split, logits);
  }
}

}  // namespace galley::kernels::cuda
