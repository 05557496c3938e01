// Products of few rows: all of one input in a launch, with the norm of the input and its Q8, and
// with small work that neither reads nor writes what they do on further blocks. A block takes four
// strips of outputs for 8 rows, and norms and quantises these rows itself.
//
// The sums are those of linear.cu, to the bit, and so are norm and records (norm.cuh, record.cuh).
// Floor: the weights' bytes, or a launch where these are few.
#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/copy_row.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/norm.cuh"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/product_tile.cuh"
#include "kernels/cuda/record.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kNormPad = 8;        // elements, so that rows begin in different banks
constexpr int kRecordVectors = 2;  // widths up to 512
constexpr int64_t kBlockRows = 8;
constexpr int64_t kAgainWidthMax = 1024;  // of weights that more than 8 rows may read
constexpr int64_t kAgainOutputsMax = 2048;

struct FewRows {
  ProductSet set;
  int32_t strip_blocks;  // for each 8 rows
  int32_t product_blocks;
  int32_t record_blocks;
};

// Where rows of an input begin.
struct Input {
  const Bf16* data;
  int64_t stride;
};

template <WeightFormat kFormat, class Ready>
__device__ __forceinline__ void multiply_strip(const RowProduct& p, Input x, int64_t first,
                                               int64_t output, const Ready& ready) {
  x.data += output / (p.weight.out / p.groups) * p.weight.in;
  float sums[1][4];
  product_tile<kFormat, 1>(
      p.weight, output,
      [&](int) -> const Bf16* {
        const int64_t row = threadIdx.x % 32 / 4;
        return first + row < p.x.rows ? x.data + row * x.stride : nullptr;
      },
      p.quantise, ready, sums);
  each_sum<1>(output, sums, [&](int64_t o, int row_in_block, float sum) {
    const int64_t row = first + row_in_block;
    if (o >= p.weight.out || row >= p.x.rows) return;
    if (p.y.data != nullptr) {
      row_at(p.y, row)[o] = narrow(sum);
    } else {
      row_at(p.y_f32, row)[o] = sum;
    }
  });
}

// A warp finds the matrix that its strip of 16 outputs is of. normed: rows from `first`, if normed
// here. ready() is called once, when the first weights are asked for.
template <class Ready>
__device__ __forceinline__ void multiply(const ProductSet& set, int64_t strip, int64_t first,
                                         const Bf16* normed, const Ready& ready) {
  for (int32_t i = 0; i < set.count; ++i) {
    const RowProduct& one = set.products[i];
    const int64_t strips = (one.weight.out + kTileOutputs - 1) / kTileOutputs;
    if (strip >= strips) {
      strip -= strips;
      continue;
    }
    const Input x = normed != nullptr ? Input{normed, one.x.cols + kNormPad}
                                      : Input{row_at(one.x, first), one.x.stride};
    const int64_t output = strip * kTileOutputs;
    switch (one.weight.format) {
      case WeightFormat::kFp8Tile32:
        return multiply_strip<WeightFormat::kFp8Tile32>(one, x, first, output, ready);
      case WeightFormat::kFp4Row32:
        return multiply_strip<WeightFormat::kFp4Row32>(one, x, first, output, ready);
      default:
        return multiply_strip<WeightFormat::kBf16>(one, x, first, output, ready);
    }
  }
  ready();
}

__global__ void __launch_bounds__(kThreads) few_rows_kernel(const __grid_constant__ FewRows args) {
  extern __shared__ __align__(16) uint8_t shared[];
  const ProductSet& set = args.set;
  int32_t block = static_cast<int32_t>(blockIdx.x);
  if (block < args.product_blocks) {
    const int64_t first = block / args.strip_blocks * kBlockRows;
    const int64_t strip = block % args.strip_blocks * int64_t{kWarps} + threadIdx.x / 32;
    Bf16* normed =
        set.norm_weight != nullptr ? reinterpret_cast<Bf16*>(shared) : static_cast<Bf16*>(nullptr);
    multiply(set, strip, first, normed, [&] {
      await_earlier();
      if (normed == nullptr) return;
      const Rows<const Bf16>& x = set.products[0].x;
      const int64_t rows = min(kBlockRows, x.rows - first);
      for (int64_t row = threadIdx.x / 32; row < rows; row += kWarps) {
        norm_row<true>(row_at(x, first + row), x.cols, set.norm_weight, set.norm_eps,
                       normed + row * (x.cols + kNormPad), threadIdx.x % 32, 32,
                       [](float sum) { return warp_sum(sum); });
      }
      __syncthreads();
    });
    return;
  }
  await_earlier();
  block -= args.product_blocks;
  if (block < args.record_blocks) {
    const WindowKeys& keys = set.window_keys;
    const int64_t row = int64_t{block} * kWarps + threadIdx.x / 32;
    if (row >= keys.x.rows) return;
    make_record<Record::kWindow, kRecordVectors, true>(
        {keys.x, keys.norm_weight, keys.eps, keys.angles.cos, keys.angles.sin, nullptr,
         keys.records},
        row);
    return;
  }
  copy_row<kThreads>(set.copies[block - args.record_blocks]);
}

}  // namespace

bool takes_few_rows(const RowProduct& p) {
  if (!takes_strips(p)) return false;
  return p.x.rows <= kBlockRows ||
         (p.x.rows <= ProductSet::kRowsMax && p.weight.in <= kAgainWidthMax &&
          p.weight.out <= kAgainOutputsMax);
}

bool rides_along(const WindowKeys& keys) {
  return is_whole(keys.x) && is_whole(keys.norm_weight, keys.x.cols) && keys.x.cols % 32 == 0 &&
         keys.x.cols <= 8 * 32 * kRecordVectors && keys.x.rows <= ProductSet::kRowsMax &&
         2 * keys.angles.cos.cols <= keys.x.cols;
}

bool norms_along(Rows<const Bf16> x, const Bf16* norm_weight) {
  return is_whole(x) && is_whole(norm_weight, x.cols) && x.rows <= ProductSet::kRowsMax &&
         x.cols <= ProductSet::kQuantisedWidthMax && x.cols <= kWarpNormWidthMax;
}

void launch_few_rows(const ProductSet& set, Stream stream) {
  int64_t strips = 0;
  for (int32_t i = 0; i < set.count; ++i) {
    const RowProduct& one = set.products[i];
    CHECK(takes_few_rows(one) && one.x.rows == set.products[0].x.rows);
    CHECK(set.norm_weight == nullptr ||
          (one.x.data == set.products[0].x.data && norms_along(one.x, set.norm_weight)));
    strips += divide_up(one.weight.out, kTileOutputs);
  }
  const int64_t strip_blocks = divide_up(strips, kWarps);
  const int64_t row_blocks = divide_up(set.products[0].x.rows, kBlockRows);
  const FewRows args{set, static_cast<int32_t>(strip_blocks),
                     static_cast<int32_t>(strip_blocks * row_blocks),
                     static_cast<int32_t>(divide_up(set.window_keys.x.rows, kWarps))};
  const int64_t blocks = args.product_blocks + args.record_blocks + set.copy_count;
  if (blocks == 0) return;
  const Rows<const Bf16>& x = set.products[0].x;
  const size_t shared =
      set.norm_weight == nullptr
          ? 0
          : static_cast<size_t>(std::min(kBlockRows, x.rows) * (x.cols + kNormPad)) * sizeof(Bf16);
  launch_kernel(few_rows_kernel, {blocks, kThreads, shared}, stream, args);
}

}  // namespace galley::kernels::cuda
