// Core attention of narrow heads (a small model's) by the tensor cores: eight heads of a row are
// the rows of both products, so a block of eight warps has a row and eight heads.
//
// Floor: the latency of a row's loads: argument, selection, page, record. Keys are decoded once, to
// bf16, where they are exact, by all threads: a thread has eight channels of a key and asks for
// four of them at a time. Then a warp has eight keys' scores, then a head's softmax, then eight
// channels of all heads' values. Sums over channels and keys are single chains of the tensor cores
// in order of the row's list, so the bits depend on the row alone. The stabiliser leaves the sink
// out; probabilities enter the denominator in f32 and the values as bf16, as in the reference.
//
// On an H200, 247 rows of 8 heads of 64 and up to 128 keys end 9 us behind the kernel before them,
// where the ordinary units took 29; one row takes 5. Tried: keys that no launch in front can be
// writing read before the wait, past the L1; 10.1 us of such a step instead of 8.1, since eight
// lanes share the sectors of a record, which only the L1 gives them at once.
#pragma once

#include "kernels/cuda/mma_bf16.cuh"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/rope.cuh"
#include "kernels/cuda/row.cuh"
#include "kernels/cuda/sm90.cuh"
#include "kernels/ops.h"

namespace galley::kernels::cuda {

struct NarrowAttention {
  Rows<const Bf16> q;
  bool turns;  // q is not yet rotated
  const float* sink;
  AttentionShape shape;
  float scale;
  RopeAngles angles;
  const AttentionRow* rows;
  Rows<Bf16> o;
};

constexpr int kNarrowHeads = 8;  // a block
constexpr int kNarrowThreads = 32 * kNarrowHeads;
constexpr int kNarrowKeyPad = 8;  // bf16, so that rows begin in different banks

// Where a block's keys, scores, probabilities and denominators lie.
struct NarrowPlaces {
  int32_t keys_padded;
  int32_t key_pitch;    // bf16
  int32_t score_pitch;  // floats
  int32_t share_pitch;  // bf16

  __host__ __device__ NarrowPlaces(int32_t head_dim, int32_t keys_max)
      : keys_padded((keys_max + 15) / 16 * 16),
        key_pitch(head_dim + kNarrowKeyPad),
        score_pitch(keys_padded + 4),
        share_pitch(keys_padded + 8) {}
  __host__ __device__ int32_t scores_at() const { return keys_padded * key_pitch * 2; }
  __host__ __device__ int32_t shares_at() const {
    return scores_at() + kNarrowHeads * score_pitch * 4;
  }
  __host__ __device__ int32_t denominators_at() const {
    return shares_at() + kNarrowHeads * share_pitch * 2;
  }
  __host__ __device__ int32_t bytes() const { return denominators_at() + kNarrowHeads * 4; }
};

// Eight channels of a key as stored, with the code of their scale.
struct StoredKey {
  uint2 codes;
  uint32_t scale;
};

__device__ __forceinline__ void load_window_key(const uint8_t* record, int32_t width,
                                                int32_t vector, StoredKey& key) {
  const uint8_t* from = record + vector * 8;
  if (reinterpret_cast<uintptr_t>(from) % 2 == 0) {
    const auto* halves = reinterpret_cast<const uint16_t*>(from);
    key.codes = {halves[0] | static_cast<uint32_t>(halves[1]) << 16,
                 halves[2] | static_cast<uint32_t>(halves[3]) << 16};
  } else {
    key.codes = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      key.codes.x |= static_cast<uint32_t>(from[i]) << (8 * i);
      key.codes.y |= static_cast<uint32_t>(from[i + 4]) << (8 * i);
    }
  }
  key.scale = record[width + vector / 4];
}

__device__ __forceinline__ void load_global_key(const uint8_t* record, int32_t width,
                                                int32_t vector, StoredKey& key) {
  const uint8_t* from = record + vector * 4;
  if (reinterpret_cast<uintptr_t>(from) % 4 == 0) {
    key.codes.x = *reinterpret_cast<const uint32_t*>(from);
  } else {
    key.codes.x = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) key.codes.x |= static_cast<uint32_t>(from[i]) << (8 * i);
  }
  key.scale = record[width / 2 + vector / 2];  // of 16 channels
}

__device__ __forceinline__ uint4 decode_window_key(const StoredKey& key) {
  const float scale = e8m0_value(key.scale);
  const uint32_t words[2] = {key.codes.x, key.codes.y};
  uint32_t pairs[4];
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    const auto two = static_cast<__nv_fp8x2_storage_t>(words[p / 2] >> (16 * (p % 2)));
    const float2 value = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(two, __NV_E4M3)));
    pairs[p] = pack_bf16(value.x * scale, value.y * scale);
  }
  return {pairs[0], pairs[1], pairs[2], pairs[3]};
}

__device__ __forceinline__ uint4 decode_global_key(const StoredKey& key) {
  const float scale = e4m3_value(static_cast<uint8_t>(key.scale));
  uint32_t pairs[4];
#pragma unroll
  for (int p = 0; p < 4; ++p) {
    const uint32_t two = key.codes.x >> (8 * p);
    pairs[p] = pack_bf16(e2m1_value(two & 15U) * scale, e2m1_value(two >> 4 & 15U) * scale);
  }
  return {pairs[0], pairs[1], pairs[2], pairs[3]};
}

// Keys [begin, end) of the first `count` of a row's list to shared memory, zeros behind those.
template <int kWidth>
__device__ __forceinline__ void decode_keys(const AttentionRow& row, int32_t window_count,
                                            int32_t count, int32_t begin, int32_t end,
                                            int32_t pitch, Bf16* keys) {
  constexpr int kVectors = kWidth / 8;
  constexpr int kAhead = 4;
  constexpr int kRecordBytes = kWidth + kWidth / 32;
  const int32_t tasks = end * kVectors;
  const auto slots = static_cast<uint32_t>(row.ring_slots);
  const uint32_t ring_first = static_cast<uint32_t>(row.window_begin) % slots;
  const int64_t own_first = row.window_begin - row.chunk_begin;
  const PagedRecords global = row.global;
  for (int32_t first = begin * kVectors + static_cast<int32_t>(threadIdx.x); first < tasks;
       first += kAhead * kNarrowThreads) {
    int32_t entry[kAhead];
    int64_t page[kAhead];
    StoredKey stored[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int32_t j = (first + i * kNarrowThreads) / kVectors;
      entry[i] = j >= window_count && j < count ? row.selected[j - window_count] : -1;
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      page[i] = entry[i] >= 0 ? global.page_table[entry[i] / global.records_per_page] : 0;
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int32_t task = first + i * kNarrowThreads;
      const int32_t j = task / kVectors;
      const int32_t vector = task % kVectors;
      if (j < min(window_count, count)) {
        const int64_t own = own_first + j;
        const uint8_t* record =
            own >= 0 ? row.chunk + own * kRecordBytes
                     : row.ring + (ring_first + static_cast<uint32_t>(j)) % slots * kRecordBytes;
        load_window_key(record, kWidth, vector, stored[i]);
      } else if (entry[i] >= 0) {
        const uint8_t* record = global.pool + page[i] * global.page_stride +
                                entry[i] % global.records_per_page * int64_t{global.record_bytes};
        load_global_key(record, kWidth, vector, stored[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int32_t task = first + i * kNarrowThreads;
      if (task >= tasks) break;
      const int32_t j = task / kVectors;
      uint4 value = {};
      if (j < min(window_count, count)) {
        value = decode_window_key(stored[i]);
      } else if (j < count) {
        value = decode_global_key(stored[i]);
      }
      *reinterpret_cast<uint4*>(keys + j * pitch + task % kVectors * 8) = value;
    }
  }
}

__device__ __forceinline__ void load_transposed(uint32_t (&r)[2], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(address));
}

// Row `row_index`, `heads` heads (at most eight) from `first_head` on, by a block's first eight
// warps: store(head, channel, pair of channels) from first_head and a head's first channel on.
// ring_early: no kernel of this step has written the row's ring, so its keys are read before the
// wait.
template <int kWidth, class Store>
__device__ __forceinline__ void attend_narrow(const NarrowAttention& args, int64_t row_index,
                                              int32_t first_head, int32_t heads, bool ring_early,
                                              uint8_t* shared, const Store& store) {
  constexpr int kSteps = kWidth / 16;
  const AttentionShape& shape = args.shape;
  const int32_t keys_max = shape.window + shape.selected_max;
  const NarrowPlaces places(kWidth, keys_max);
  auto* keys = reinterpret_cast<Bf16*>(shared);
  auto* scores = reinterpret_cast<float*>(shared + places.scores_at());
  auto* shares = reinterpret_cast<Bf16*>(shared + places.shares_at());
  auto* denominators = reinterpret_cast<float*>(shared + places.denominators_at());
  const AttentionRow row = args.rows[row_index];  // it came with the step: before the wait
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int g = lane / 4;
  const int q = lane % 4;
  const int32_t head = first_head + g;
  const bool has_head = g < heads;
  const auto window_count = static_cast<int32_t>(row.position - row.window_begin + 1);
  int32_t early = 0;
  if (ring_early) {
    early = static_cast<int32_t>(
        max(int64_t{0}, min(int64_t{window_count}, row.chunk_begin - row.window_begin)));
    decode_keys<kWidth>(row, window_count, window_count, 0, early, places.key_pitch, keys);
  }
  await_earlier();
  const int32_t count =
      min(keys_max, window_count + (row.selected_count != nullptr ? *row.selected_count : 0));
  const int32_t padded = (count + 15) / 16 * 16;

  // This lane's queries: of head g, channels 2 q and 2 q + 8 of each 16.
  const auto rotary = static_cast<int32_t>(2 * args.angles.cos.cols);
  const float* cosines = row_at(args.angles.cos, row_index);
  const float* sines = row_at(args.angles.sin, row_index);
  const Bf16* query = row_at(args.q, row_index) + int64_t{head} * kWidth;
  uint32_t queries[kSteps][2];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto* pair = reinterpret_cast<const uint32_t*>(query + step * 16 + half * 8 + 2 * q);
      queries[step][half] = has_head ? *pair : 0;
    }
  }
  decode_keys<kWidth>(row, window_count, count, early, padded, places.key_pitch, keys);
  if (args.turns && has_head) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int turning = step * 16 + half * 8 + 2 * q - (kWidth - rotary);
        if (turning < 0) continue;
        queries[step][half] = turn(queries[step][half], cosines[turning / 2], sines[turning / 2]);
      }
    }
  }
  __syncthreads();

  for (int32_t first = warp * 8; first < padded; first += 8 * kNarrowHeads) {
    float sums[4] = {};
    const auto* key = reinterpret_cast<const uint32_t*>(keys + (first + g) * places.key_pitch) + q;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint32_t a[4] = {queries[step][0], 0, queries[step][1], 0};
      multiply_add(sums, a, key[step * 8], key[step * 8 + 4]);
    }
    *reinterpret_cast<float2*>(scores + g * places.score_pitch + first + 2 * q) = {
        sums[0] * args.scale, sums[1] * args.scale};
  }
  __syncthreads();

  {
    const float* own = scores + warp * places.score_pitch;
    Bf16* share = shares + warp * places.share_pitch;
    float top = -1e30F;
    for (int32_t j = lane; j < count; j += 32) top = fmaxf(top, own[j]);
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, offset));
    }
    float denominator = 0.0F;
    for (int32_t j = lane; j < padded; j += 32) {
      const float p = j < count ? expf(own[j] - top) : 0.0F;
      denominator += p;
      share[j] = narrow(p);
    }
    denominator = warp_sum(denominator);
    if (warp < heads) denominator += expf(args.sink[first_head + warp] - top);
    if (lane == 0) denominators[warp] = denominator;
  }
  __syncthreads();

  const auto* share = reinterpret_cast<const uint32_t*>(shares + g * places.share_pitch) + q;
  for (int first = warp * 8; first < kWidth; first += 8 * kNarrowHeads) {
    float sums[4] = {};
    const uint32_t from = shared_address(keys + lane % 16 * places.key_pitch + first);
#pragma unroll 2
    for (int32_t k = 0; k < padded; k += 16) {
      uint32_t value[2];
      load_transposed(value, from + static_cast<uint32_t>(k * places.key_pitch * 2));
      const uint32_t a[4] = {share[k / 2], 0, share[k / 2 + 4], 0};
      multiply_add(sums, a, value[0], value[1]);
    }
    if (!has_head) continue;
    const float denominator = denominators[g];
    uint32_t pair = pack_bf16(sums[0] / denominator, sums[1] / denominator);
    const int turning = first + 2 * q - (kWidth - rotary);
    if (turning >= 0) pair = turn(pair, cosines[turning / 2], -sines[turning / 2]);
    store(g, first + 2 * q, pair);
  }
}

}  // namespace galley::kernels::cuda
