// Core attention, the version for every shape (spec/model.md 4.6, 4.7). Narrow heads have the
// tensor cores (attention_narrow.cuh).
//
// A block takes one row and eight heads, a warp a head. Where each key lies (window
// records, then the selection) is looked up once for all of them. Then keys are decoded
// into shared memory: all at once where they fit, as a small model's do, else in tiles of
// 32, once for the scores and once for the values. Between them the softmax over all of a
// row's keys, whose stabiliser leaves the sink out. Probabilities enter the denominator in
// f32 and the values as bf16, as in the reference. A key's place in the sums is its number
// in the row's list, never where it lies, so both ways have the same bits. Floor: the
// tensor cores; this version multiplies on the ordinary units, and one row is bound by the
// latency of its loads: table, page, record.
//
// Tried: tiles for every shape, each key's place looked up for every pair of channels, took
// 30 us for 64 keys of 64 channels and 46 for 128.
#include "kernels/cuda/attention_narrow.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/rope.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int kHeads = 8;  // a block
constexpr int kThreads = 32 * kHeads;
constexpr int kTileKeys = 32;
constexpr size_t kWholeBytesMax = size_t{96} << 10;  // two blocks a multiprocessor
constexpr int kEachMax = 16;                         // channels a lane: heads of at most 512

// The record of a row's key `j`.
__device__ __forceinline__ const uint8_t* record_of(const AttentionRow& row, int64_t width,
                                                    int32_t window_count, int32_t j) {
  if (j < window_count) {
    const int64_t record_bytes = width + width / 32;
    const int64_t position = row.window_begin + j;
    return position >= row.chunk_begin ? row.chunk + (position - row.chunk_begin) * record_bytes
                                       : row.ring + position % row.ring_slots * record_bytes;
  }
  const int32_t entry = row.selected[j - window_count];
  const PagedRecords& g = row.global;
  return g.pool + g.page_table[entry / g.records_per_page] * g.page_stride +
         entry % g.records_per_page * int64_t{g.record_bytes};
}

__device__ __forceinline__ void decode_window_pair(const uint8_t* record, int32_t width,
                                                   int32_t pair, Bf16* to) {
  const float scale = e8m0_value(record[width + 2 * pair / 32]);
  to[0] = narrow(e4m3_value(record[2 * pair]) * scale);
  to[1] = narrow(e4m3_value(record[2 * pair + 1]) * scale);
}

__device__ __forceinline__ void decode_global_pair(const uint8_t* record, int32_t width,
                                                   int32_t pair, Bf16* to) {
  const uint32_t two = record[pair];
  const float scale = e4m3_value(record[width / 2 + 2 * pair / 16]);
  to[0] = narrow(e2m1_value(two & 15U) * scale);
  to[1] = narrow(e2m1_value(two >> 4) * scale);
}

// Keys [begin, end) into rows of the tile, by the whole block: a warp a key. Each kind in a loop of
// its own, so that the loads of several keys are under way at once.
__device__ __forceinline__ void decode_keys(const uint8_t* const* records, int32_t width,
                                            int32_t window_count, int32_t begin, int32_t end,
                                            Bf16* tile) {
  const int32_t pairs = width / 2;
  const int32_t stride = width + 2;
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t cut = min(max(window_count, begin), end);
  for (int32_t pair = lane; pair < pairs; pair += 32) {
#pragma unroll 8
    for (int32_t j = begin + warp; j < cut; j += kHeads) {
      decode_window_pair(records[j], width, pair, tile + (j - begin) * stride + pair * 2);
    }
#pragma unroll 8
    for (int32_t j = cut + warp; j < end; j += kHeads) {
      decode_global_pair(records[j], width, pair, tile + (j - begin) * stride + pair * 2);
    }
  }
}

// Channel `at` of this block's row of queries, which rope may still have to turn.
__device__ __forceinline__ float query_channel(const Rows<const Bf16>& q, bool turns,
                                               const RopeAngles& angles, int64_t width,
                                               int64_t at) {
  const Bf16* row = row_at(q, blockIdx.x);
  const int64_t turning = at % width - (width - 2 * angles.cos.cols);
  if (!turns || turning < 0) return widen(row[at]);
  const int64_t even = at - turning % 2;
  const uint32_t pair = row[even].bits | static_cast<uint32_t>(row[even + 1].bits) << 16;
  const uint32_t turned = turn(pair, row_at(angles.cos, blockIdx.x)[turning / 2],
                               row_at(angles.sin, blockIdx.x)[turning / 2]);
  return turning % 2 == 0 ? low_half(turned) : high_half(turned);
}

// kWhole: all keys at once.
template <bool kWhole>
__global__ void __launch_bounds__(kThreads)
    attention_kernel(Rows<const Bf16> q, bool turns, const float* sink, AttentionShape shape,
                     float scale, RopeAngles angles, const AttentionRow* rows, int32_t keys_max,
                     Rows<Bf16> o) {
  await_earlier();
  extern __shared__ __align__(16) uint8_t shared[];
  const int64_t width = shape.head_dim;
  const int64_t stride = width + 2;
  const int32_t tile_keys = kWhole ? keys_max : kTileKeys;
  auto* records = reinterpret_cast<const uint8_t**>(shared);  // [keys_max]
  auto* all_queries =
      reinterpret_cast<float*>(records + (keys_max + 1) / 2 * 2);        // [kHeads, width]
  float* all_scores = all_queries + kHeads * width;                      // [kHeads, keys_max]
  auto* tile = reinterpret_cast<Bf16*>(all_scores + kHeads * keys_max);  // [tile_keys, stride]
  const AttentionRow& row = rows[blockIdx.x];
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const auto head = static_cast<int32_t>(blockIdx.y * kHeads + warp);
  const bool active = head < shape.heads;
  float* scores = all_scores + warp * keys_max;
  const auto window_count = static_cast<int32_t>(row.position - row.window_begin + 1);
  const int32_t count =
      min(keys_max, window_count + (row.selected_count != nullptr ? *row.selected_count : 0));
  const auto load = [&](int32_t begin) {
    __syncthreads();
    decode_keys(records, static_cast<int32_t>(width), window_count, begin,
                min(count, begin + tile_keys), tile);
    __syncthreads();
  };

  for (int32_t j = static_cast<int32_t>(threadIdx.x); j < count; j += kThreads) {
    records[j] = record_of(row, width, window_count, j);
  }
  for (int64_t at = threadIdx.x; at < kHeads * width; at += kThreads) {
    const int64_t first = int64_t{blockIdx.y} * kHeads * width;
    all_queries[at] =
        first + at < q.cols ? query_channel(q, turns, angles, width, first + at) : 0.0F;
  }
  if constexpr (kWhole) load(0);
  const auto* query = reinterpret_cast<const float4*>(all_queries + warp * width);
  float top = -1e30F;
  for (int32_t begin = 0; begin < count; begin += kTileKeys) {
    if constexpr (!kWhole) load(begin);
    const int32_t j = begin + lane;
    if (j >= count) continue;
    // A lane a key; four chains over the channels, added in order.
    const auto* key = reinterpret_cast<const uint32_t*>(tile + (kWhole ? j : lane) * stride);
    float chain[4] = {};
    for (int64_t i = 0; i < width / 4; ++i) {
      const float4 x = query[i];
      const uint32_t low = key[2 * i];
      const uint32_t high = key[2 * i + 1];
      chain[0] = fmaf(x.x, __uint_as_float(low << 16), chain[0]);
      chain[1] = fmaf(x.y, __uint_as_float(low & 0xFFFF0000U), chain[1]);
      chain[2] = fmaf(x.z, __uint_as_float(high << 16), chain[2]);
      chain[3] = fmaf(x.w, __uint_as_float(high & 0xFFFF0000U), chain[3]);
    }
    const float score = (((chain[0] + chain[1]) + chain[2]) + chain[3]) * scale;
    scores[j] = score;
    top = fmaxf(top, score);
  }
  top = warp_max(top);
  __syncwarp();
  float denominator = 0.0F;
  for (int32_t j = lane; j < count; j += 32) {
    const float p = expf(scores[j] - top);
    denominator += p;
    scores[j] = round_bf16(p);
  }
  denominator = warp_sum(denominator);
  if (active) denominator += expf(sink[head] - top);
  __syncwarp();
  float values[kEachMax] = {};
  for (int32_t begin = 0; begin < count; begin += kTileKeys) {
    if constexpr (!kWhole) load(begin);
    const int32_t end = min(count, begin + kTileKeys);
#pragma unroll 4
    for (int32_t j = begin; j < end; ++j) {
      const float p = scores[j];
      const Bf16* key = tile + (kWhole ? j : j - begin) * stride;
#pragma unroll
      for (int c = 0; c < kEachMax; ++c) {
        const int i = c * 32 + lane;
        if (i < width) values[c] = fmaf(p, widen(key[i]), values[c]);
      }
    }
  }
  if (!active) return;
  // Neighbours turn together: a lane has one channel of a pair, the next lane the other.
  const int64_t pairs = angles.cos.cols;
  Bf16* to = row_at(o, blockIdx.x) + head * width;
#pragma unroll
  for (int c = 0; c < kEachMax; ++c) {
    const int i = c * 32 + lane;
    float value = round_bf16(values[c] / denominator);
    const float other = __shfl_xor_sync(0xFFFFFFFFU, value, 1);
    const int64_t turned = i - (width - 2 * pairs);
    if (turned >= 0 && i < width) {
      const float cosine = row_at(angles.cos, blockIdx.x)[turned / 2];
      const float sine = -row_at(angles.sin, blockIdx.x)[turned / 2];
      value = turned % 2 == 0 ? value * cosine - other * sine : other * sine + value * cosine;
    }
    if (i < width) to[i] = narrow(value);
  }
}

template <int kWidth>
__global__ void __launch_bounds__(kNarrowThreads)
    attention_narrow_kernel(const __grid_constant__ NarrowAttention args) {
  extern __shared__ __align__(16) uint8_t shared[];
  const int32_t first_head = static_cast<int32_t>(blockIdx.y) * kNarrowHeads;
  Bf16* o = row_at(args.o, blockIdx.x) + int64_t{first_head} * kWidth;
  attend_narrow<kWidth>(args, blockIdx.x, first_head,
                        min(kNarrowHeads, args.shape.heads - first_head), false, shared,
                        [o](int32_t head, int32_t channel, uint32_t pair) {
                          *reinterpret_cast<uint32_t*>(o + head * kWidth + channel) = pair;
                        });
}

}  // namespace

// Fixed by the shape: the sums have another order there.
bool narrow_attention_supports(Rows<const Bf16> q, const AttentionShape& shape,
                               Rows<const Bf16> o) {
  return (shape.head_dim == 32 || shape.head_dim == 64) && is_whole(q) && is_whole(o) &&
         static_cast<size_t>(
             NarrowPlaces(shape.head_dim, shape.window + shape.selected_max).bytes()) <=
             kWholeBytesMax;
}

void launch_attention(Rows<const Bf16> q, bool turns, const float* sink,
                      const AttentionShape& shape, const RopeAngles& angles,
                      const AttentionRow* rows, Rows<Bf16> o, Stream stream) {
  if (q.rows == 0) return;
  const int32_t keys_max = shape.window + shape.selected_max;
  const auto scale = static_cast<float>(1.0 / sqrt(static_cast<double>(shape.head_dim)));
  const dim3 grid(static_cast<unsigned>(q.rows),
                  static_cast<unsigned>((shape.heads + kHeads - 1) / kHeads));
  const NarrowAttention narrow{q, turns, sink, shape, scale, angles, rows, o};
  if (narrow_attention_supports(q, shape, o)) {
    const auto kernel =
        shape.head_dim == 32 ? attention_narrow_kernel<32> : attention_narrow_kernel<64>;
    launch_kernel(
        kernel,
        {grid, kNarrowThreads, static_cast<size_t>(NarrowPlaces(shape.head_dim, keys_max).bytes())},
        stream, narrow);
    return;
  }
  const auto shared_bytes = [&](int32_t tile_keys) {
    return static_cast<size_t>((keys_max + 1) / 2 * 2) * sizeof(uint8_t*) +
           sizeof(float) * kHeads * static_cast<size_t>(shape.head_dim + keys_max) +
           static_cast<size_t>(tile_keys) * (static_cast<size_t>(shape.head_dim) + 2) * 2;
  };
  const bool whole = shared_bytes(keys_max) <= kWholeBytesMax;
  const auto kernel = whole ? attention_kernel<true> : attention_kernel<false>;
  launch_kernel(kernel, {grid, kThreads, shared_bytes(whole ? keys_max : kTileKeys)}, stream, q,
                turns, sink, shape, scale, angles, rows, keys_max, o);
}

}  // namespace galley::kernels::cuda
