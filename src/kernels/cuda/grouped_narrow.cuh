// The grouped product for at most 8 rows an expert: four warpgroups share one strip of 64 slots.
//
// Floor: the weights' bytes. Decode of few tokens touches few experts, and 256-slot tiles of 8
// experts are 144 for 132 multiprocessors: the second wave costs as much as the first. Here a
// strip is the piece of work (4 to 5 for each multiprocessor), its chunks go to the four
// warpgroups in turn, each with a thread that copies for it. Each leaves its partial products, one
// chunk each, in shared memory, and one warpgroup adds them in the order of the chunks: the bits
// are those of grouped_product.cuh, whose fma of an exact product is this very addition.
//
// Tried: activations through the ring beside the weights, three copies a chunk: a copy costs its
// thread and the copy engine more than its bytes, 326 cycles a chunk where memory would give 213.
// So a block's activations (40 KB at most) stay in shared memory for all its strips, and a chunk
// is one copy.
#pragma once

#include "kernels/cuda/grouped_product.cuh"
#include "kernels/cuda/ring_place.cuh"

namespace galley::kernels::cuda {

template <ResultForm kResultIn>
struct NarrowForm {
  static constexpr int kTokens = 8;
  static constexpr ResultForm kResult = kResultIn;
  static constexpr int kChunksMax = 40;
  static constexpr int kThreads = 4 * 128 + 128;
  static constexpr int kStages = 12;  // a multiple of 4: a stage belongs to one warpgroup
  static constexpr int kStageBytes = kFp4Codes + kFp4Shifts;
  static constexpr int kXBytes = kTokens * kChunk;
  static constexpr int kXScalesAt = kChunksMax * kXBytes;
  static constexpr int kXBufferBytes = kXScalesAt + 2048;
  static constexpr int kPartialBytes = kTokens * kStripSlots * 4;
  static constexpr int kPartialsAt = 2 * kXBufferBytes;
  static constexpr int kRingAt = kPartialsAt + kChunksMax * kPartialBytes;
  static constexpr int kTableAt = (kRingAt + kStages * kStageBytes + 255) / 256 * 256;
  static constexpr int kBarriersAt = kTableAt + 128;
  static constexpr int kSharedBytes = kBarriersAt + 8 * (2 * kStages + 4) + 1024;
};

// Item after item of one block of threads: neighbours, so that most share their activations.
struct NarrowItems {
  int32_t begin;
  int32_t end;
};
__device__ __forceinline__ NarrowItems narrow_items(int64_t items) {
  return {static_cast<int32_t>(items * blockIdx.x / gridDim.x),
          static_cast<int32_t>(items * (blockIdx.x + 1) / gridDim.x)};
}

template <class Form>
__device__ __forceinline__ void narrow_produce(const ProductArguments& args, uint32_t shared,
                                               int32_t group) {
  const uint32_t full = shared + Form::kBarriersAt;
  const uint32_t empty = full + Form::kStages * 8;
  const uint32_t x_full = empty + Form::kStages * 8;
  const uint32_t x_empty = x_full + 16;
  const int32_t lane = threadIdx.x & 31;
  const int32_t strips = args.slots / kStripSlots;
  const NarrowItems items =
      narrow_items(static_cast<int64_t>(strips) * block_total(args, Form::kTokens));
  int32_t counter = 0;
  int32_t blocks_seen = 0;
  for (int32_t item = items.begin; item < items.end; ++item) {
    const TokenBlock block = block_at(args, item / strips, Form::kTokens);
    const int32_t strip = item % strips;
    if (item == items.begin || strip == 0) {
      const uint32_t buffer = blocks_seen & 1;
      const uint32_t x_at = shared + buffer * Form::kXBufferBytes;
      barrier_wait(x_empty + buffer * 8, ((blocks_seen >> 1) & 1) ^ 1);
      if (lane == 0) {
        const int32_t chunks = (args.chunks - group + 3) / 4;
        barrier_expect(x_full + buffer * 8, chunks * (Form::kXBytes + Form::kTokens * 4));
      }
      __syncwarp();
      for (int32_t chunk = group + 4 * lane; chunk < args.chunks; chunk += 128) {
        const int64_t row = chunk * args.x_rows + block.row;
        bulk_load(x_at + chunk * Form::kXBytes, args.x + row * kChunk, Form::kXBytes,
                  x_full + buffer * 8);
        bulk_load(x_at + Form::kXScalesAt + chunk * Form::kTokens * 4, args.x_scale + row,
                  Form::kTokens * 4, x_full + buffer * 8);
      }
      __syncwarp();
      ++blocks_seen;
    }
    if (lane == 0) {
      const uint8_t* weights = args.weights + block.expert * args.expert_bytes +
                               static_cast<int64_t>(strip / 4) * args.chunks * fp4_chunk_bytes() +
                               fp4_codes_at(strip % 4);
      for (int32_t chunk = (group - counter) & 3; chunk < args.chunks; chunk += 4) {
        const int32_t at = counter + chunk;
        const int32_t place = at % Form::kStages;
        barrier_wait(empty + place * 8, ((at / Form::kStages) & 1) ^ 1);
        barrier_expect(full + place * 8, Form::kStageBytes);
        bulk_load(shared + Form::kRingAt + place * Form::kStageBytes,
                  weights + chunk * fp4_chunk_bytes(), Form::kStageBytes, full + place * 8);
      }
    }
    __syncwarp();
    counter += args.chunks;
  }
}

template <class Form>
__global__ void __launch_bounds__(Form::kThreads, 1)
    grouped_narrow_kernel(const __grid_constant__ ProductArguments args) {
  constexpr int kTokens = Form::kTokens;
  constexpr int kSharing = 512;
  constexpr int kComplete = 1;
  constexpr int kFree = 2;
  extern __shared__ uint8_t shared_memory[];
  const uint32_t begin = shared_address(shared_memory);
  uint8_t* base = shared_memory + (((begin + 1023) & ~1023U) - begin);
  const uint32_t shared = shared_address(base);
  const uint32_t full = shared + Form::kBarriersAt;
  const uint32_t empty = full + Form::kStages * 8;
  const uint32_t x_full = empty + Form::kStages * 8;
  const uint32_t x_empty = x_full + 16;
  const int32_t warp = threadIdx.x >> 5;
  const int32_t lane = threadIdx.x & 31;

  fill_shift_table(base + Form::kTableAt);
  if (threadIdx.x == 0) {
    make_ring<Form>(full, empty, 1, 4);
    for (int32_t buffer = 0; buffer < 2; ++buffer) {
      barrier_init(x_full + buffer * 8, 4);
      barrier_init(x_empty + buffer * 8, 16);
    }
    barrier_init_fence();
  }
  __syncthreads();
  await_earlier();
  if (warp >= 16) {
    registers_give<32>();
    narrow_produce<Form>(args, shared, warp - 16);
    return;
  }

  registers_take<112>();
  const int32_t strips = args.slots / kStripSlots;
  const NarrowItems items = narrow_items(static_cast<int64_t>(strips) * block_total(args, kTokens));
  const int32_t group = warp / 4;
  const int32_t thread = threadIdx.x & 127;
  int32_t counter = 0;  // chunks of earlier items
  int32_t turn = 0;     // who adds
  int32_t blocks_seen = 0;
  for (int32_t item = items.begin; item < items.end; ++item, turn = (turn + 1) % 4) {
    const TokenBlock block = block_at(args, item / strips, kTokens);
    const int32_t strip = item % strips;
    if (item == items.begin || strip == 0) {
      barrier_wait(x_full + (blocks_seen & 1) * 8, (blocks_seen >> 1) & 1);
      ++blocks_seen;
    }
    const uint32_t buffer = (blocks_seen - 1) & 1;
    const uint8_t* x = base + buffer * Form::kXBufferBytes;
    bool waited = item == items.begin || group == (turn + 3) % 4;
    for (int32_t chunk = (group - counter) & 3; chunk < args.chunks; chunk += 4) {
      const int32_t at = counter + chunk;
      const int32_t place = at % Form::kStages;
      barrier_wait(full + place * 8, (at / Form::kStages) & 1);
      OperandA a;
      unpack_fp4(load_codes(base + Form::kRingAt + place * Form::kStageBytes),
                 shared + Form::kTableAt, a);
      float partial[kTokens / 2];
      const uint64_t b = swizzled_descriptor(
          warp_uniform(shared + buffer * Form::kXBufferBytes + chunk * Form::kXBytes));
      wgmma_fence();
#pragma unroll
      for (int32_t j = 0; j < 4; ++j) {
        Wgmma<kTokens, true>::run(partial, a[j], advance_descriptor(b, 32 * j), j > 0);
      }
      wgmma_commit();
      // The codes are in registers: the stage is free before the product is done.
      __syncwarp();
      if (lane == 0) barrier_arrive(empty + place * 8);
      const float2 scale =
          reinterpret_cast<const float2*>(x + Form::kXScalesAt + chunk * kTokens * 4)[lane & 3];
      if (!waited) {
        named_sync(kFree, kSharing);
        waited = true;
      }
      wgmma_wait<0>();
      reinterpret_cast<float4*>(base + Form::kPartialsAt + chunk * Form::kPartialBytes)[thread] = {
          partial[0] * scale.x, partial[1] * scale.y, partial[2] * scale.x, partial[3] * scale.y};
    }
    if (!waited) named_sync(kFree, kSharing);
    counter += args.chunks;
    if (item + 1 == items.end || strip + 1 == strips) {
      __syncwarp();
      if (lane == 0) barrier_arrive(x_empty + buffer * 8);
    }
    if (group != turn) {
      named_arrive(kComplete, kSharing);
      continue;
    }
    named_sync(kComplete, kSharing);
    float sum[kTokens / 2] = {0.0F, 0.0F, 0.0F, 0.0F};
#pragma unroll 8
    for (int32_t chunk = 0; chunk < args.chunks; ++chunk) {
      const float4 value = reinterpret_cast<const float4*>(base + Form::kPartialsAt +
                                                           chunk * Form::kPartialBytes)[thread];
      sum[0] += value.x;
      sum[1] += value.y;
      sum[2] += value.z;
      sum[3] += value.w;
    }
    if (item + 1 < items.end) named_arrive(kFree, kSharing);
    const int32_t slot = strip * kStripSlots + (thread >> 5) * 16 + (lane >> 2);
    const float* scales = args.row_scale + static_cast<int64_t>(block.expert) * args.slots + slot;
    store_strip<Form::kResult, kTokens>(args, block, strip * kStripSlots, 0,
                                        {__ldg(scales), __ldg(scales + 8)}, sum);
  }
}

}  // namespace galley::kernels::cuda
