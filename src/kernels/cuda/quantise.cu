// Quantisers and records.
//
// Floor: a row read once, a record written once. A warp has a record: lane l the vectors of 8
// channels l, l + 32, ...; a group of 32 is then four neighbouring lanes, one of 16 two, and its
// maximum two exchanges or one. A maximum has no order, scales are powers of two but for Q4e4,
// whose divisions are true ones: so all bits are plain/'s where no norm comes before (a norm's
// sum has an order of its own).
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/quantise.h"
#include "kernels/cuda/record.cuh"
#include "kernels/cuda/rope.cuh"
#include "kernels/cuda/row.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int kWarps = 4;  // of a block, a record each

template <Record kRecord, int kVectors, bool kWhole>
__global__ void __launch_bounds__(kWarps* kWarp) record_kernel(RecordArguments args) {
  await_earlier();
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (row < args.x.rows) make_record<kRecord, kVectors, kWhole>(args, row);
}

template <Record kRecord>
void write_records(Stream stream, Rows<const Bf16> x, const Bf16* norm_weight, float eps,
                   const RopeAngles& angles, uint8_t* const* destination, Rows<uint8_t> records) {
  CHECK(x.cols % 32 == 0 && x.cols <= kRecordWidthMax && 2 * angles.cos.cols <= x.cols);
  if (x.rows == 0) return;
  const auto grid = static_cast<unsigned>(divide_up(x.rows, kWarps));
  const bool whole = is_whole(x) && (norm_weight == nullptr || is_whole(norm_weight, x.cols));
  const auto launch = [&](auto kernel) {
    launch_kernel(
        kernel, {grid, kWarps * kWarp}, stream,
        RecordArguments{x, norm_weight, eps, angles.cos, angles.sin, destination, records});
  };
  if (!whole) {
    launch(record_kernel<kRecord, kRecordWidthMax / 8 / kWarp, false>);
  } else if (x.cols <= 256) {
    launch(record_kernel<kRecord, 1, true>);
  } else if (x.cols <= 512) {
    launch(record_kernel<kRecord, 2, true>);
  } else {
    launch(record_kernel<kRecord, kRecordWidthMax / 8 / kWarp, true>);
  }
}

// A thread has 8 channels; a group of 32, or what the row's end leaves of it, is four threads.
template <bool kWhole>
__global__ void __launch_bounds__(256)
    q8_kernel(Rows<const Bf16> x, Rows<uint8_t> codes, Rows<uint8_t> scales, int64_t vectors) {
  await_earlier();
  const int64_t item = int64_t{blockIdx.x} * 256 + threadIdx.x;
  const int64_t row = item / vectors;
  const int64_t vector = item % vectors;
  const bool inside = row < x.rows;
  const uint4 raw = inside ? load8<kWhole>(row_of(x, row), vector, x.cols) : uint4{};
  const Float8 value = widen8(raw);
  const uint32_t scale = q8_scale(value);
  if (!inside || vector * 8 >= x.cols) return;
  const uint2 word = q8_codes(value, scale);
  uint8_t* at = row_of(codes, row) + vector * 8;
  if constexpr (kWhole) {
    *reinterpret_cast<uint2*>(at) = word;
  } else {
    for (int i = 0; i < 8 && vector * 8 + i < x.cols; ++i) {
      at[i] = static_cast<uint8_t>((i < 4 ? word.x : word.y) >> (8 * (i % 4)));
    }
  }
  if (vector % 4 == 0) row_of(scales, row)[vector / 4] = static_cast<uint8_t>(scale);
}

// A head is `lanes` neighbouring lanes, so a warp has 32 / lanes heads.
template <bool kWhole>
__global__ void __launch_bounds__(256)
    index_queries_kernel(Rows<Bf16> x, int32_t heads, Rows<const float> cosines,
                         Rows<const float> sines) {
  await_earlier();
  const int64_t row = blockIdx.x;
  const auto width = static_cast<unsigned>(x.cols) / static_cast<unsigned>(heads);
  const unsigned vectors = width / 8;  // of a head, a multiple of 4
  const unsigned item = blockIdx.y * 256U + threadIdx.x;
  const unsigned head = item / vectors;
  const unsigned vector = item % vectors;
  const bool inside = head < static_cast<unsigned>(heads);
  Bf16* query = row_of(x, row) + head * width;
  const uint4 raw = inside ? load8<kWhole>(query, vector, width) : uint4{};
  const Float8 value =
      widen8(turn8(raw, vector, width, 2 * cosines.cols, row_of(cosines, row), row_of(sines, row)));
  const uint32_t scale = q4e8_scale(value);
  if (!inside) return;
  const float inverse = e8m0_inverse(scale);
  const float factor = e8m0_value(scale);
  Float8 simulated;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    simulated.v[i] = __uint_as_float(e2m1_rounded(value.v[i] * inverse)) * 0x1p126F * factor;
  }
  store8<kWhole>(query, vector, width, narrow8(simulated));
}

}  // namespace

void quantise_q8(Stream stream, Rows<const Bf16> x, Rows<uint8_t> codes, Rows<uint8_t> scales) {
  CHECK(codes.cols == x.cols && scales.cols == divide_up(x.cols, 32));
  if (x.rows == 0) return;
  const int64_t vectors = divide_up(x.cols, 32) * 4;
  const auto grid = static_cast<unsigned>(divide_up(x.rows * vectors, 256));
  const bool whole =
      is_whole(x) && reinterpret_cast<uintptr_t>(codes.data) % 8 == 0 && codes.stride % 8 == 0;
  if (whole) {
    launch_kernel(q8_kernel<true>, {grid, 256}, stream, x, codes, scales, vectors);
  } else {
    launch_kernel(q8_kernel<false>, {grid, 256}, stream, x, codes, scales, vectors);
  }
}

void window_keys(Stream stream, Rows<const Bf16> x, const Bf16* norm_weight, float eps,
                 const RopeAngles& angles, Rows<uint8_t> records) {
  write_records<Record::kWindow>(stream, x, norm_weight, eps, angles, nullptr, records);
}

void global_keys(Stream stream, Rows<const Bf16> latent, const RopeAngles& angles,
                 uint8_t* const* destination) {
  write_records<Record::kGlobal>(stream, latent, nullptr, 0.0F, angles, destination, {});
}

void index_keys(Stream stream, Rows<const Bf16> x, const Bf16* norm_weight, float eps,
                const RopeAngles& angles, uint8_t* const* destination) {
  write_records<Record::kIndex>(stream, x, norm_weight, eps, angles, destination, {});
}

void index_queries(Stream stream, Rows<Bf16> x, int32_t heads, const RopeAngles& angles) {
  const int64_t width = x.cols / heads;
  CHECK(x.cols % heads == 0 && width % 32 == 0 && 2 * angles.cos.cols <= width);
  if (x.rows == 0) return;
  const dim3 grid(static_cast<unsigned>(x.rows), static_cast<unsigned>(divide_up(x.cols, 8 * 256)));
  if (is_whole(x)) {
    launch_kernel(index_queries_kernel<true>, {grid, 256}, stream, x, heads, angles.cos,
                  angles.sin);
  } else {
    launch_kernel(index_queries_kernel<false>, {grid, 256}, stream, x, heads, angles.cos,
                  angles.sin);
  }
}

}  // namespace galley::kernels::cuda
