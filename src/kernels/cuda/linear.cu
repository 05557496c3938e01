// Products with dense weights (spec/model.md 0.2), and the quantiser of their
// inputs.
//
// A block of four warps takes 64 outputs of up to 32 rows (product_tile.cuh); the
// warps share the rows through L1. f32 weights, and widths that are no multiple of
// 16, go one warp an output and row on the ordinary units; wide ones to wide_product.cu. Floor: the
// weights' bytes for few rows, the tensor cores for many; what limits this version is the latency
// of its loads, since nothing is fetched ahead.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/product_tile.cuh"
#include "kernels/cuda/reduce.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int kWarps = 4;

// One warp a group of 32 channels.
__global__ void pack_input_kernel(Rows<const Bf16> x, bool quantise, Rows<Bf16> to) {
  await_earlier();
  const int64_t groups = (to.cols + 31) / 32;
  const int64_t task = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32;
  if (task >= x.rows * groups) return;
  const int64_t row = task / groups;
  const int64_t i = task % groups * 32 + threadIdx.x % 32;
  float value = i < x.cols ? widen(row_at(x, row)[i]) : 0.0F;
  if (quantise) {
    const float scale = e8m0_value(q8_scale(warp_max(fabsf(value))));
    value = e4m3_value(q8_code(value, scale)) * scale;
  }
  if (i < to.cols) row_at(to, row)[i] = narrow(value);
}

template <WeightFormat kFormat, int kTiles>
__global__ void __launch_bounds__(32 * kWarps)
    product_kernel(Rows<const Bf16> x, WeightView weight, int64_t group_out, Rows<Bf16> y,
                   Rows<float> y_f32) {
  const int64_t strip = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int64_t output = strip * kTileOutputs;
  if (output >= weight.out) return await_earlier();
  const int64_t first = int64_t{blockIdx.y} * 8 * kTiles;
  // group_out is a multiple of 16 or the whole matrix: a strip lies in one group.
  const int64_t shift = output / group_out * weight.in;
  float sums[kTiles][4];
  product_tile<kFormat, kTiles>(
      weight, output,
      [&](int t) -> const Bf16* {
        const int64_t row = first + 8 * t + threadIdx.x % 32 / 4;
        return row < x.rows ? row_at(x, row) + shift : nullptr;
      },
      false, await_earlier, sums);
  each_sum<kTiles>(output, sums, [&](int64_t o, int row_in_tile, float sum) {
    const int64_t row = first + row_in_tile;
    if (o >= weight.out || row >= x.rows) return;
    if (y.data != nullptr) {
      row_at(y, row)[o] = narrow(sum);
    } else {
      row_at(y_f32, row)[o] = sum;
    }
  });
}

__device__ float weight_value(const WeightView& weight, int64_t o, int64_t i) {
  const auto* bytes = static_cast<const uint8_t*>(weight.data);
  const int64_t blocks = (weight.in + 31) / 32;
  switch (weight.format) {
    case WeightFormat::kFp8Tile32:
      return e4m3_value(bytes[o * weight.in + i]) *
             e8m0_value(weight.scale[o / 32 * blocks + i / 32]);
    case WeightFormat::kFp4Row32: {
      const uint32_t two = bytes[o * (weight.in / 2) + i / 2];
      return e2m1_value(i % 2 == 0 ? two & 15U : two >> 4) *
             e8m0_value(weight.scale[o * blocks + i / 32]);
    }
    case WeightFormat::kBf16:
      return widen(static_cast<const Bf16*>(weight.data)[o * weight.in + i]);
    case WeightFormat::kF32:
      return static_cast<const float*>(weight.data)[o * weight.in + i];
  }
  return 0.0F;
}

__global__ void any_product_kernel(Rows<const Bf16> x, WeightView weight, int64_t group_out,
                                   Rows<Bf16> y, Rows<float> y_f32) {
  await_earlier();
  const int64_t output = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32;
  if (output >= weight.out) return;
  const Bf16* from = row_at(x, blockIdx.y) + output / group_out * weight.in;
  float sum = 0.0F;
  for (int64_t i = threadIdx.x % 32; i < weight.in; i += 32) {
    sum = fmaf(widen(from[i]), weight_value(weight, output, i), sum);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 != 0) return;
  if (y.data != nullptr) {
    row_at(y, blockIdx.y)[output] = narrow(sum);
  } else {
    row_at(y_f32, blockIdx.y)[output] = sum;
  }
}

template <WeightFormat kFormat>
void launch_tiles(const RowProduct& p, int64_t group_out, Stream stream) {
  const auto strips = static_cast<unsigned>((p.weight.out + 16 * kWarps - 1) / (16 * kWarps));
  const int64_t rows = p.x.rows;
  if (rows <= 8) {
    launch_kernel(product_kernel<kFormat, 1>, {dim3(strips, 1), 32 * kWarps}, stream, p.x, p.weight,
                  group_out, p.y, p.y_f32);
  } else {
    launch_kernel(product_kernel<kFormat, 4>,
                  {dim3(strips, static_cast<unsigned>((rows + 31) / 32)), 32 * kWarps}, stream, p.x,
                  p.weight, group_out, p.y, p.y_f32);
  }
}

}  // namespace

void launch_pack_input(Rows<const Bf16> x, bool quantise, Rows<Bf16> to, Stream stream) {
  if (x.rows == 0) return;
  const int64_t threads = x.rows * ((to.cols + 31) / 32) * 32;
  launch_kernel(pack_input_kernel, {static_cast<unsigned>((threads + 255) / 256), 256}, stream, x,
                quantise, to);
}

bool is_packed_input(Rows<const Bf16> x) {
  return reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.stride % 8 == 0;
}

bool takes_strips(const RowProduct& p) {
  return !p.weight.folded && !takes_narrow(p) && !takes_wide(p) && p.weight.in % 16 == 0 &&
         (p.groups == 1 || p.weight.out / p.groups % kTileOutputs == 0) &&
         p.weight.format != WeightFormat::kF32;
}

void launch_product(const RowProduct& p, Stream stream) {
  if (p.x.rows == 0) return;
  if (takes_narrow(p)) {
    ProductSet set;
    set.products[set.count++] = p;
    return launch_narrow(set, stream);
  }
  if (takes_wide(p)) return launch_wide_product(p, stream);
  const int64_t group_out = p.weight.out / p.groups;
  if (!takes_strips(p)) {
    const auto blocks = static_cast<unsigned>((p.weight.out * 32 + 127) / 128);
    launch_kernel(any_product_kernel, {dim3(blocks, static_cast<unsigned>(p.x.rows)), 128}, stream,
                  p.x, p.weight, group_out, p.y, p.y_f32);
    return;
  }
  switch (p.weight.format) {
    case WeightFormat::kFp8Tile32:
      return launch_tiles<WeightFormat::kFp8Tile32>(p, group_out, stream);
    case WeightFormat::kFp4Row32:
      return launch_tiles<WeightFormat::kFp4Row32>(p, group_out, stream);
    default:
      return launch_tiles<WeightFormat::kBf16>(p, group_out, stream);
  }
}

}  // namespace galley::kernels::cuda
