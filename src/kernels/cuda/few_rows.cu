// Products of few rows: all of one input in a launch, with the norm of the input and its Q8, and
// with small work that neither reads nor writes what they do on further blocks. A block takes four
// strips of outputs for 8 rows, and norms and quantises these rows itself.
//
// Narrow inputs are prepared by a block once (narrow_strip.cuh). The sums are those of linear.cu,
// to the bit, and so are norm and records (norm.cuh, record.cuh). Floor: the weights' bytes, or a
// launch where these are few.
#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/copy_row.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/narrow_strip.cuh"
#include "kernels/cuda/norm.cuh"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/product_tile.cuh"
#include "kernels/cuda/record.cuh"
#include "kernels/cuda/site_mixes.cuh"

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
  int32_t mix_blocks;
};

// Where rows of an input begin.
struct Input {
  const Bf16* data;
  int64_t stride;
};

__device__ __forceinline__ void store_sums(const RowProduct& p, int64_t first, int64_t output,
                                           const float (&sums)[1][4]) {
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
  store_sums(p, first, output, sums);
}

// A warp finds the matrix that its strip of 16 outputs is of. normed: rows from `first`, if normed
// here. ready() is called once, when the first weights are asked for.
template <class Ready>
__device__ __forceinline__ void multiply(const ProductSet& set, int64_t strip, int64_t first,
                                         const Bf16* normed, const Ready& ready) {
  for (int32_t i = 0; i < set.count; ++i) {
    const RowProduct& one = set.products[i];
    const int64_t strips = strips_of(one.weight);
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

// Further block `block`: mixes of the site, records of window keys, then copies.
__device__ __forceinline__ void do_aside(const FewRows& args, int32_t block) {
  const ProductSet& set = args.set;
  if (block < args.mix_blocks) {
    return make_site_mixes(set.mixes, int64_t{block} * kWarps + threadIdx.x / 32,
                           int64_t{args.mix_blocks} * kWarps);
  }
  block -= args.mix_blocks;
  await_earlier();
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

__global__ void __launch_bounds__(kThreads) few_rows_kernel(const __grid_constant__ FewRows args) {
  extern __shared__ __align__(16) uint8_t shared[];
  const ProductSet& set = args.set;
  const auto block = static_cast<int32_t>(blockIdx.x);
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
  do_aside(args, block - args.product_blocks);
}

// The same of narrow inputs: a block prepares its eight rows once (narrow_strip.cuh).
struct NarrowRows {
  FewRows few;
  bool exact;      // some product reads the rows as they are
  bool quantised;  // some reads their Q8
};

// As many blocks as products of 256 rows have should run at once, though some values are
// spilled: 5.0 us on average of nano's 29 such launches instead of 6.2.
__global__ void __launch_bounds__(kThreads, 4)
    narrow_rows_kernel(const __grid_constant__ NarrowRows args) {
  extern __shared__ __align__(16) uint8_t shared[];
  const FewRows& few = args.few;
  const ProductSet& set = few.set;
  const auto block = static_cast<int32_t>(blockIdx.x);
  if (block >= few.product_blocks) return do_aside(few, block - few.product_blocks);
  const Rows<const Bf16>& x = set.products[0].x;
  const auto pitch = static_cast<int>(prepared_pitch(x.cols));
  auto* exact = reinterpret_cast<Bf16*>(shared);
  Bf16* quantised = args.exact ? exact + kBlockRows * pitch : exact;
  const int64_t first = block / few.strip_blocks * kBlockRows;
  const auto rows = static_cast<int>(min(kBlockRows, x.rows - first));
  const auto ready = [&] {
    await_earlier();
    if (set.norm_weight == nullptr) {
      prepare_rows<kThreads>(
          rows, x.cols, [&](int row) { return row_at(x, first + row); },
          args.exact ? exact : nullptr, args.quantised ? quantised : nullptr);
    } else {
      for (int row = static_cast<int>(threadIdx.x) / 32; row < rows; row += kWarps) {
        norm_row<true>(row_at(x, first + row), x.cols, set.norm_weight, set.norm_eps,
                       exact + row * pitch, static_cast<int>(threadIdx.x) % 32, 32,
                       [](float sum) { return warp_sum(sum); });
      }
      if (args.quantised) {
        __syncthreads();
        prepare_rows<kThreads>(
            rows, x.cols, [&](int row) { return exact + row * pitch; }, nullptr, quantised);
      }
    }
    __syncthreads();
  };
  int64_t strip = block % few.strip_blocks * int64_t{kWarps} + threadIdx.x / 32;
  for (int32_t i = 0; i < set.count; ++i) {
    const RowProduct& one = set.products[i];
    const int64_t strips = strips_of(one.weight);
    if (strip >= strips) {
      strip -= strips;
      continue;
    }
    const int64_t output = strip * kTileOutputs;
    const Bf16* from = one.quantise ? quantised : exact;
    if (one.groups > 1) {
      from += static_cast<uint32_t>(output) / static_cast<uint32_t>(one.weight.out / one.groups) *
              one.weight.in;
    }
    float sums[1][4];
    narrow_strip_any<1>(
        one.weight, output, from, pitch, ready, [&] { return rows; }, sums);
    store_sums(one, first, output, sums);
    return;
  }
  ready();
}

bool is_narrow(const ProductSet& set) {
  const Rows<const Bf16>& x = set.products[0].x;
  if (set.count == 0 || x.cols > kNarrowInputMax || x.cols % 16 != 0 || !is_packed_input(x)) {
    return false;
  }
  for (int32_t i = 0; i < set.count; ++i) {
    const RowProduct& one = set.products[i];
    if (one.x.data != x.data || one.x.cols != x.cols || one.x.stride != x.stride) return false;
  }
  return true;
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

ProductSet normed_products(Rows<const Bf16> x, const Bf16* norm_weight, float eps,
                           std::span<const Product> products) {
  ProductSet set;
  set.norm_weight = norm_weight;
  set.norm_eps = eps;
  if (!norms_along(x, norm_weight)) return set;
  for (const Product& product : products) {
    const RowProduct one = RowProduct::of(x, product);
    if (set.count < ProductSet::kMax && takes_few_rows(one)) set.products[set.count++] = one;
  }
  return set;
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
                     static_cast<int32_t>(divide_up(set.window_keys.x.rows, kWarps)),
                     static_cast<int32_t>(divide_up(set.mixes.rows, kFinishRows * kWarps))};
  const int64_t blocks =
      args.product_blocks + args.mix_blocks + args.record_blocks + set.copy_count;
  if (blocks == 0) return;
  const Rows<const Bf16>& x = set.products[0].x;
  if (is_narrow(set)) {
    NarrowRows narrow{args, set.norm_weight != nullptr, false};
    for (int32_t i = 0; i < set.count; ++i) {
      (set.products[i].quantise ? narrow.quantised : narrow.exact) = true;
    }
    const int kinds = (narrow.exact ? 1 : 0) + (narrow.quantised ? 1 : 0);
    const size_t bytes =
        static_cast<size_t>(kinds * kBlockRows * prepared_pitch(x.cols)) * sizeof(Bf16);
    launch_kernel(narrow_rows_kernel, {blocks, kThreads, bytes}, stream, narrow);
    return;
  }
  const size_t shared =
      set.norm_weight == nullptr
          ? 0
          : static_cast<size_t>(std::min(kBlockRows, x.rows) * (x.cols + kNormPad)) * sizeof(Bf16);
  launch_kernel(few_rows_kernel, {blocks, kThreads, shared}, stream, args);
}

}  // namespace galley::kernels::cuda
