// Quantisers and records.
//
// Floor: a row read once, a record written once. A warp has a record: lane l the vectors of 8
// channels l, l + 32, ...; a group of 32 is then four neighbouring lanes, one of 16 two, and its
// maximum two exchanges or one. A maximum has no order, scales are powers of two but for Q4e4,
// whose divisions are true ones: so all bits are plain/'s where no norm comes before (a norm's
// sum has an order of its own).
#include "kernels/cuda/formats.cuh"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/quantise.h"
#include "kernels/cuda/rope.cuh"
#include "kernels/cuda/row.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int kWarps = 4;  // of a block, a record each

__device__ __forceinline__ float largest(const Float8& x) {
  float amax = 0.0F;
#pragma unroll
  for (int i = 0; i < 8; ++i) amax = fmaxf(amax, fabsf(x.v[i]));
  return amax;
}

// Over `lanes` (2 or 4) neighbouring lanes, in each of them.
__device__ __forceinline__ float group_largest(const Float8& x, int lanes, float floor) {
  float amax = fmaxf(largest(x), floor);
  amax = fmaxf(amax, __shfl_xor_sync(kAllLanes, amax, 1));
  if (lanes == 4) amax = fmaxf(amax, __shfl_xor_sync(kAllLanes, amax, 2));
  return amax;
}

__device__ __forceinline__ uint32_t q8_scale(const Float8& x) {
  return power_of_two_scale(group_largest(x, 4, 1e-4F), 448.0F);
}
__device__ __forceinline__ uint2 q8_codes(const Float8& x, uint32_t scale) {
  const float inverse = e8m0_inverse(scale);
  uint32_t pair[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) pair[i] = e4m3_pair(x.v[2 * i] * inverse, x.v[2 * i + 1] * inverse);
  return {pair[0] | (pair[1] << 16), pair[2] | (pair[3] << 16)};
}

__device__ __forceinline__ uint32_t q4e8_scale(const Float8& x) {
  return power_of_two_scale(group_largest(x, 4, 6.0F * 0x1p-126F), 6.0F);
}
__device__ __forceinline__ uint32_t clamped_e2m1(float value) {
  return e2m1_code(fminf(fmaxf(value, -6.0F), 6.0F));
}
__device__ __forceinline__ uint32_t q4e8_codes(const Float8& x, uint32_t scale) {
  const float inverse = e8m0_inverse(scale);
  uint32_t codes = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) codes |= e2m1_code_of_short(x.v[i] * inverse) << (4 * i);
  return codes;
}

__device__ __forceinline__ uint32_t q4e4_scale(const Float8& x) {
  return e4m3_pair(group_largest(x, 2, 6.0F * 0x1p-9F) / 6.0F, 0.0F) & 255U;
}
__device__ __forceinline__ uint32_t q4e4_codes(const Float8& x, uint32_t scale) {
  const float divisor = e4m3_value(static_cast<uint8_t>(scale));
  uint32_t codes = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) codes |= clamped_e2m1(x.v[i] / divisor) << (4 * i);
  return codes;
}

// A record may start at any byte: `aligned` says whether words may be stored.
__device__ __forceinline__ void store_word(uint8_t* at, uint32_t word, bool aligned) {
  if (aligned) {
    *reinterpret_cast<uint32_t*>(at) = word;
  } else {
    for (int i = 0; i < 4; ++i) at[i] = static_cast<uint8_t>(word >> (8 * i));
  }
}

__device__ __forceinline__ bool is_word_aligned(const void* at) {
  return reinterpret_cast<uintptr_t>(at) % 4 == 0;
}

enum class Record { kWindow, kGlobal, kIndex };

template <Record kRecord>
__device__ __forceinline__ void write_record(const Float8& x, int64_t vector, int64_t width,
                                             uint8_t* record) {
  const bool inside = vector * 8 < width;
  const bool aligned = is_word_aligned(record);
  if constexpr (kRecord == Record::kWindow) {
    const uint32_t scale = q8_scale(x);
    if (!inside) return;
    const uint2 codes = q8_codes(x, scale);
    store_word(record + vector * 8, codes.x, aligned);
    store_word(record + vector * 8 + 4, codes.y, aligned);
    if (vector % 4 == 0) record[width + vector / 4] = static_cast<uint8_t>(scale);
  } else if constexpr (kRecord == Record::kGlobal) {
    const uint32_t scale = q4e4_scale(x);
    if (!inside) return;
    store_word(record + vector * 4, q4e4_codes(x, scale), aligned);
    if (vector % 2 == 0) record[width / 2 + vector / 2] = static_cast<uint8_t>(scale);
  } else {
    const uint32_t scale = q4e8_scale(x);
    if (!inside) return;
    store_word(record + vector * 4, q4e8_codes(x, scale), aligned);
    if (vector % 4 == 0) record[width / 2 + vector / 4] = static_cast<uint8_t>(scale);
  }
}

// norm_weight null: no norm. One of `destination` and `records` says where records go.
template <Record kRecord, int kVectors, bool kWhole>
__global__ void __launch_bounds__(kWarps* kWarp)
    record_kernel(Rows<const Bf16> x, const Bf16* norm_weight, float eps, Rows<const float> cosines,
                  Rows<const float> sines, uint8_t* const* destination, Rows<uint8_t> records) {
  await_earlier();
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (row >= x.rows) return;
  const int lane = threadIdx.x % kWarp;
  uint4 raw[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    raw[i] = load8<kWhole>(row_of(x, row), lane + i * kWarp, x.cols);
  }
  if (norm_weight != nullptr) {
    float squares = 0.0F;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) squares += square_sum(widen8(raw[i]));
    const float inverse = inverse_rms(warp_sum(squares), x.cols, eps);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const Float8 w = widen8(load8<kWhole>(norm_weight, lane + i * kWarp, x.cols));
      Float8 value = widen8(raw[i]);
      for (int e = 0; e < 8; ++e) value.v[e] = value.v[e] * inverse * w.v[e];
      raw[i] = narrow8(value);
    }
  }
  uint8_t* record = destination != nullptr ? destination[row] : row_of(records, row);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int64_t vector = lane + i * kWarp;
    const uint4 turned =
        turn8(raw[i], vector, x.cols, 2 * cosines.cols, row_of(cosines, row), row_of(sines, row));
    write_record<kRecord>(widen8(turned), vector, x.cols, record);
  }
}

template <Record kRecord>
void write_records(Stream stream, Rows<const Bf16> x, const Bf16* norm_weight, float eps,
                   const RopeAngles& angles, uint8_t* const* destination, Rows<uint8_t> records) {
  CHECK(x.cols % 32 == 0 && x.cols <= kRecordWidthMax && 2 * angles.cos.cols <= x.cols);
  if (x.rows == 0) return;
  const auto grid = static_cast<unsigned>(divide_up(x.rows, kWarps));
  const bool whole = is_whole(x) && (norm_weight == nullptr || is_whole(norm_weight, x.cols));
  const auto launch = [&](auto kernel) {
    launch_kernel(kernel, {grid, kWarps * kWarp}, stream, x, norm_weight, eps, angles.cos,
                  angles.sin, destination, records);
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
