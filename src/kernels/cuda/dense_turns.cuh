// fp8 products of up to 8 rows: warpgroups multiply the chunks of a sum in turns.
//
// Floor: the weights' bytes, 9.2 us for 5,120 x 8,192.
//
// What limited dense_few_rows.cuh at few rows is a chunk's way through one warpgroup, 150 to 200 ns
// (its barrier, four products, their result's promotion): weights that were all in the L2 already
// made it no faster. So four warpgroups multiply a chunk in four each and leave the products in
// shared memory, and when all are there a thread adds up an output of a row, chunk after chunk, in
// the one order of the sum and with its bits.
//
// A block has 40 slots, so that 5,120 outputs are 128 blocks: five atoms of wgmma's 8 x 128, whose
// 64 rows read what lies behind them too and leave it. Rows in Q8 come with the weights, or, where
// kMakes, every block makes them itself of bf16 by all of its warps while its ring fills: no launch
// in front for it, and weights that are asked for while another kernel still makes the rows.
//
// Measured on one H200, wo_b and the Q8 of its input: at one row 16.1 us before, 11.8 with rows
// made here, 14.2 with a launch for Q8; at two 16.5, 12.8 and 14.2; at eight 16.4, 20 and 15.0. A
// layer's projections: 66.7 us to 62.8 at one row, 67.0 to 63.3 at two, 67.2 to 65.3 at four, 67.5
// to 66.3 at eight.
//
// Gate and up of the shared expert, of one and two rows (96 blocks of pairs of atoms, a gate's and
// what goes up): a step of one sequence takes 0.03 ms less, of two as much, of eight 0.06 more.
//
// Tried:
// - 40 slots with one warpgroup, rows in Q8: as fast as 64 on 80 blocks. Three or two warpgroups:
//   0.6 to 1.2 us slower.
// - wq_b with the norm of its input made by every block, in strips of 128: 13.8 us for 13.7 at one
//   row, 15.3 for 14.1 at four.
// - the rows made once of constants in front of the wait, so that the code is at hand: 1 to 2 us
//   slower; so is asking for what the ring does not hold into the L2 there.
// - cp.async.bulk.prefetch.L2, in a kernel that does nothing else for 8 to 14 us: behind it 34 MB
// are
//   read in 8.9 us for 9.5, 42 MB in 10.7 for 11.4, 60 in 14.5 for 15.4, whatever the size of a
//   request; the L2 gives what it was asked for no faster than memory does.
// - wq_b's weights asked into the L2 by the launch of wq_a while a site works: a layer 0.7 us
//   faster at one row, 1 at 64. wo_b's by the launch of wo_a while attention works: 0.3 us at one
//   row, 2 to 7 slower at 32 and 64. Neither is worth what it takes to know the next launch.
#pragma once

#include "kernels/cuda/copy_row.cuh"
#include "kernels/cuda/dense_turns.h"
#include "kernels/cuda/global_loads.cuh"
#include "kernels/cuda/grouped_product.cuh"
#include "kernels/cuda/ring_place.cuh"
#include "kernels/cuda/tile_codes.cuh"

namespace galley::kernels::cuda {

constexpr int32_t kAtomBytes = 8 * kChunk;  // of 8 slots

template <ResultForm kResultIn, int kRowsIn, bool kMakesIn, int kAtomsIn = 5, int kTurnsIn = 4,
          int kBatchIn = kMakesIn ? 1 : 4, int kRoomKb = 226, int kChunksMaxIn = 64>
struct TurnsForm {
  static constexpr ResultForm kResult = kResultIn;
  static constexpr int kRows = kRowsIn;  // at most 8, which is what wgmma takes
  static constexpr bool kMakes = kMakesIn;
  static constexpr int kAtoms = kAtomsIn;
  static constexpr int kSlots = 8 * kAtoms;
  static constexpr int kTurns = kTurnsIn;  // warpgroups
  static constexpr int kBatch = kBatchIn;  // of their chunks under way together
  static constexpr int kSumThreads = 128 * kTurns;
  static constexpr int kThreads = kSumThreads + 64;  // a warp copies weights, one rows
  static constexpr int kChunksMax = kChunksMaxIn;
  static constexpr int kWeightBytes = kAtoms * kAtomBytes;
  static constexpr int kStageBytes = kWeightBytes + (kMakes ? 0 : kAtomBytes);
  static constexpr int kCodesBytes = kMakes ? kChunksMax * kAtomBytes : 0;
  static constexpr int kPartRow = kSlots + 4;  // slots of a row, in different banks
  static constexpr int kPartBytes = kChunksMax * kRows * kPartRow * 4;
  static constexpr int kScaleBytes = kChunksMax * 8 * 4;  // of the rows, or of the atoms
  static constexpr int kFixed = kCodesBytes + kPartBytes + 2 * kScaleBytes + 1024 + 512;
  // A stage is the same warpgroup's in every lap: who waits for a stage then cannot be two phases
  // of its barrier ahead, which looks like none.
  static constexpr int kRoom = (kRoomKb * 1024 - kFixed) / kStageBytes / kTurns * kTurns;
  static constexpr int kStages = kRoom < 32 ? kRoom : 32 / kTurns * kTurns;
  static constexpr int kSharedBytes = kStages * kStageBytes + kFixed;
  static_assert(kStages >= kTurns * kBatch && kStages % kTurns == 0);
  static_assert(kAtoms <= 8 && kRows <= 8 && kRows * kSlots <= kSumThreads);
  static_assert(kResult != ResultForm::kSwiGlu || kAtoms % 2 == 0);
};

// The rows in Q8, by all of the block's warps but those that copy.
template <class Form>
__device__ __forceinline__ void make_rows(const Rows<const Bf16>& x, const InputTiles& to) {
  constexpr int32_t kWarps = Form::kSumThreads / kWarp;
  constexpr int32_t kTogether = 2;
  const int32_t warp = threadIdx.x >> 5;
  const int32_t lane = threadIdx.x & 31;
  const auto rows = static_cast<int32_t>(x.rows);
  const int32_t each = kWarps / rows;  // warps of a row
  const int32_t vectors = static_cast<int32_t>(x.cols) / 8;
  const int32_t row = warp / each;
  if (row >= rows) return;
#pragma unroll 1
  for (int32_t first = warp % each; first * kWarp < vectors; first += each * kTogether) {
    uint4 raw[kTogether];
#pragma unroll
    for (int32_t i = 0; i < kTogether; ++i) {
      raw[i] = load8<true>(row_of(x, row), (first + i * each) * kWarp + lane, x.cols);
    }
#pragma unroll
    for (int32_t i = 0; i < kTogether; ++i) {
      const int32_t vector = (first + i * each) * kWarp + lane;
      if ((first + i * each) * kWarp >= vectors) break;  // for the whole warp
      const TileCodes codes = tile_codes(raw[i]);
      if (vector < vectors) store_codes(to, row, vector, codes);
    }
  }
}

// Where atoms of a matrix are: 16 of them in a row, with their scales behind (weight_tiles.h).
struct AtomTiles {
  const uint8_t* weights;
  int32_t chunks;

  __device__ __forceinline__ const uint8_t* at(int32_t atom, int32_t chunk) const {
    return weights + (static_cast<int64_t>(atom / 32) * chunks + chunk) * fp8_chunk_bytes() +
           fp8_codes_at(atom / 16 % 2 * 2) + atom % 16 * kAtomBytes;
  }
  __device__ __forceinline__ float scale(int32_t atom, int32_t chunk) const {
    const uint8_t* scales = at(atom / 16 * 16, chunk) + 16 * kAtomBytes;
    return load_constant(reinterpret_cast<const float*>(scales) + atom % 16);
  }
};

// A warpgroup's chunks: the products of each to `parts`, [chunk][row][slot].
template <class Form>
struct TurnsView {
  uint32_t ring;
  uint32_t codes;  // of the rows, where they were made
  float* parts;
  uint32_t full;
  uint32_t empty;
  int32_t rows;
  int32_t atoms;

  template <int kCount>
  __device__ __forceinline__ void multiply(int32_t chunk) const {
    float partial[kCount][4];
#pragma unroll
    for (int32_t i = 0; i < kCount; ++i) {
      const int32_t at = chunk + i * Form::kTurns;
      const int32_t stage = at % Form::kStages;
      const uint32_t place = ring + stage * Form::kStageBytes;
      const uint64_t a = swizzled_descriptor(warp_uniform(place));
      const uint64_t b = swizzled_descriptor(
          warp_uniform(Form::kMakes ? codes + at * kAtomBytes : place + Form::kWeightBytes));
      barrier_wait(full + stage * 8, at / Form::kStages & 1);
      wgmma_fence();
#pragma unroll
      for (int32_t j = 0; j < 4; ++j) {
        Wgmma<8, false>::run(partial[i], advance_descriptor(a, 32 * j),
                             advance_descriptor(b, 32 * j), j > 0);
      }
      wgmma_commit();
    }
    finish<0, kCount>(chunk, partial);
  }

 private:
  template <int kFirst, int kCount>
  __device__ __forceinline__ void finish(int32_t chunk, float (&partial)[kCount][4]) const {
    const int32_t warp = threadIdx.x >> 5 & 3;
    const int32_t lane = threadIdx.x & 31;
    const int32_t token = 2 * (lane & 3);
    wgmma_wait<kCount - 1 - kFirst>();
    const int32_t at = chunk + kFirst * Form::kTurns;
    float* to = parts + (at * Form::kRows + token) * Form::kPartRow + warp * 16 + (lane >> 2);
#pragma unroll
    for (int32_t i = 0; i < 4; ++i) {
      if (token + i % 2 < rows && 2 * warp + i / 2 < atoms) {
        to[i % 2 * Form::kPartRow + i / 2 * 8] = partial[kFirst][i];
      }
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(empty + at % Form::kStages * 8);
    if constexpr (kFirst + 1 < kCount) finish<kFirst + 1, kCount>(chunk, partial);
  }
};

// `product_blocks`, then one for each copy.
template <class Form>
__global__ void __launch_bounds__(Form::kThreads)
    dense_turns_kernel(const __grid_constant__ DenseSet set, int32_t product_blocks) {
  extern __shared__ uint8_t shared_memory[];
  const uint32_t begin = shared_address(shared_memory);
  uint8_t* ring = shared_memory + (((begin + 1023) & ~1023U) - begin);
  uint8_t* codes = ring + Form::kStages * Form::kStageBytes;
  auto* parts = reinterpret_cast<float*>(codes + Form::kCodesBytes);
  float* row_scales = parts + Form::kPartBytes / 4;
  float* atom_scales = row_scales + Form::kScaleBytes / 4;
  const uint32_t ring_address = shared_address(ring);
  const uint32_t full = shared_address(atom_scales) + Form::kScaleBytes;
  const uint32_t empty = full + Form::kStages * 8;
  const auto warp = static_cast<int32_t>(warp_uniform(threadIdx.x >> 5));
  const int32_t lane = threadIdx.x & 31;

  if (static_cast<int32_t>(blockIdx.x) >= product_blocks) {
    await_earlier();
    copy_row<Form::kThreads>(set.copies[static_cast<int32_t>(blockIdx.x) - product_blocks]);
    return;
  }
  int32_t tile = blockIdx.x;
  int32_t which = 0;
  for (; which + 1 < set.count; ++which) {
    const int32_t before = (set.parts[which].slots / 8 + Form::kAtoms - 1) / Form::kAtoms;
    if (tile < before) break;
    tile -= before;
  }
  const DensePart& part = set.parts[which];
  const int32_t chunks = set.common.chunks;
  const int32_t rows = set.common.rows;
  const AtomTiles tiles{part.weights, chunks};
  const int32_t first = tile * Form::kAtoms;
  const int32_t atoms = min(Form::kAtoms, part.slots / 8 - first);

  if (threadIdx.x == 0) {
    make_ring<Form>(full, empty, Form::kMakes ? 1 : 2, 4);
    barrier_init_fence();
  }
  __syncthreads();

  if (warp == Form::kSumThreads / kWarp) {  // weights are constant
    if (lane == 0) {
      // Up to where the 16 end, and behind that.
      const int32_t one = min(atoms, 16 - first % 16);
      RingPlace place;
      for (int32_t chunk = 0; chunk < chunks; ++chunk) {
        const uint32_t to = ring_address + place.bytes;
        const uint32_t barrier = full + place.barrier;
        barrier_wait(empty + place.barrier, place.parity ^ 1);
        barrier_expect(barrier, atoms * kAtomBytes);
        bulk_load(to, tiles.at(first, chunk), one * kAtomBytes, barrier);
        if (one < atoms) {
          bulk_load(to + one * kAtomBytes, tiles.at(first + one, chunk), (atoms - one) * kAtomBytes,
                    barrier);
        }
        place.template advance<Form>();
      }
    }
    __syncwarp();
    return await_earlier();
  }
  if (warp > Form::kSumThreads / kWarp) {
    await_earlier();
    if (Form::kMakes || lane != 0) return;
    RingPlace place;
    for (int32_t chunk = 0; chunk < chunks; ++chunk) {
      barrier_wait(empty + place.barrier, place.parity ^ 1);
      barrier_expect(full + place.barrier, kAtomBytes);
      bulk_load(ring_address + place.bytes + Form::kWeightBytes,
                set.common.x + chunk * set.common.x_rows * kChunk, kAtomBytes,
                full + place.barrier);
      place.template advance<Form>();
    }
    return;
  }
  for (int32_t i = threadIdx.x; i < chunks * 8; i += Form::kSumThreads) {
    atom_scales[i] = tiles.scale(first + min(i % 8, atoms - 1), i / 8);
  }
  await_earlier();
  if constexpr (Form::kMakes) {
    make_rows<Form>(set.raw, {codes, row_scales, 8});
    fence_async_proxy();
    named_sync(1, Form::kSumThreads);
  } else {
    for (int32_t i = threadIdx.x; i < chunks * 8; i += Form::kSumThreads) {
      row_scales[i] = set.common.x_scale[i / 8 * set.common.x_rows + i % 8];
    }
  }
  const TurnsView<Form> view{ring_address, shared_address(codes), parts, full, empty, rows, atoms};
  int32_t chunk = warp / 4;
  for (; chunk + (Form::kBatch - 1) * Form::kTurns < chunks; chunk += Form::kBatch * Form::kTurns) {
    view.template multiply<Form::kBatch>(chunk);
  }
  for (; chunk < chunks; chunk += Form::kTurns) view.template multiply<1>(chunk);
  named_sync(1, Form::kSumThreads);

  const auto row = static_cast<int32_t>(threadIdx.x) / Form::kSlots;
  const auto slot = static_cast<int32_t>(threadIdx.x) % Form::kSlots;
  const bool inside = row < rows && slot / 8 < atoms;
  float sum = 0.0F;
  if (inside) {
#pragma unroll 8
    for (int32_t i = 0; i < chunks; ++i) {
      const float factor = row_scales[i * 8 + row] * atom_scales[i * 8 + slot / 8];
      sum = fmaf(parts[(i * Form::kRows + row) * Form::kPartRow + slot], factor, sum);
    }
  }
  const int32_t atom = first + slot / 8;
  if constexpr (Form::kResult == ResultForm::kSwiGlu) {
    // Of two atoms one has gates, the next one what goes up.
    const float up = __shfl_down_sync(0xffffffffU, sum, 8);
    const int32_t channel = atom / 2 * 8 + slot % 8;
    if (!inside || atom % 2 != 0 || channel >= part.outputs) return;
    static_cast<__nv_bfloat16*>(part.y)[row * part.y_stride + channel] =
        __float2bfloat16(swiglu_of(sum, up, set.common.limit, 1.0F));
    return;
  }
  // Of 16 outputs an atom has every second one.
  const int32_t output = atom / 2 * 16 + slot % 8 * 2 + atom % 2;
  if (!inside || output >= part.outputs) return;
  const int64_t at = row * part.y_stride + output;
  if constexpr (Form::kResult == ResultForm::kF32) {
    static_cast<float*>(part.y)[at] = sum;
  } else {
    static_cast<__nv_bfloat16*>(part.y)[at] = __float2bfloat16(sum);
  }
}

}  // namespace galley::kernels::cuda
