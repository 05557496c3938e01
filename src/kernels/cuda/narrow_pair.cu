// An output's two projections, of few rows of a narrow model: a block has eight rows and all
// outputs, so that the second product's inputs never leave it.
//
// Floor: a launch, and the latency of rows, product, Q8 and product. A warp has a strip of 16
// outputs of each and unpacks both before the wait. The sums are those of narrow_strip.cuh, to the
// bit. It takes 3.7 to 4.2 us of a layer of 256 rows, where two launches (few_rows.cu) took 6.8.
#include "base/check.h"
#include "kernels/cuda/copy_row.cuh"
#include "kernels/cuda/lone_strip.cuh"
#include "kernels/cuda/narrow_pair.h"
#include "kernels/cuda/narrow_strip.cuh"
#include "kernels/cuda/ordered_launch.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int kWarps = 16;
constexpr int kThreads = 32 * kWarps;
constexpr int kRows = 8;
constexpr int kInnerBlocks = 2;  // of 64 inputs
constexpr int kOuterBlocks = 4;
constexpr int64_t kRowsMax = ProductSet::kRowsMax;
constexpr int64_t kInputMax = 512;  // of all groups
constexpr int64_t kOutputsMax = kWarps * kTileOutputs;
constexpr int kInputPitch = kInputMax + kPreparedPad;
constexpr int kBetweenPitch = kOuterBlocks * kTileK + kPreparedPad;

struct PairShared {
  alignas(16) Bf16 x[kRows * kInputPitch];
  alignas(16) Bf16 between[kRows * kBetweenPitch];
  alignas(16) Bf16 quantised[kRows * kBetweenPitch];
};

// Eight rows from `x` on, times a strip's weights.
template <int kBlocks>
__device__ __forceinline__ void multiply_rows(const StripOperands<kBlocks>& weights, const Bf16* x,
                                              int pitch, int64_t cols, float (&sums)[1][4]) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int e = 0; e < 4; ++e) sums[0][e] = 0.0F;
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    if (block * kTileK >= cols) break;
    const int k = block * kTileK + 16 * (lane % 4);
    uint4 low = {};
    uint4 high = {};
    if (k < cols) {
      const auto* from = reinterpret_cast<const uint4*>(x + lane / 4 * pitch + k);
      low = from[0];
      high = from[1];
    }
    const uint32_t b[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t a[4] = {weights.upper[block][2 * j], weights.lower[block][2 * j],
                             weights.upper[block][2 * j + 1], weights.lower[block][2 * j + 1]};
      multiply_add(sums[0], a, b[2 * j], b[2 * j + 1]);
    }
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    narrow_pair_kernel(const __grid_constant__ NarrowPair args, int32_t row_blocks) {
  __shared__ PairShared shared;
  const RowProduct& inner = args.inner;
  const RowProduct& outer = args.outer;
  const int warp = static_cast<int>(threadIdx.x / 32);
  if (static_cast<int32_t>(blockIdx.x) >= row_blocks) {  // a warp a copy
    await_earlier();
    const int64_t copy = (static_cast<int64_t>(blockIdx.x) - row_blocks) * kWarps + warp;
    if (copy < args.copy_count) copy_row<32>(args.copies[copy], threadIdx.x % 32);
    return;
  }
  const int64_t output = warp * kTileOutputs;
  const bool has_inner = output < inner.weight.out;
  const bool has_outer = output < outer.weight.out;
  StripOperands<kInnerBlocks> inner_weights;
  StripOperands<kOuterBlocks> outer_weights;
  if (has_inner) inner_weights.load_strip(inner.weight, output);
  if (has_outer) outer_weights.load_strip(outer.weight, output);
  const int64_t first = int64_t{blockIdx.x} * kRows;
  const auto rows = static_cast<int>(min(int64_t{kRows}, inner.x.rows - first));
  const auto vectors = static_cast<int>(inner.x.cols / 8);
  await_earlier();
  for (int item = static_cast<int>(threadIdx.x); item < rows * vectors; item += kThreads) {
    const int row = item / vectors;
    const int vector = item % vectors;
    *reinterpret_cast<uint4*>(shared.x + row * kInputPitch + vector * 8) =
        reinterpret_cast<const uint4*>(row_at(inner.x, first + row))[vector];
  }
  __syncthreads();
  float sums[1][4];
  if (has_inner) {
    const int64_t group = output / (inner.weight.out / inner.groups);
    multiply_rows(inner_weights, shared.x + group * inner.weight.in, kInputPitch, inner.weight.in,
                  sums);
    each_sum<1>(output, sums, [&](int64_t o, int row, float sum) {
      const Bf16 value = narrow(sum);
      shared.between[row * kBetweenPitch + o] = value;
      if (row < rows) row_at(inner.y, first + row)[o] = value;
    });
  }
  __syncthreads();
  const Bf16* between = shared.between;
  if (outer.quantise) {
    prepare_rows<kThreads>(
        rows, outer.weight.in, [&](int row) { return shared.between + row * kBetweenPitch; },
        nullptr, shared.quantised);
    static_assert(sizeof(shared.quantised) == sizeof(shared.between));
    between = shared.quantised;
    __syncthreads();
  }
  if (!has_outer) return;
  const int pitch =
      outer.quantise ? static_cast<int>(prepared_pitch(outer.weight.in)) : kBetweenPitch;
  multiply_rows(outer_weights, between, pitch, outer.weight.in, sums);
  each_sum<1>(output, sums, [&](int64_t o, int row, float sum) {
    if (row < rows) row_at(outer.y, first + row)[o] = narrow(sum);
  });
}

bool is_narrow_product(const RowProduct& p, int64_t in_max) {
  return p.y.data != nullptr && !p.weight.folded && takes_few_rows(p) && p.weight.in <= in_max &&
         p.weight.in % 32 == 0 && p.weight.out <= kOutputsMax &&
         p.weight.out % (p.groups * kTileOutputs) == 0;
}

}  // namespace

bool begins_narrow_pair(const RowProduct& inner) {
  return inner.x.rows > 1 && inner.x.rows <= kRowsMax && !inner.quantise &&
         is_packed_input(inner.x) && inner.x.cols <= kInputMax &&
         is_narrow_product(inner, kInnerBlocks * kTileK);
}

bool is_narrow_pair(const NarrowPair& pair) {
  const RowProduct& outer = pair.outer;
  return begins_narrow_pair(pair.inner) && outer.x.data == pair.inner.y.data &&
         outer.x.rows == pair.inner.x.rows && outer.x.cols == pair.inner.weight.out &&
         outer.groups == 1 && is_narrow_product(outer, kOuterBlocks * kTileK);
}

void launch_narrow_pair(const NarrowPair& pair, Stream stream) {
  CHECK(is_narrow_pair(pair));
  const int64_t row_blocks = (pair.inner.x.rows + kRows - 1) / kRows;
  const int64_t copy_blocks = (pair.copy_count + kWarps - 1) / kWarps;
  launch_kernel(narrow_pair_kernel, {row_blocks + copy_blocks, kThreads}, stream, pair,
                static_cast<int32_t>(row_blocks));
}

}  // namespace galley::kernels::cuda
