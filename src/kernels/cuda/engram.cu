// Engram's two row-wise halves; the product between them is a linear.
//
// Lookup: floor = 264 bytes of each of 24 table rows over the host link (or device memory), 12 KB
// of bf16 written. A thread has 8 codes.
// Write: a block has one stream of one row and keeps stream and key in registers between the sums
// and the update, so each is read once; the value is read by four blocks, three times from L2.
// Floor: 4 streams in and out, 4 keys and a value in.
#include <cmath>

#include "kernels/cuda/await_raised.cuh"
#include "kernels/cuda/engram.h"
#include "kernels/cuda/exponential.cuh"
#include "kernels/cuda/formats.cuh"
#include "kernels/cuda/hyper_connections.h"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/row.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int kLookupThreads = 256;

// One thread, so that waiting takes no room from those who work.
__global__ void await_post_kernel(PostFlag* flag) {
  let_next_begin();
  await_earlier();
  const uint64_t wanted = flag->awaited + 1;
  flag->awaited = wanted;
  await_raised(&flag->raised, wanted);
}

template <bool kWhole>
__global__ void __launch_bounds__(kLookupThreads)
    lookup_kernel(const uint8_t* codes, const uint8_t* scale, int64_t width,
                  Rows<const int64_t> ids, Rows<Bf16> e) {
  let_next_begin();
  await_earlier();
  const int64_t vectors = (width + 7) / 8;
  const int64_t item = int64_t{blockIdx.x} * kLookupThreads + threadIdx.x;
  const int64_t row = item / (vectors * ids.cols);
  if (row >= ids.rows) return;
  const int64_t column = item / vectors % ids.cols;
  const int64_t vector = item % vectors;
  const int64_t id = row_of(ids, row)[column];
  const uint8_t* from = codes + id * width + vector * 8;
  const float factor = e8m0_value(scale[id * ((width + 31) / 32) + vector / 4]);
  uint32_t word[2] = {};
  if constexpr (kWhole) {
    const uint2 raw = *reinterpret_cast<const uint2*>(from);
    word[0] = raw.x;
    word[1] = raw.y;
  } else {
    for (int i = 0; i < 8 && vector * 8 + i < width; ++i) {
      word[i / 4] |= static_cast<uint32_t>(from[i]) << (8 * (i % 4));
    }
  }
  Float8 value;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    value.v[i] = e4m3_value(static_cast<uint8_t>(word[i / 4] >> (8 * (i % 4)))) * factor;
  }
  store8<kWhole>(row_of(e, row) + column * width, vector, width, narrow8(value));
}

// As above, of whole vectors. A row that is brought and kept is written by the one cell that has
// both numbers; no other cell of the call reads that place (hot_rows.h).
__global__ void __launch_bounds__(kLookupThreads)
    lookup_kept_kernel(EngramRows kept, EngramRows staged, int64_t width, const EngramCell* cells,
                       Rows<Bf16> e) {
  let_next_begin();
  await_earlier();
  const int64_t vectors = width / 8;
  const int64_t columns = e.cols / width;
  const int64_t item = int64_t{blockIdx.x} * kLookupThreads + threadIdx.x;
  const int64_t cell = item / vectors;
  if (cell >= e.rows * columns) return;
  const int64_t vector = item % vectors;
  const int64_t blocks = (width + 31) / 32;
  const EngramCell at = cells[cell];
  const EngramRows& from = at.staged >= 0 ? staged : kept;
  const int64_t row = at.staged >= 0 ? at.staged : at.place;
  const uint2 raw = *reinterpret_cast<const uint2*>(from.codes + row * width + vector * 8);
  const uint8_t scale = from.scale[row * blocks + vector / 4];
  const float factor = e8m0_value(scale);
  const uint32_t word[2] = {raw.x, raw.y};
  Float8 value;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    value.v[i] = e4m3_value(static_cast<uint8_t>(word[i / 4] >> (8 * (i % 4)))) * factor;
  }
  store8<true>(row_of(e, cell / columns) + cell % columns * width, vector, width, narrow8(value));
  if (at.staged < 0 || at.place < 0) return;
  *reinterpret_cast<uint2*>(kept.codes + at.place * width + vector * 8) = raw;
  if (vector % 4 == 0) kept.scale[at.place * blocks + vector / 4] = scale;
}

constexpr int kVectors = 2;

template <bool kWhole>
__global__ void __launch_bounds__(512)
    write_kernel(Rows<const Bf16> kv, const Bf16* q_weight, const Bf16* k_weight,
                 const uint8_t* alive, float eps, float scale, Rows<Bf16> streams,
                 Rows<float> gate) {
  let_next_begin();
  await_earlier();
  __shared__ float scratch[kWarp];
  const int64_t row = blockIdx.x / kStreams;
  const int stream = static_cast<int>(blockIdx.x % kStreams);
  const int64_t hidden = streams.cols / kStreams;
  if (alive[row] == 0) {
    if (gate.data != nullptr && threadIdx.x == 0) row_of(gate, row)[stream] = 0.0F;
    return;
  }
  Bf16* target = row_of(streams, row) + stream * hidden;
  const Bf16* keys = row_of(kv, row) + stream * hidden;
  const Bf16* values = row_of(kv, row) + kStreams * hidden;
  uint4 own[kVectors];
  uint4 value[kVectors];
  float own_squares = 0.0F;
  float key_squares = 0.0F;
  float product = 0.0F;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int64_t vector = threadIdx.x + i * blockDim.x;
    own[i] = load8<kWhole>(target, vector, hidden);
    value[i] = load8<kWhole>(values, vector, hidden);
    const Float8 s = widen8(own[i]);
    const Float8 k = widen8(load8<kWhole>(keys, vector, hidden));
    const Float8 q_w = widen8(load8<kWhole>(q_weight + stream * hidden, vector, hidden));
    const Float8 k_w = widen8(load8<kWhole>(k_weight + stream * hidden, vector, hidden));
    own_squares += square_sum(s);
    key_squares += square_sum(k);
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      product = fmaf(s.v[e] * (q_w.v[e] * k_w.v[e]), k.v[e], product);
    }
  }
  own_squares = block_sum(own_squares, scratch);
  key_squares = block_sum(key_squares, scratch);
  product = block_sum(product, scratch);
  const float nu = inverse_rms(own_squares, hidden, eps) * inverse_rms(key_squares, hidden, eps);
  const float delta = product * nu * scale;
  // copysign: +0 counts as positive.
  const float root = copysignf(sqrtf(fmaxf(fabsf(delta), 1e-6F)), delta);
  const float gamma = sigmoid(root);
  if (gate.data != nullptr && threadIdx.x == 0) row_of(gate, row)[stream] = gamma;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    Float8 s = widen8(own[i]);
    const Float8 v = widen8(value[i]);
    for (int e = 0; e < 8; ++e) s.v[e] = s.v[e] + gamma * v.v[e];
    store8<kWhole>(target, threadIdx.x + i * blockDim.x, hidden, narrow8(s));
  }
}

}  // namespace

void engram_await(Stream stream, PostFlag* flag) {
  launch_kernel(await_post_kernel, {1, 1}, stream, flag);
}

void engram_lookup(Stream stream, const uint8_t* codes, const uint8_t* scale, int64_t width,
                   Rows<const int64_t> ids, Rows<Bf16> e) {
  CHECK(e.cols == ids.cols * width);
  if (ids.rows == 0) return;
  const int64_t items = ids.rows * ids.cols * divide_up(width, 8);
  const auto grid = static_cast<unsigned>(divide_up(items, kLookupThreads));
  if (is_whole(e) && width % 8 == 0 && reinterpret_cast<uintptr_t>(codes) % 8 == 0) {
    launch_kernel(lookup_kernel<true>, {grid, kLookupThreads}, stream, codes, scale, width, ids, e);
  } else {
    launch_kernel(lookup_kernel<false>, {grid, kLookupThreads}, stream, codes, scale, width, ids,
                  e);
  }
}

void engram_lookup_kept(Stream stream, const EngramRows& kept, const EngramRows& staged,
                        int64_t width, const EngramCell* cells, Rows<Bf16> e) {
  CHECK(width % 8 == 0 && e.cols % width == 0 && is_whole(e));
  if (e.rows == 0) return;
  const int64_t items = e.rows * (e.cols / 8);
  const auto grid = static_cast<unsigned>(divide_up(items, kLookupThreads));
  launch_kernel(lookup_kept_kernel, {grid, kLookupThreads}, stream, kept, staged, width, cells, e);
}

void engram_write(Stream stream, Rows<const Bf16> kv, const Bf16* q_weight, const Bf16* k_weight,
                  const uint8_t* alive, float eps, Rows<Bf16> streams, Rows<float> gate) {
  const int64_t hidden = streams.cols / kStreams;
  CHECK(kv.cols == (kStreams + 1) * hidden && hidden <= kEngramHiddenMax);
  if (kv.rows == 0) return;
  const auto scale = static_cast<float>(std::pow(static_cast<double>(hidden), -0.5));
  const auto grid = static_cast<unsigned>(kv.rows * kStreams);
  const int threads = row_threads(hidden, kVectors);
  const bool whole = is_whole(kv) && is_whole(streams) && hidden % 8 == 0 &&
                     is_whole(q_weight, hidden) && is_whole(k_weight, hidden);
  if (whole) {
    launch_kernel(write_kernel<true>, {grid, threads}, stream, kv, q_weight, k_weight, alive, eps,
                  scale, streams, gate);
  } else {
    launch_kernel(write_kernel<false>, {grid, threads}, stream, kv, q_weight, k_weight, alive, eps,
                  scale, streams, gate);
  }
}

}  // namespace galley::kernels::cuda
