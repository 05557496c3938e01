// The wide product of fp8 tiles (wide_product.cuh) for few rows: warpgroups take a sum in turns.
//
// What limits few rows there is a warpgroup's own latency, 200 to 250 ns for 64 of K: its codes are
// read and widened, and multiplied behind that. Here three warpgroups have the same 64 outputs.
// Each widens the codes of its next stage to registers while another one multiplies; then it takes
// over the sums through shared memory, thread by thread, adds its stage's products and hands them
// on. So the order of the sum and its bits stay, and only products are left on the way.
//
// Measured on one H200, wo_a, stages of four chunks: 11.6 us instead of 13.3 at one row and 13.0 at
// 8, 14.3 for 14.4 at 16, 13.5 for 15.9 at 32. A layer's projections: 66.7 us to 64.6 at one row,
// 77.5 to 76.5 at 16, 77.4 to 75.6 at 32. From 33 rows on the sums are too many to hand over: 19.9
// us for 16.8 at 64, 30 for 20.9 at 128.
//
// Tried:
// - a ring for weights, free once they are in registers, and one for tokens: 11.8 us for 11.5 at 8
//   rows, 12.6 for 13.6 at 32 without clusters and 13.2 with; at 64 two warpgroups 16.4 for 17.1.
// - two warpgroups: 0.1 us slower; four with stages of two chunks: 0.5; three with such stages: 0.4
//   to 0.7 up to 8 rows, 2.3 at 32.
// - eight warps with 8 outputs each and mma.sync (the same bits, whatever the order of codes within
//   its 16 of K): 13.4 to 15.6 us. The compiler puts products and the widening behind each other,
//   and both warps of a scheduler do the same at the same time.
// - of those, blocks of 72 outputs, which leave attention's multiprocessors alone, and small rings,
//   beside which the next launch fits: 2 to 7 us slower inside a layer, where two blocks then share
//   a multiprocessor.
#pragma once

#include "kernels/cuda/wide_product.cuh"

namespace galley::kernels::cuda {

template <int kTokens, int kCluster, int kBatch, int kTurnsIn = 3>
struct WideTurnsForm : WideForm<true, 1, kTokens, kCluster, kBatch> {
  using Base = WideForm<true, 1, kTokens, kCluster, kBatch>;
  static constexpr int kTurns = kTurnsIn;
  static constexpr int kThreads = kTurns * 128 + 64;
  static constexpr int kFactorBytes = kTurns * Base::kFactorBytes;
  static constexpr int kHandedBytes = (kTokens / 2 + 2) * 512;  // sums, and what tells NaN
  static constexpr int kFixed = kFactorBytes + kHandedBytes + 2048;
  static constexpr int kStages = (227 * 1024 - kFixed) / Base::kStageBytes;
  static constexpr int kSharedBytes = kStages * Base::kStageBytes + kFixed;
  static_assert(kStages > kTurns && kStages <= 32);
};

// A warpgroup's stages of one sum. True for the one that had the last stage: it has the sums.
template <class Form, bool kTwice>
__device__ __forceinline__ bool sum_turns(const WideArguments& args, const WideConsumer<Form>& view,
                                          int32_t turn, int32_t first_stage, uint32_t handed,
                                          Fp8Strip<false>& codes, float (&sum)[Form::kTokens / 2]) {
  constexpr int kBatch = Form::kBatch;
  constexpr int kSums = Form::kTokens / 2;
  const int32_t stages = args.chunks / kBatch;
  const uint32_t mine = handed + (threadIdx.x & 127) * 4;
  const int32_t after = turn + 1 == Form::kTurns ? 0 : turn + 1;
#pragma unroll 1
  for (int32_t stage = turn; stage < stages; stage += Form::kTurns) {
    const int32_t at = first_stage + stage;
    const RingPlace place{static_cast<uint32_t>(at % Form::kStages * Form::kStageBytes),
                          static_cast<uint32_t>(at % Form::kStages * 8),
                          static_cast<uint32_t>(at / Form::kStages & 1)};
    WideOperand a[kBatch];
    view.wait(place);
#pragma unroll
    for (int32_t part = 0; part < kBatch; ++part) {
      codes.template widen<kTwice>(view.ring + place.bytes + part * Form::kPartBytes,
                                   stage * kBatch + part, a[part]);
    }
    if (stage > 0) {
      named_sync(2 + turn, 256);
#pragma unroll
      for (int32_t i = 0; i < kSums; ++i) sum[i] = load_shared_float(mine + i * 512);
#pragma unroll
      for (int32_t i = 0; i < 2; ++i) {
        codes.most[i] = __vmaxs2(codes.most[i], load_shared_word(mine + (kSums + i) * 512));
      }
    }
    const uint64_t b = view.tokens(place);
    wgmma_fence();
#pragma unroll
    for (int32_t j = 0; j < 4 * kBatch; ++j) {
      WgmmaBf16<Form::kTokens>::run(sum, a[j / 4][j % 4],
                                    advance_descriptor(b, j / 4 * Form::kPartBytes + j % 4 * 32),
                                    stage > 0 || j > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    hold_registers(sum);
    view.release(place.barrier);
    if (stage + 1 == stages) return true;
#pragma unroll
    for (int32_t i = 0; i < kSums; ++i) store_shared(mine + i * 512, sum[i]);
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) store_shared(mine + (kSums + i) * 512, codes.most[i]);
    named_arrive(2 + after, 256);
  }
  return false;
}

template <class Form, bool kTwice>
__device__ __forceinline__ void wide_turn(const WideArguments& args, const WideConsumer<Form>& view,
                                          int32_t turn, int32_t first_stage, uint32_t factors,
                                          uint32_t handed, int32_t output, int32_t token) {
  float sum[Form::kTokens / 2];
  Fp8Strip<false> codes(Form::kWeightsAt, factors);
  if (!sum_turns<Form, kTwice>(args, view, turn, first_stage, handed, codes, sum)) return;
  spread_nan(codes, sum);
  store_wide<WidePairs::kSwapped, Form::kTokens>(args, output, token, sum);
}

template <class Form>
__global__ void __launch_bounds__(Form::kThreads, 1)
    wide_turns_kernel(const __grid_constant__ WideArguments args) {
  extern __shared__ uint8_t shared_memory[];
  const uint32_t ring = (shared_address(shared_memory) + 1023) & ~1023U;
  const uint32_t factors = ring + Form::kStages * Form::kStageBytes;
  const uint32_t handed = factors + Form::kFactorBytes;
  const uint32_t full = handed + Form::kHandedBytes;
  const uint32_t empty = full + Form::kStages * 8;
  const int32_t warp = static_cast<int32_t>(warp_uniform(threadIdx.x >> 5));

  if (threadIdx.x == 0) {
    make_ring<Form>(full, empty, 2, 4 * Form::kCluster);  // weights and tokens
    barrier_init_fence();
  }
  __syncthreads();
  if constexpr (Form::kCluster > 1) cluster_sync();

  const int32_t items = args.groups * args.group_tiles * args.token_blocks;
  if (warp >= 4 * Form::kTurns) {
    if ((threadIdx.x & 31) == 0) {
      produce_wide<Form>(args, warp == 4 * Form::kTurns, ring, full, empty, items);
    }
    __syncwarp();
    await_earlier();
  } else {
    await_earlier();
    const WideConsumer<Form> view{ring, full, empty, 0};
    const int32_t turn = warp / 4;
    int32_t first_stage = 0;
    for (int32_t index = blockIdx.x / Form::kCluster; index < items;
         index += gridDim.x / Form::kCluster) {
      if (first_stage > 0) named_sync(1, 128 * Form::kTurns);  // the sums before were handed on
      const WideItem item = wide_item<Form>(args, index);
      const int32_t output = wide_output<Form>(args, item);
      const uint32_t mine = factors + warp * (kWideInMax / kWideK) * 8;
      const bool large = make_factors(args, output + warp % 4 * 16, mine);
      if (warpgroup_any(large, 2 + Form::kTurns + turn)) {
        wide_turn<Form, true>(args, view, turn, first_stage, mine, handed, output, item.token);
      } else {
        wide_turn<Form, false>(args, view, turn, first_stage, mine, handed, output, item.token);
      }
      first_stage += args.chunks / Form::kBatch;
    }
  }
  if constexpr (Form::kCluster > 1) cluster_sync();  // nobody leaves while others copy to it
}

}  // namespace galley::kernels::cuda
