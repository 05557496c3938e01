// Sparse attention at the released shape: 64 heads x 512 channels, 128 window and up to 512
// selected keys a row, which are the values as well (spec/model.md 4.6, 4.7).
//
// Floor: a row is 84 MFLOP, 113 ns of one H200's bf16 peak (741 TFLOP/s), and 344 kB (packed keys
// 215 kB, q and o 128 kB), 75 ns. So the tensor cores decide, if keys are decoded beside them: a
// block of 64 keys is 2,048 cycles of wgmma, and decoding it about 2.5 instructions for each of
// 32,768 values.
//
// Design: a CTA of four warpgroups, one an SM, takes row after row. One warpgroup decodes keys
// from global memory through registers into two blocks of swizzled bf16 tiles; one multiplies q
// with a block, takes the softmax and leaves probabilities in shared memory; two add up 256 of the
// values' channels each. 64 heads are exactly one wgmma tile, and each key is decoded once for all
// of them. fp4 and fp8 become bf16 by putting their bits in place and one bf16 multiplication with
// the scale, which also mends exponents and subnormals; keys stay 2^32 too small until the end, so
// that no scale overflows. The stabiliser of the softmax moves only when the maximum grows 2^8
// times: accumulators are hardly ever rescaled.
//
// Few rows: two CTAs share a row; both do all scores, each does half of the values' channels. Every
// sum has the same order then, so a row's bits do not depend on the number of rows.
//
// Measured on one H200: 31 us up to 66 rows, 278 TFLOP/s at 128, 313 at 512, 371 in prefill. What
// limits it: decoding, 4,800 cycles a block (docs/benchmarks.md: the parts, and what was tried).
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/attention_sm90.h"
#include "kernels/cuda/ordered_launch.cuh"
#include "kernels/cuda/sm90.cuh"
#include "kernels/cuda/sm90_memory.cuh"
#include "kernels/cuda/wgmma_keys.cuh"

namespace galley::kernels::cuda {
namespace {

constexpr int32_t kHeads = kAttentionHeads;
constexpr int32_t kWidth = kAttentionWidth;
constexpr int32_t kBlock = 64;  // keys
constexpr uint32_t kWindowBytes = window_record_bytes(kWidth);
constexpr uint32_t kGlobalBytes = global_record_bytes(kWidth);
constexpr int32_t kSlots = kAttentionWindowMax + kAttentionSelectedMax;
constexpr int32_t kGroup = 128;  // threads of a warpgroup

// Keys are held as bf16 x 2^-32: so the scale factors of every record are finite in bf16 with the
// exponent offset that undoes the shifted codes below.
constexpr float kKeyUnit = 0x1p32F;
constexpr float kLog2E = 1.4426950408889634F;
constexpr float kMaxStart = -1e30F;

// Shared memory, bytes from a base that is a multiple of 1,024.
constexpr uint32_t kTileBytes = 64 * 128;                      // 64 rows of 64 channels
constexpr uint32_t kKeysBytes = kTileBytes * 8;                // a block: 64 keys of 512 channels
constexpr uint32_t kQAt = 0;                                   // 64 heads x 512
constexpr uint32_t kKeysAt = kQAt + kKeysBytes;                // two blocks
constexpr uint32_t kProbabilityAt = kKeysAt + 2 * kKeysBytes;  // two tiles
constexpr uint32_t kListAt = kProbabilityAt + 2 * kTileBytes;  // two lists of record pointers
constexpr uint32_t kListBytes = kSlots * 8;
constexpr uint32_t kRescaleAt = kListAt + 2 * kListBytes;  // [2][64] f32
constexpr uint32_t kTopAt = kRescaleAt + 512;              // [2][64] f32
constexpr uint32_t kSumAt = kTopAt + 512;                  // [2][64] f32
constexpr uint32_t kBarriersAt = kSumAt + 512;
constexpr uint32_t kSharedBytes = kBarriersAt + 64 + 1024;

__device__ __forceinline__ int32_t selection_of(const AttentionRow& row) {
  return row.selected_count == nullptr ? 0 : *row.selected_count;
}

// Which keys of the list a block holds.
struct Geometry {
  int32_t window;    // keys
  int32_t selected;  // keys
  int32_t window_blocks;
  int32_t blocks;

  __device__ __forceinline__ void set(int32_t window_in, int32_t selected_in) {
    window = window_in;
    selected = selected_in;
    window_blocks = (window + kBlock - 1) / kBlock;
    blocks = window_blocks + (selected + kBlock - 1) / kBlock;
  }
  __device__ __forceinline__ int32_t keys_in(int32_t block) const {
    return block < window_blocks ? min(kBlock, window - block * kBlock)
                                 : min(kBlock, selected - (block - window_blocks) * kBlock);
  }
};

__device__ __forceinline__ Geometry geometry_of(const AttentionRow* row) {
  Geometry g;
  g.set(static_cast<int32_t>(row->position - row->window_begin) + 1, selection_of(*row));
  return g;
}

struct Work {
  AttentionCall call;
  uint32_t shared;  // base
};

template <bool kPair>
__device__ __forceinline__ int32_t first_row() {
  return kPair ? blockIdx.x / 2 : blockIdx.x;
}
template <bool kPair>
__device__ __forceinline__ int32_t row_step() {
  return kPair ? 1 << 30 : gridDim.x;
}

__device__ __forceinline__ uint32_t full_barrier(uint32_t shared, int32_t slot) {
  return shared + kBarriersAt + slot * 8;
}
__device__ __forceinline__ uint32_t empty_barrier(uint32_t shared, int32_t slot) {
  return shared + kBarriersAt + 16 + slot * 8;
}
__device__ __forceinline__ uint32_t probability_barrier(uint32_t shared, int32_t slot) {
  return shared + kBarriersAt + 32 + slot * 8;
}

// --- keys --------------------------------------------------------------------

// A list of where the row's records lie, built in three stages, each of which only uses what the
// one before has loaded long ago.
struct ListBuilder {
  int32_t entry[kAttentionSelectedMax / kGroup];
  int32_t page[kAttentionSelectedMax / kGroup];

  __device__ __forceinline__ void load_entries(const AttentionRow* row) {
    const int32_t count = selection_of(*row);
    const int32_t* selected = row->selected;
#pragma unroll
    for (int32_t i = 0; i < kAttentionSelectedMax / kGroup; ++i) {
      const int32_t at = min(static_cast<int32_t>(threadIdx.x) + i * kGroup, count - 1);
      entry[i] = at >= 0 ? __ldg(selected + at) : 0;
    }
  }
  __device__ __forceinline__ void load_pages(const AttentionRow* row) {
    if (selection_of(*row) == 0) return;
    const auto per_page = static_cast<uint32_t>(row->global.records_per_page);
    const int32_t* table = row->global.page_table;
#pragma unroll
    for (int32_t i = 0; i < kAttentionSelectedMax / kGroup; ++i) {
      page[i] = __ldg(table + static_cast<uint32_t>(entry[i]) / per_page);
    }
  }
  __device__ __forceinline__ static void write_window(const AttentionRow* row, const Geometry& g,
                                                      uint32_t list) {
    const auto thread = static_cast<int32_t>(threadIdx.x);
    if (thread >= g.window_blocks * kBlock) return;
    const int64_t position = row->window_begin + min(thread, g.window - 1);
    const uint8_t* record;
    if (position >= row->chunk_begin) {
      record = row->chunk + (position - row->chunk_begin) * kWindowBytes;
    } else {
      const uint32_t slot =
          static_cast<uint32_t>(position) % static_cast<uint32_t>(row->ring_slots);
      record = row->ring + slot * kWindowBytes;
    }
    store_shared(list + thread * 8, record);
  }
  __device__ __forceinline__ void write_selected(const AttentionRow* row, const Geometry& g,
                                                 uint32_t list) const {
    const auto per_page = static_cast<uint32_t>(row->global.records_per_page);
    const int32_t padded = (g.blocks - g.window_blocks) * kBlock;
#pragma unroll
    for (int32_t i = 0; i < kAttentionSelectedMax / kGroup; ++i) {
      const int32_t at = static_cast<int32_t>(threadIdx.x) + i * kGroup;
      if (at < padded) {
        const uint8_t* record = row->global.pool + page[i] * row->global.page_stride +
                                static_cast<uint32_t>(entry[i]) % per_page * kGlobalBytes;
        store_shared(list + (g.window_blocks * kBlock + at) * 8, record);
      }
    }
  }
};

// What a producer thread decodes next: 32 channels four times for each of two global keys, or for
// one window key (a half block).
struct Unit {
  const uint8_t* first;   // codes of m = 0..3
  const uint8_t* second;  // codes of m = 4..7
  const uint8_t* scales[2];
  uint32_t step;  // bytes between m = 0 and 1

  __device__ __forceinline__ const uint8_t* code(int32_t m) const {
    return (m < 4 ? first : second) + (m & 1) * step + ((m >> 1) & 1) * 64;
  }
};

__device__ __forceinline__ Unit unit_at(uint32_t list, int32_t block, int32_t half, bool window) {
  const int32_t lane = threadIdx.x & 31;
  const int32_t key = (threadIdx.x >> 5) * 16 + (lane & 7);
  const int32_t odd = (lane >> 3) & 1;
  const int32_t upper = lane >> 4;
  const uint32_t at = list + (block * kBlock + key) * 8;
  Unit unit;
  if (window) {
    const uint8_t* record = load_shared_pointer(at + half * 64);
    unit.first = record + upper * 256 + odd * 32;
    unit.second = unit.first + 128;
    unit.scales[0] = record + kWidth;
    unit.scales[1] = record + kWidth;
    unit.step = 16;
  } else {
    const uint8_t* one = load_shared_pointer(at);
    const uint8_t* two = load_shared_pointer(at + 64);
    unit.first = one + upper * 128 + odd * 16;
    unit.second = two + upper * 128 + odd * 16;
    unit.scales[0] = one + kWidth / 2 + upper * 16;
    unit.scales[1] = two + kWidth / 2 + upper * 16;
    unit.step = 32;
  }
  return unit;
}

// The tensor cores keep shared memory so busy that a store takes hundreds of cycles to read its
// registers. Sixteen of them are ready before the first store, so that four stores wait together.
__device__ __forceinline__ void store_pieces(uint32_t (&pairs)[4][4], uint32_t at, uint32_t chunk,
                                             uint32_t key) {
  asm volatile(""
               : "+r"(pairs[0][0]), "+r"(pairs[0][1]), "+r"(pairs[0][2]), "+r"(pairs[0][3]),
                 "+r"(pairs[1][0]), "+r"(pairs[1][1]), "+r"(pairs[1][2]), "+r"(pairs[1][3]),
                 "+r"(pairs[2][0]), "+r"(pairs[2][1]), "+r"(pairs[2][2]), "+r"(pairs[2][3]),
                 "+r"(pairs[3][0]), "+r"(pairs[3][1]), "+r"(pairs[3][2]), "+r"(pairs[3][3]));
#pragma unroll
  for (int32_t q = 0; q < 4; ++q) {
    store_shared(at + ((chunk + q) ^ key) * 16,
                 make_uint4(pairs[q][0], pairs[q][1], pairs[q][2], pairs[q][3]));
  }
}

// 32 channels of a global key to four 16-byte pieces, 8 channels each.
__device__ __forceinline__ void store_global(const uint4& w, uint32_t scale_codes, uint32_t at,
                                             uint32_t chunk, uint32_t key) {
  // E4M3 bits in bf16's place are the value x 2^-120; E2M1 bits x 2^-126.
  const uint32_t shifted = ((scale_codes & 0x7FU) << 4) | ((scale_codes & 0x7F00U) << 12);
  const uint32_t scales =
      multiply_bf16x2(multiply_bf16x2(shifted, 0x7B807B80U), 0x6E806E80U);  // 2^120, 2^94
  const uint32_t low = __byte_perm(scales, scales, 0x1010);
  const uint32_t high = __byte_perm(scales, scales, 0x3232);
  const uint32_t words[4] = {w.x, w.y, w.z, w.w};
  uint32_t pairs[4][4];
#pragma unroll
  for (int32_t q = 0; q < 4; ++q) {
    const uint32_t even = words[q] << 4;
#pragma unroll
    for (int32_t k = 0; k < 4; ++k) {
      // Both codes of byte k on top of a half word each.
      const uint32_t codes = __byte_perm(even, words[q], 0x4000U + 0x1010U * k);
      const uint32_t bits = ((codes >> 6) & 0x01C001C0U) | (codes & 0x80008000U);
      pairs[q][k] = multiply_bf16x2(bits, q < 2 ? low : high);
    }
  }
  store_pieces(pairs, at, chunk, key);
}

// The same of a window key: a and b hold 16 E4M3 codes each.
__device__ __forceinline__ void store_window(const uint4& a, const uint4& b, uint32_t scale_code,
                                             uint32_t at, uint32_t chunk, uint32_t key) {
  // 2^(code - 127) x 2^-32 x 2^120; a scale that does not fit becomes infinite, not wrong.
  const uint32_t scale = min(scale_code + 88U, 255U) << 7;
  const uint32_t both = scale | (scale << 16);
  const uint32_t words[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
  uint32_t pairs[4][4];
#pragma unroll
  for (int32_t q = 0; q < 4; ++q) {
#pragma unroll
    for (int32_t k = 0; k < 4; ++k) {
      const uint32_t word = words[2 * q + k / 2];
      const uint32_t codes = __byte_perm(word, word, k % 2 == 0 ? 0x1000U : 0x3020U);
      const uint32_t bits = ((codes >> 4) & 0x07F007F0U) | (codes & 0x80008000U);
      pairs[q][k] = multiply_bf16x2(bits, both);
    }
  }
  store_pieces(pairs, at, chunk, key);
}

template <bool kPair>
__device__ __forceinline__ void produce_keys(const Work& work) {
  const uint32_t shared = work.shared;
  const int32_t lane = threadIdx.x & 31;
  const uint32_t swizzle = lane & 7;
  const uint32_t chunk = ((lane >> 3) & 1) * 4;
  const uint32_t upper = lane >> 4;
  // Place of this thread's first key and channel in a block.
  const uint32_t place = upper * 4 * kTileBytes + ((threadIdx.x >> 5) * 16 + swizzle) * 128;

  int32_t row = first_row<kPair>();
  if (row >= work.call.row_count) return;
  ListBuilder builder;
  uint32_t list = shared + kListAt;
  Geometry g = geometry_of(work.call.rows + row);
  builder.load_entries(work.call.rows + row);
  builder.write_window(work.call.rows + row, g, list);
  named_sync(1, kGroup);
  int32_t block = 0;
  int32_t half = 0;
  uint4 codes[8];
  uint4 scales[2];
  const auto load_first = [&](uint32_t from, bool window) {
    const Unit unit = unit_at(from, 0, 0, window);
#pragma unroll
    for (int32_t m = 0; m < 8; ++m) codes[m] = load_read_only(unit.code(m));
    scales[0] = load_read_only(unit.scales[0]);
    scales[1] = load_read_only(unit.scales[1]);
  };
  // The window's records are on their way while the selection is looked up.
  if (g.window_blocks > 0) load_first(list, true);
  builder.load_pages(work.call.rows + row);
  builder.write_selected(work.call.rows + row, g, list);
  named_sync(1, kGroup);
  if (g.window_blocks == 0 && g.blocks > 0) load_first(list, false);

  int32_t slot = 0;
  uint32_t parity = 1;  // the first round finds the slots free
  for (;;) {
    const int32_t next_row = row + row_step<kPair>();
    const bool more = next_row < work.call.row_count;
    const AttentionRow* next_descriptor = work.call.rows + next_row;
    Geometry next_g = g;
    const uint32_t next_list = shared + kListAt + (shared + kListAt + kListBytes - list);
    int32_t stage = more ? 0 : 4;
    while (block < g.blocks) {
      // Stages of the next row's list, and where the next unit lies.
      if (stage < 4) {
        const bool last = block + 1 == g.blocks;
        do {
          if (stage == 0) {
            next_g = geometry_of(next_descriptor);
            builder.load_entries(next_descriptor);
          } else if (stage == 1) {
            builder.load_pages(next_descriptor);
          } else if (stage == 2) {
            named_sync(1, kGroup);  // no one reads the list of two rows ago any more
            builder.write_window(next_descriptor, next_g, next_list);
            builder.write_selected(next_descriptor, next_g, next_list);
          } else {
            named_sync(1, kGroup);
          }
          ++stage;
        } while (last && stage < 4);
      }
      const bool window = block < g.window_blocks;
      const int32_t this_half = half;
      if (window && half == 0) {
        half = 1;
      } else {
        half = 0;
        ++block;
      }
      bool next_window = block < g.window_blocks;
      bool has_next = block < g.blocks;
      Unit next;
      if (has_next) {
        next = unit_at(list, block, half, next_window);
      } else if (more) {
        has_next = next_g.blocks > 0;
        next_window = next_g.window_blocks > 0;
        if (has_next) next = unit_at(next_list, 0, 0, next_window);
      }
      if (this_half == 0) barrier_wait(empty_barrier(shared, slot), parity);
      const uint32_t to = shared + kKeysAt + slot * kKeysBytes + place;
      // Half of what was loaded is used up, then loaded anew, all of it at once: a wait for one of
      // these loads would also be one for any younger load that shares its scoreboard.
#pragma unroll
      for (int32_t part = 0; part < 2; ++part) {
        const uint4 bytes = scales[part];
        const uint32_t words[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
        if (window) {
#pragma unroll
          for (int32_t i = 0; i < 2; ++i) {
            const int32_t n = 2 * part + i;
            // Group (upper * 4 + n) * 2 + odd: word upper * 2 + n / 2.
            const uint32_t word = upper != 0 ? words[2 + part] : words[part];
            const uint32_t code = (word >> (i * 16 + chunk * 2)) & 0xFFU;
            store_window(codes[2 * n], codes[2 * n + 1], code,
                         to + this_half * 8 * 128 + n * kTileBytes, chunk, swizzle);
          }
        } else {
#pragma unroll
          for (int32_t n = 0; n < 4; ++n) {
            store_global(codes[part * 4 + n], words[n] >> (chunk * 4),
                         to + part * 8 * 128 + n * kTileBytes, chunk, swizzle);
          }
        }
        if (has_next) {
#pragma unroll
          for (int32_t n = 0; n < 4; ++n) {
            codes[part * 4 + n] = load_read_only(next.code(part * 4 + n));
          }
          scales[part] = load_read_only(next.scales[part]);
        }
      }
      if (!window || this_half == 1) {
        fence_async_proxy();
        barrier_arrive(full_barrier(shared, slot));
        parity ^= slot;
        slot ^= 1;
      }
    }
    if (!more) return;
    // Rows without blocks leave stages undone.
    for (; stage < 4; ++stage) {
      if (stage == 0) {
        next_g = geometry_of(next_descriptor);
        builder.load_entries(next_descriptor);
      } else if (stage == 1) {
        builder.load_pages(next_descriptor);
      } else if (stage == 2) {
        named_sync(1, kGroup);
        builder.write_window(next_descriptor, next_g, next_list);
        builder.write_selected(next_descriptor, next_g, next_list);
      } else {
        named_sync(1, kGroup);
        // Nothing preloaded this row's first unit.
        if (next_g.blocks > 0) load_first(next_list, next_g.window_blocks > 0);
      }
    }
    row = next_row;
    g = next_g;
    list = next_list;
    half = 0;
    block = 0;
  }
}

// --- scores and probabilities ------------------------------------------------

// q of one row on its way to shared memory: warp w brings heads 16 w .. 16 w + 15.
__device__ __forceinline__ void start_query(const Bf16* q, uint32_t shared) {
  const int32_t thread = threadIdx.x & (kGroup - 1);
  const int32_t lane = thread & 31;
#pragma unroll 8
  for (int32_t i = 0; i < 32; ++i) {
    const int32_t head = (thread >> 5) * 16 + i / 2;
    const int32_t piece = i % 2 * 32 + lane;
    copy_16(shared + kQAt + piece / 8 * kTileBytes + head * 128 + ((piece ^ head) & 7) * 16,
            q + head * kWidth + piece * 8);
  }
}

__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFU, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xFFFFFFFFU, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(0xFFFFFFFFU, x, 1);
  return x + __shfl_xor_sync(0xFFFFFFFFU, x, 2);
}
__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// One head's softmax over the blocks of a part. The maximum only moves when it grows by more than
// a factor 2^8: the values then rarely need rescaling, and probabilities up to 2^8 round alike.
struct Softmax {
  float top = kMaxStart;
  float sum = 0.0F;  // of this thread's columns

  // s: this thread's 16 scores of the head at s[4 i + offset], in log2 units after `scale`.
  template <int kOffset>
  __device__ __forceinline__ float update(float (&s)[32], float scale, int32_t keys, bool first) {
    const int32_t column = (threadIdx.x & 3) * 2;
    float best = -INFINITY;
#pragma unroll
    for (int32_t i = 0; i < 8; ++i) {
#pragma unroll
      for (int32_t e = 0; e < 2; ++e) {
        float& value = s[4 * i + kOffset + e];
        value = 8 * i + column + e < keys ? value * scale : -INFINITY;
        best = fmaxf(best, value);
      }
    }
    best = quad_max(best);
    float rescale = 1.0F;
    if (first) {
      top = fmaxf(best, kMaxStart);
      sum = 0.0F;
    } else if (best > top + 8.0F) {
      rescale = power_of_two(top - best);
      top = best;
      sum *= rescale;
    }
#pragma unroll
    for (int32_t i = 0; i < 8; ++i) {
#pragma unroll
      for (int32_t e = 0; e < 2; ++e) {
        float& value = s[4 * i + kOffset + e];
        value = power_of_two(value - top);
        sum += value;
      }
    }
    return rescale;
  }
};

template <bool kPair>
__device__ __forceinline__ void score_keys(const Work& work) {
  const uint32_t shared = work.shared;
  const int32_t thread = threadIdx.x & (kGroup - 1);
  const int32_t head = (thread >> 5) * 16 + ((thread & 31) >> 2);
  // 512^-0.5 log2(e), and the unit of the keys.
  const float scale = 0.044194173824159216F * kLog2E * kKeyUnit;
  int32_t slot = 0;
  uint32_t parity = 0;
  int32_t row = first_row<kPair>();
  if (row >= work.call.row_count) return;
  start_query(work.call.q + row * work.call.q_stride, shared);
  Geometry g = geometry_of(work.call.rows + row);
  for (;;) {
    const int32_t next_row = row + row_step<kPair>();
    const bool more = next_row < work.call.row_count;
    if (g.blocks > 0) {
      copy_wait();
      fence_async_proxy();
      named_sync(2, kGroup);
    }
    if (kPair) cluster_arrive();
    Geometry next_g = g;
    const Bf16* next_q = work.call.q + next_row * work.call.q_stride;
    if (more) {
      next_g = geometry_of(work.call.rows + next_row);
#pragma unroll
      for (int32_t i = 0; i < 4; ++i) prefetch_l2(next_q + (thread + i * kGroup) * 64);
    }
    Softmax upper, lower;
    for (int32_t block = 0; block < g.blocks; ++block) {
      barrier_wait(full_barrier(shared, slot), parity);
      float s[32];
      const uint64_t q_operand = swizzled_descriptor(shared + kQAt);
      const uint64_t k_operand = swizzled_descriptor(shared + kKeysAt + slot * kKeysBytes);
      wgmma_fence();
#pragma unroll
      for (int32_t k = 0; k < kWidth / 16; ++k) {
        const uint32_t at = ((k / 4) * kTileBytes + (k % 4) * 32) >> 4;
        product_64x64x16(s, q_operand + at, k_operand + at, k != 0);
      }
      wgmma_commit();
      wgmma_wait<0>();
      hold_registers(s);
      if (more && block + 1 == g.blocks) {  // q has been read: the next row's may come
        named_sync(2, kGroup);
        start_query(next_q, shared);
      }
      const bool first = block == 0;
      const int32_t keys = g.keys_in(block);
      const float rescale_upper = upper.update<0>(s, scale, keys, first);
      const float rescale_lower = lower.update<2>(s, scale, keys, first);
      const uint32_t to = shared + kProbabilityAt + slot * kTileBytes + head * 128;
#pragma unroll
      for (int32_t i = 0; i < 8; ++i) {
        const uint32_t at = to + ((i ^ (head & 7)) * 16) + (thread & 3) * 4;
        store_shared(at, pack_bf16(s[4 * i], s[4 * i + 1]));
        store_shared(at + 8 * 128, pack_bf16(s[4 * i + 2], s[4 * i + 3]));
      }
      const uint32_t statistics = shared + slot * 256 + head * 4;
      if (block + 1 == g.blocks) {
        const float sum_upper = quad_sum(upper.sum);
        const float sum_lower = quad_sum(lower.sum);
        if ((thread & 3) == 0) {
          store_shared(statistics + kTopAt, upper.top);
          store_shared(statistics + kTopAt + 32, lower.top);
          store_shared(statistics + kSumAt, sum_upper);
          store_shared(statistics + kSumAt + 32, sum_lower);
        }
      }
      if ((thread & 3) == 0) {
        store_shared(statistics + kRescaleAt, rescale_upper);
        store_shared(statistics + kRescaleAt + 32, rescale_lower);
      }
      fence_async_proxy();
      barrier_arrive(probability_barrier(shared, slot));
      parity ^= slot;
      slot ^= 1;
    }
    if (!more) return;
    if (g.blocks == 0) {  // nothing has waited for q, or read it
      copy_wait();
      start_query(next_q, shared);
    }
    row = next_row;
    g = next_g;
  }
}

// --- values ------------------------------------------------------------------

// Four adjacent pairs of channels turn back by four angles.
struct Turn {
  bool turns;
  float4 cos;
  float4 sin;

  __device__ __forceinline__ static uint32_t turned(uint32_t pair, float c, float s) {
    const float a = __uint_as_float(pair << 16);
    const float b = __uint_as_float(pair & 0xFFFF0000U);
    return pack_bf16(fmaf(b, s, a * c), fmaf(b, c, -a * s));
  }
};

// Every thread of a quad holds two channels of four groups of 8; afterwards thread t holds group
// t. Rotary channels are turned back on the way to o.
__device__ __forceinline__ void store_channels(uint32_t (&x)[4], Bf16* to, const Turn& turn) {
  const bool odd = (threadIdx.x & 1) != 0;
  const bool high = (threadIdx.x & 2) != 0;
#pragma unroll
  for (int32_t i = 0; i < 4; i += 2) {
    const uint32_t other = __shfl_xor_sync(0xFFFFFFFFU, odd ? x[i] : x[i + 1], 1);
    x[i] = odd ? other : x[i];
    x[i + 1] = odd ? x[i + 1] : other;
  }
#pragma unroll
  for (int32_t i = 0; i < 2; ++i) {
    const uint32_t other = __shfl_xor_sync(0xFFFFFFFFU, high ? x[i] : x[i + 2], 2);
    x[i] = high ? other : x[i];
    x[i + 2] = high ? x[i + 2] : other;
  }
  if (turn.turns) {
    x[0] = Turn::turned(x[0], turn.cos.x, turn.sin.x);
    x[1] = Turn::turned(x[1], turn.cos.y, turn.sin.y);
    x[2] = Turn::turned(x[2], turn.cos.z, turn.sin.z);
    x[3] = Turn::turned(x[3], turn.cos.w, turn.sin.w);
  }
  *reinterpret_cast<uint4*>(to) = make_uint4(x[0], x[1], x[2], x[3]);
}

// What the values of a head are multiplied with in the end.
__device__ __forceinline__ float unit_of(float top, float sum, float sink) {
  return kKeyUnit / (sum + exp2f(sink * kLog2E - top));
}

template <bool kPair>
__device__ __forceinline__ void sum_values(const Work& work, int32_t half) {
  constexpr int32_t kParts = kPair ? 1 : 2;  // of 128 channels
  const uint32_t shared = work.shared;
  const int32_t thread = threadIdx.x & (kGroup - 1);
  const int32_t lane = thread & 31;
  const int32_t head = (thread >> 5) * 16 + (lane >> 2);
  const int32_t channel = kPair ? (blockIdx.x & 1) * 256 + half * 128 : half * 256;
  int32_t slot = 0;
  uint32_t parity = 0;
  int32_t row = first_row<kPair>();
  if (row >= work.call.row_count) return;
  int32_t blocks = geometry_of(work.call.rows + row).blocks;
  for (;;) {
    const int32_t next_row = row + row_step<kPair>();
    const bool more = next_row < work.call.row_count;
    int32_t next_blocks = 0;
    if (more) next_blocks = geometry_of(work.call.rows + next_row).blocks;
    if (lane == 0) {
      prefetch_l1(work.call.cos + row * work.call.angle_stride);
      prefetch_l1(work.call.sin + row * work.call.angle_stride);
    }
    float o[kParts][64];
    float unit_upper = 0.0F;
    float unit_lower = 0.0F;
    if (blocks == 0) {
#pragma unroll
      for (int32_t i = 0; i < kParts * 64; ++i) o[i / 64][i % 64] = 0.0F;
    }
    for (int32_t block = 0; block < blocks; ++block) {
      barrier_wait(probability_barrier(shared, slot), parity);
      const uint32_t statistics = shared + slot * 256 + head * 4;
      if (block != 0) {
        const float rescale_upper = load_shared_float(statistics + kRescaleAt);
        const float rescale_lower = load_shared_float(statistics + kRescaleAt + 32);
        if (__any_sync(0xFFFFFFFFU, rescale_upper != 1.0F || rescale_lower != 1.0F)) {
#pragma unroll
          for (int32_t i = 0; i < kParts * 16; ++i) {
            o[i / 16][4 * (i % 16)] *= rescale_upper;
            o[i / 16][4 * (i % 16) + 1] *= rescale_upper;
            o[i / 16][4 * (i % 16) + 2] *= rescale_lower;
            o[i / 16][4 * (i % 16) + 3] *= rescale_lower;
          }
        }
      }
      const uint64_t p_operand = swizzled_descriptor(shared + kProbabilityAt + slot * kTileBytes);
      const uint64_t v_operand = tiles_descriptor(
          shared + kKeysAt + slot * kKeysBytes + channel / 64 * kTileBytes, kTileBytes);
#pragma unroll
      for (int32_t n = 0; n < kParts; ++n) hold_registers(o[n]);
      wgmma_fence();
#pragma unroll
      for (int32_t k = 0; k < kBlock / 16; ++k) {
#pragma unroll
        for (int32_t n = 0; n < kParts; ++n) {
          product_64x128x16_keys(o[n], p_operand + k * 2,
                                 v_operand + (k * 2048 + n * 2 * kTileBytes) / 16,
                                 k != 0 || block != 0);
        }
      }
      wgmma_commit();
      if (block + 1 == blocks) {
        unit_upper = unit_of(load_shared_float(statistics + kTopAt),
                             load_shared_float(statistics + kSumAt), __ldg(work.call.sink + head));
        unit_lower =
            unit_of(load_shared_float(statistics + kTopAt + 32),
                    load_shared_float(statistics + kSumAt + 32), __ldg(work.call.sink + head + 8));
      }
      wgmma_wait<0>();
#pragma unroll
      for (int32_t n = 0; n < kParts; ++n) hold_registers(o[n]);
      __syncwarp();
      if (lane == 0) barrier_arrive(empty_barrier(shared, slot));
      parity ^= slot;
      slot ^= 1;
    }
    if (kPair) cluster_wait();  // o may be q: both CTAs have read it
    Bf16* to = work.call.o + row * work.call.o_stride + head * kWidth + channel + (lane & 3) * 8;
    const float* cos = work.call.cos + row * work.call.angle_stride;
    const float* sin = work.call.sin + row * work.call.angle_stride;
#pragma unroll
    for (int32_t i = 0; i < kParts * 4; ++i) {  // 32 channels each
      uint32_t a[4], b[4];
#pragma unroll
      for (int32_t q = 0; q < 4; ++q) {
        const int32_t at = (i % 4 * 4 + q) * 4;
        a[q] = pack_bf16(o[i / 4][at] * unit_upper, o[i / 4][at + 1] * unit_upper);
        b[q] = pack_bf16(o[i / 4][at + 2] * unit_lower, o[i / 4][at + 3] * unit_lower);
      }
      const int32_t rotary_at = channel + i * 32 + (lane & 3) * 8 - (kWidth - work.call.rotary);
      Turn turn = {};
      turn.turns = rotary_at >= 0 && rotary_at < work.call.rotary;
      if (turn.turns) {
        turn.cos = __ldg(reinterpret_cast<const float4*>(cos + rotary_at / 2));
        turn.sin = __ldg(reinterpret_cast<const float4*>(sin + rotary_at / 2));
      }
      store_channels(a, to + i * 32, turn);
      store_channels(b, to + 8 * kWidth + i * 32, turn);
    }
    if (!more) return;
    row = next_row;
    blocks = next_blocks;
  }
}

template <bool kPair>
__global__ void __launch_bounds__(4 * kGroup, 1) attention_kernel(const AttentionCall call) {
  extern __shared__ uint8_t shared_bytes[];
  Work work{call, (shared_address(shared_bytes) + 1023U) & ~1023U};
  if (threadIdx.x == 0) {
    for (int32_t slot = 0; slot < 2; ++slot) {
      barrier_init(full_barrier(work.shared, slot), kGroup);
      barrier_init(empty_barrier(work.shared, slot), 8);
      barrier_init(probability_barrier(work.shared, slot), kGroup);
    }
    barrier_init_fence();
  }
  __syncthreads();
  await_earlier();
  const int32_t role = threadIdx.x / kGroup;
  if (role == 0) {
    registers_give<96>();
    if (kPair) cluster_arrive();
    produce_keys<kPair>(work);
    if (kPair) cluster_wait();
  } else if (role == 1) {
    registers_give<80>();
    score_keys<kPair>(work);
    if (kPair) cluster_wait();
  } else {
    registers_take<168>();
    if (kPair) cluster_arrive();
    sum_values<kPair>(work, role - 2);
  }
}

}  // namespace

bool attention_sm90_supports(const AttentionShape& shape, int32_t rotary) {
  return shape.heads == kAttentionHeads && shape.head_dim == kAttentionWidth &&
         shape.window <= kAttentionWindowMax && shape.selected_max <= kAttentionSelectedMax &&
         rotary <= 64 && rotary % 8 == 0;
}

void attention_sm90(const AttentionCall& call, int32_t multiprocessors, Stream stream) {
  if (call.row_count == 0) return;
  // Two CTAs a row as long as all rows then run at once.
  const bool pair = call.row_count * 2 <= multiprocessors;
  const auto kernel = pair ? attention_kernel<true> : attention_kernel<false>;
  const int32_t blocks = pair ? 2 * call.row_count : std::min(call.row_count, multiprocessors);
  launch_kernel(kernel, {static_cast<uint32_t>(blocks), 4 * kGroup, kSharedBytes, pair ? 2U : 1U},
                stream, call);
}

}  // namespace galley::kernels::cuda
