// The grouped product for at most 16 rows an expert: four warpgroups share one strip of 64 slots.
//
// Decode of few tokens touches few experts, and 256-slot tiles of 8 experts are 144 for 132
// multiprocessors: the second wave costs half the time. Here a strip (64 slots) is the piece of
// work, and its chunks go to the four warpgroups in turn. Each leaves its partial products, one
// chunk each, in shared memory, and one warpgroup adds them in the order of the chunks: the bits
// are those of grouped_product.cuh, whose fma of an exact product is this very addition.
#pragma once

#include "kernels/cuda/grouped_product.cuh"

namespace galley::kernels::cuda {

template <int kTokensIn, int kChunksMaxIn, ResultForm kResultIn>
struct NarrowForm {
  static constexpr int kTokens = kTokensIn;
  static constexpr ResultForm kResult = kResultIn;
  static constexpr int kChunksMax = kChunksMaxIn;
  static constexpr int kThreads = 4 * 128 + 128;
  static constexpr int kCodesAt = kTokens * kChunk;
  static constexpr int kTailAt = kCodesAt + kFp4Codes;
  static constexpr int kScalesAt = kTailAt + kFp4Shifts;
  static constexpr int kStageBytes = (kScalesAt + kTokens * 4 + 1023) / 1024 * 1024;
  static constexpr int kPartialBytes = kTokens * kStripSlots * 4;
  static constexpr int kRoom = 227 * 1024 - 2048 - kChunksMax * kPartialBytes;
  static constexpr int kStages =
      kRoom / kStageBytes / 4 * 4 < 32 ? kRoom / kStageBytes / 4 * 4 : 32;
  static constexpr int kSharedBytes = kStages * kStageBytes + kChunksMax * kPartialBytes + 2048;
};

template <class Form>
__global__ void __launch_bounds__(Form::kThreads, 1)
    grouped_narrow_kernel(const __grid_constant__ ProductArguments args) {
  constexpr int kTokens = Form::kTokens;
  constexpr int kSharing = 512;
  constexpr int kComplete = 1;
  constexpr int kFree = 2;
  extern __shared__ uint8_t shared_memory[];
  const uint32_t begin = shared_address(shared_memory);
  uint8_t* ring = shared_memory + (((begin + 1023) & ~1023U) - begin);
  uint8_t* partials = ring + Form::kStages * Form::kStageBytes;
  uint8_t* table = partials + Form::kChunksMax * Form::kPartialBytes;  // a multiple of 1,024
  const uint32_t full = shared_address(table) + 128;
  const uint32_t empty = full + Form::kStages * 8;
  const int32_t warp = threadIdx.x >> 5;
  const int32_t lane = threadIdx.x & 31;

  fill_shift_table(table);
  if (threadIdx.x == 0) {
    for (int32_t stage = 0; stage < Form::kStages; ++stage) {
      barrier_init(full + stage * 8, 1);
      barrier_init(empty + stage * 8, 4);
    }
    barrier_init_fence();
  }
  __syncthreads();

  const int32_t strips = args.slots / kStripSlots;
  const int32_t items = strips * block_total(args, kTokens);
  if (warp >= 16) {
    registers_give<32>();
    // Four threads copy, each for one warpgroup: an issue costs more time than a chunk lasts.
    if (lane == 0) {
      int32_t counter = 0;
      for (int32_t item = blockIdx.x; item < items; item += gridDim.x) {
        const TokenBlock block = block_at(args, item / strips, kTokens);
        const int32_t strip = item % strips;
        const uint8_t* weights = args.weights + block.expert * args.expert_bytes +
                                 static_cast<int64_t>(strip / 4) * args.chunks * fp4_chunk_bytes() +
                                 fp4_codes_at(strip % 4);
        const uint32_t rows = (block.rows + 7) & ~7;
        for (int32_t chunk = (warp - counter) & 3; chunk < args.chunks; chunk += 4) {
          const int32_t at = counter + chunk;
          const int32_t place = at % Form::kStages;
          const uint32_t stage = shared_address(ring) + place * Form::kStageBytes;
          const uint32_t barrier = full + place * 8;
          const int64_t row = chunk * args.x_rows + block.row;
          barrier_wait(empty + place * 8, ((at / Form::kStages) & 1) ^ 1);
          barrier_expect(barrier, kFp4Codes + kFp4Shifts + rows * (kChunk + 4));
          bulk_load(stage + Form::kCodesAt, weights + chunk * fp4_chunk_bytes(),
                    kFp4Codes + kFp4Shifts, barrier);
          bulk_load(stage, args.x + row * kChunk, rows * kChunk, barrier);
          bulk_load(stage + Form::kScalesAt, args.x_scale + row, rows * 4, barrier);
        }
        counter += args.chunks;
      }
    }
    __syncwarp();
    return;
  }

  registers_take<112>();
  const int32_t group = warp / 4;
  const int32_t thread = threadIdx.x & 127;
  const uint32_t ring_address = shared_address(ring);
  int32_t counter = 0;  // chunks of earlier items
  int32_t turn = 0;     // who adds
  for (int32_t item = blockIdx.x; item < items; item += gridDim.x, turn = (turn + 1) % 4) {
    const TokenBlock block = block_at(args, item / strips, kTokens);
    const int32_t strip = item % strips;
    bool waited = item == static_cast<int32_t>(blockIdx.x) || group == (turn + 3) % 4;
    for (int32_t chunk = (group - counter) & 3; chunk < args.chunks; chunk += 4) {
      const int32_t at = counter + chunk;
      const int32_t place = at % Form::kStages;
      const uint8_t* stage = ring + place * Form::kStageBytes;
      barrier_wait(full + place * 8, (at / Form::kStages) & 1);
      OperandA a;
      unpack_fp4(stage + Form::kCodesAt, shared_address(table), a);
      float partial[kTokens / 2];
      const uint64_t b = swizzled_descriptor(ring_address + place * Form::kStageBytes);
      wgmma_fence();
#pragma unroll
      for (int32_t j = 0; j < 4; ++j) {
        Wgmma<kTokens, true>::run(partial, a[j], b + 2 * j, j > 0);
      }
      wgmma_commit();
      const auto* scales =
          reinterpret_cast<const float2*>(stage + Form::kScalesAt) + (threadIdx.x & 3);
      float2 scale[kTokens / 8];
#pragma unroll
      for (int32_t j = 0; j < kTokens / 8; ++j) scale[j] = scales[4 * j];
      if (!waited) {
        named_sync(kFree, kSharing);
        waited = true;
      }
      wgmma_wait<0>();
      __syncwarp();
      if (lane == 0) barrier_arrive(empty + place * 8);
      auto* out = reinterpret_cast<float4*>(partials + chunk * Form::kPartialBytes) + thread;
#pragma unroll
      for (int32_t j = 0; j < kTokens / 8; ++j) {
        out[j * 128] = {partial[4 * j] * scale[j].x, partial[4 * j + 1] * scale[j].y,
                        partial[4 * j + 2] * scale[j].x, partial[4 * j + 3] * scale[j].y};
      }
    }
    if (!waited) named_sync(kFree, kSharing);
    counter += args.chunks;
    if (group == turn) {
      named_sync(kComplete, kSharing);
      float sum[kTokens / 2];
#pragma unroll
      for (int32_t i = 0; i < kTokens / 2; ++i) sum[i] = 0.0F;
#pragma unroll 8
      for (int32_t chunk = 0; chunk < args.chunks; ++chunk) {
        const auto* in =
            reinterpret_cast<const float4*>(partials + chunk * Form::kPartialBytes) + thread;
#pragma unroll
        for (int32_t j = 0; j < kTokens / 8; ++j) {
          const float4 value = in[j * 128];
          sum[4 * j] += value.x;
          sum[4 * j + 1] += value.y;
          sum[4 * j + 2] += value.z;
          sum[4 * j + 3] += value.w;
        }
      }
      if (item + static_cast<int32_t>(gridDim.x) < items) named_arrive(kFree, kSharing);
      const int32_t slot = strip * kStripSlots + (thread >> 5) * 16 + (lane >> 2);
      const float* scales = args.row_scale + static_cast<int64_t>(block.expert) * args.slots + slot;
      store_strip<Form::kResult, kTokens>(args, block, strip * kStripSlots, 0,
                                          {__ldg(scales), __ldg(scales + 8)}, sum);
    } else {
      named_arrive(kComplete, kSharing);
    }
  }
}

}  // namespace galley::kernels::cuda
