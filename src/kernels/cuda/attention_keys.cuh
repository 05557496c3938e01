// The half of sparse attention that brings keys: from packed records anywhere in memory to blocks
// of 64 decoded keys in shared memory (attention_sm90.cu says what for).
//
// A warp has 8 keys of every block. Neighbouring threads copy neighbouring bytes of a key to a
// small ring of their warp, asynchronously; then each thread decodes 16 bytes of one key, so that
// eight threads write eight rows of the swizzled tile without meeting at a bank. Both are needed:
// with copies laid out like the stores, eight threads read eight lines at a time. Five instructions
// decode two values: a byte permutation that leaves each code twice in its half word, a shift and
// two masks that put magnitude and sign in bf16's place, and the product with the scale. The
// arithmetic unit takes two cycles for most of them, so a block costs about 1,200 cycles on four
// of them, beside 2,048 of the tensor cores.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/attention_sm90.h"
#include "kernels/cuda/global_loads.cuh"
#include "kernels/cuda/sm90.cuh"
#include "kernels/cuda/sm90_memory.cuh"

namespace galley::kernels::cuda {
namespace attention {

constexpr int32_t kHeads = kAttentionHeads;
constexpr int32_t kWidth = kAttentionWidth;
constexpr int32_t kBlock = 64;  // keys
constexpr uint32_t kWindowBytes = window_record_bytes(kWidth);
constexpr uint32_t kGlobalBytes = global_record_bytes(kWidth);
constexpr int32_t kSlots = kAttentionWindowMax + kAttentionSelectedMax;
constexpr int32_t kGroup = 128;      // threads of a warpgroup
constexpr int32_t kProducers = 256;  // threads that decode keys

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
constexpr uint32_t kProbabilityAt = kKeysAt + 2 * kKeysBytes;  // one tile
constexpr uint32_t kRescaleAt = kProbabilityAt + kTileBytes;   // [2][64] f32
constexpr uint32_t kTopAt = kRescaleAt + 512;                  // [2][64] f32
constexpr uint32_t kSumAt = kTopAt + 512;                      // [2][64] f32
constexpr uint32_t kBarriersAt = kSumAt + 512;
constexpr uint32_t kStagingAt = kBarriersAt + 64;  // a part for each warp that decodes
// A warp's part: packed keys on their way, and where the keys of its selection lie.
constexpr int32_t kWarpKeys = 8;                       // of a block
constexpr uint32_t kGranuleBytes = kWarpKeys * 64;     // codes, 64 bytes of each key
constexpr uint32_t kWarpScalesAt = 4 * kGranuleBytes;  // two places
constexpr uint32_t kWarpScalesBytes = kWarpKeys * 32;
constexpr uint32_t kWarpListAt = kWarpScalesAt + 2 * kWarpScalesBytes;
constexpr int32_t kWarpSelected = kAttentionSelectedMax / (kProducers / 32);
constexpr uint32_t kWarpBytes = kWarpListAt + kWarpSelected * 8;
constexpr uint32_t kSharedBytes = kStagingAt + kProducers / 32 * kWarpBytes + 1024;
static_assert(kSharedBytes <= 227 * 1024);

// A row's descriptor to shared memory, by a warp. It is older than the launch in front, so it may
// be read before the wait. All threads that each ask the L2 for it wait in its queue (four rows of
// sixteen blocks: 12.2 us instead of 10.1).
__device__ __forceinline__ void fetch_row(const AttentionRow* at, AttentionRow* to) {
  constexpr uint32_t kParts = sizeof(AttentionRow) / sizeof(uint4);
  static_assert(kParts * sizeof(uint4) == sizeof(AttentionRow));
  const uint32_t lane = threadIdx.x & 31;
  if (lane < kParts) {
    reinterpret_cast<uint4*>(to)[lane] = load_written(reinterpret_cast<const uint4*>(at) + lane);
  }
}
// How many keys are selected: behind the wait; and before it, where the launch in front makes
// queries alone.
__device__ __forceinline__ int32_t selection_of(const AttentionRow& row) {
  return row.selected_count == nullptr ? 0 : *row.selected_count;
}
__device__ __forceinline__ int32_t written_selection_of(const AttentionRow& row) {
  return row.selected_count == nullptr ? 0 : load_written(row.selected_count);
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

__device__ __forceinline__ const uint8_t* window_record_of(const AttentionRow* row, int32_t key) {
  const int64_t position = row->window_begin + key;
  if (position >= row->chunk_begin) {
    return row->chunk + (position - row->chunk_begin) * kWindowBytes;
  }
  const uint32_t slot = static_cast<uint32_t>(position) % static_cast<uint32_t>(row->ring_slots);
  return row->ring + slot * kWindowBytes;
}
__device__ __forceinline__ const uint8_t* global_record_of(const AttentionRow* row, int32_t entry,
                                                           int32_t page) {
  const auto per_page = static_cast<uint32_t>(row->global.records_per_page);
  return row->global.pool + page * row->global.page_stride +
         static_cast<uint32_t>(entry) % per_page * kGlobalBytes;
}

// A list of where the row's records lie, built in three stages, each of which only uses what the
// one before has loaded long ago.
template <int32_t kThreads>
struct ListBuilder {
  static constexpr int32_t kEach = kAttentionSelectedMax / kThreads;
  int32_t entry[kEach];
  int32_t page[kEach];

  __device__ __forceinline__ void load_entries(const AttentionRow* row, int32_t count) {
    const int32_t* selected = row->selected;
#pragma unroll
    for (int32_t i = 0; i < kEach; ++i) {
      const int32_t at = min(static_cast<int32_t>(threadIdx.x) + i * kThreads, count - 1);
      entry[i] = at >= 0 ? load_written(selected + at) : 0;
    }
  }
  __device__ __forceinline__ void load_pages(const AttentionRow* row, int32_t count) {
    if (count == 0) return;
    const auto per_page = static_cast<uint32_t>(row->global.records_per_page);
    const int32_t* table = row->global.page_table;
#pragma unroll
    for (int32_t i = 0; i < kEach; ++i) {
      page[i] = load_written(table + static_cast<uint32_t>(entry[i]) / per_page);
    }
  }
  __device__ __forceinline__ static void write_window(const AttentionRow* row, const Geometry& g,
                                                      uint32_t list) {
    const auto thread = static_cast<int32_t>(threadIdx.x);
    if (thread >= g.window_blocks * kBlock) return;
    store_shared(list + thread * 8, window_record_of(row, min(thread, g.window - 1)));
  }
  __device__ __forceinline__ void write_selected(const AttentionRow* row, const Geometry& g,
                                                 uint32_t list) const {
    const int32_t padded = (g.blocks - g.window_blocks) * kBlock;
#pragma unroll
    for (int32_t i = 0; i < kEach; ++i) {
      const int32_t at = static_cast<int32_t>(threadIdx.x) + i * kThreads;
      if (at < padded) {
        store_shared(list + (g.window_blocks * kBlock + at) * 8,
                     global_record_of(row, entry[i], page[i]));
      }
    }
  }
};

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
    const uint32_t even = words[q] & 0x0F0F0F0FU;
    const uint32_t odd = words[q] >> 4 & 0x0F0F0F0FU;
#pragma unroll
    for (uint32_t k = 0; k < 4; ++k) {
      // The codes of byte k, one a half word; times 2^6 + 2^12 the magnitude is in its place, and
      // the sign.
      const uint32_t codes = permute_bytes(even, odd, 0xC480U + 0x1111U * k);
      pairs[q][k] = multiply_bf16x2(codes * 0x1040U & 0x81C081C0U, q < 2 ? low : high);
    }
  }
  store_pieces(pairs, at, chunk, key);
}

// 16 channels of a window key to two pieces.
__device__ __forceinline__ void store_window(const uint4& w, uint32_t scale_code, uint32_t at,
                                             uint32_t chunk, uint32_t key) {
  // 2^(code - 127) x 2^-32 x 2^120; a scale that does not fit becomes infinite, not wrong.
  const uint32_t scale = min(scale_code + 88U, 255U) << 7;
  const uint32_t both = scale | (scale << 16);
  const uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
  for (int32_t q = 0; q < 2; ++q) {
    uint32_t pairs[4];
#pragma unroll
    for (int32_t k = 0; k < 4; ++k) {
      const uint32_t word = words[2 * q + k / 2];
      const uint32_t codes = __byte_perm(word, word, k % 2 == 0 ? 0x1100U : 0x3322U);
      const uint32_t bits = ((codes << 4) & 0x07F007F0U) | (codes & 0x80008000U);
      pairs[k] = multiply_bf16x2(bits, both);
    }
    store_shared(at + ((chunk + q) ^ key) * 16, make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]));
  }
}

// What a warp copies and decodes at a time, of each of its 8 keys of a block: 256 bytes of codes.
// They are four granules of 64, and a record of the selection or half of one of the window.
enum class Quad : int32_t { kGlobal, kWindowFirst, kWindowSecond, kNone };

// Where the selected keys of a row lie that are a warp's, looked up in steps of which each only
// uses what the one before has loaded. In the list: [block][8 keys].
struct WarpSelection {
  static constexpr int32_t kEach = kWarpSelected / 32;
  int32_t entry[kEach];
  int32_t page[kEach];

  // count: of the row's, not 0.
  __device__ __forceinline__ void load_entries(const AttentionRow* row, int32_t count) {
#pragma unroll
    for (int32_t i = 0; i < kEach; ++i) {
      const int32_t number = static_cast<int32_t>(threadIdx.x & 31) + i * 32;
      const int32_t at = number / kWarpKeys * kBlock +
                         static_cast<int32_t>(threadIdx.x / 32) * kWarpKeys + number % kWarpKeys;
      entry[i] = load_written(row->selected + min(at, count - 1));
    }
  }
  __device__ __forceinline__ void load_pages(const AttentionRow* row) {
    const auto per_page = static_cast<uint32_t>(row->global.records_per_page);
#pragma unroll
    for (int32_t i = 0; i < kEach; ++i) {
      page[i] = load_written(row->global.page_table + static_cast<uint32_t>(entry[i]) / per_page);
    }
  }
  __device__ __forceinline__ void write(const AttentionRow* row, uint32_t list) const {
    __syncwarp();
#pragma unroll
    for (int32_t i = 0; i < kEach; ++i) {
      store_shared(list + (threadIdx.x & 31) * 8 + i * 32 * 8,
                   global_record_of(row, entry[i], page[i]));
    }
    __syncwarp();
  }
};

// Where a warp's quads come from, row after row. A row's selection is looked up while quads of its
// window are on their way; each step only uses what the one before has loaded.
struct KeySource {
  const AttentionRow* row;
  const AttentionRow* rows_end;
  int32_t row_step;
  uint32_t list;     // the warp's, in shared memory
  int32_t quad = 0;  // of the row, the next
  int32_t window_quads = 0;
  int32_t quads = 0;   // known when `step` is not 0
  int32_t window = 0;  // keys
  int32_t step = 0;
  WarpSelection selection;
  // Of the last quad asked for, this thread's: 16 bytes of a granule, 64 further those of the next;
  // and what it copies of the scales, if it does.
  const uint8_t* codes_from;
  const uint8_t* scales_from;
  bool has_scales;

  __device__ __forceinline__ KeySource(const AttentionRow* first_row, const AttentionRow* end,
                                       int32_t step_rows, uint32_t warp_list)
      : row(first_row), rows_end(end), row_step(step_rows), list(warp_list) {
    open_row();
  }

  __device__ __forceinline__ void open_row() {
    window = static_cast<int32_t>(row->position - row->window_begin) + 1;
    window_quads = (window + kBlock - 1) / kBlock * 2;
    quad = 0;
    step = 0;
  }
  // A step, of four.
  __device__ __forceinline__ void look_up() {
    if (step == 0) {
      quads = selection_of(*row);  // keys until the next step
    } else if (step == 1) {
      if (quads > 0) selection.load_entries(row, quads);
      quads = window_quads + (quads + kBlock - 1) / kBlock;
    } else if (quads != window_quads) {
      if (step == 2) {
        selection.load_pages(row);
      } else {
        selection.write(row, list);
      }
    }
    ++step;
  }

  __device__ __forceinline__ Quad next() {
    const uint32_t lane = threadIdx.x & 31;
    if (quad == window_quads) {
      while (step < 4) look_up();
    }
    if (quad >= window_quads && quad == quads) {
      if (row_step >= rows_end - row) return Quad::kNone;
      row += row_step;
      open_row();
    }
    Quad kind = Quad::kGlobal;
    if (quad < window_quads) {
      kind = (quad & 1) == 0 ? Quad::kWindowFirst : Quad::kWindowSecond;
      if (kind == Quad::kWindowFirst) {
        const int32_t key = quad / 2 * kBlock + static_cast<int32_t>(threadIdx.x / 32) * kWarpKeys +
                            static_cast<int32_t>(lane / 4);
        const uint8_t* record = window_record_of(row, min(key, window - 1));
        codes_from = record + (lane & 3) * 16;
        scales_from = record + kWidth;
        has_scales = (lane & 3) == 0;
      } else {
        codes_from += kWidth / 2;
      }
    } else {
      const uint8_t* record =
          load_shared_pointer(list + ((quad - window_quads) * kWarpKeys + lane / 4) * 8);
      codes_from = record + (lane & 3) * 16;
      scales_from = record + kWidth / 2 + (lane & 3) * 16;
      has_scales = (lane & 3) < 2;
      if (quad == window_quads && row_step < rows_end - row) prefetch_l1(row + row_step);
    }
    ++quad;
    return kind;
  }
};

// Addresses in shared memory: two blocks of keys, two barriers of each kind.
struct KeyPlaces {
  uint32_t keys;
  uint32_t full;   // a block is there: one of each warp
  uint32_t empty;  // or its place is free
  uint32_t staging;
};

__device__ __forceinline__ void produce_keys(const AttentionRow* first, const AttentionRow* end,
                                             int32_t row_step, const KeyPlaces& places) {
  if (first >= end) return;
  // Thread 8 h + k of a warp decodes key k, 16 bytes of every 64; thread 4 k + h has copied them.
  // Pieces of a key's 64 bytes change places by its number, so that neither meets its own banks.
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t key = lane & 7;
  const uint32_t share = lane >> 3;
  const uint32_t staging = places.staging + (threadIdx.x >> 5) * kWarpBytes;
  const uint32_t copied = staging + (lane >> 2) * 64 + ((lane ^ (lane >> 3)) & 3) * 16;
  const uint32_t read = staging + key * 64 + ((share ^ (key >> 1)) & 3) * 16;
  uint32_t scales_copied = staging + kWarpScalesAt + (lane >> 2) * 32 + (lane & 1) * 16;
  uint32_t scales_read = staging + kWarpScalesAt + key * 32;
  int32_t scales_step = kWarpScalesBytes;  // to the other place
  const uint32_t place = places.keys + ((threadIdx.x >> 5) * kWarpKeys + key) * 128;

  KeySource source(first, end, row_step, staging + kWarpListAt);
  const auto copy_half = [&](int32_t half, bool wanted) {
    if (wanted) {
      copy_16(copied + half * 2 * kGranuleBytes, source.codes_from + half * 128);
      copy_16(copied + (half * 2 + 1) * kGranuleBytes, source.codes_from + half * 128 + 64);
      if (half == 0 && source.has_scales) copy_16(scales_copied, source.scales_from);
    }
    copy_commit();
  };
  Quad kind = source.next();
  copy_half(0, true);
  copy_half(1, true);
  source.look_up();
  int32_t slot = 0;
  uint32_t parity = 1;  // the first round finds the slots free
#pragma unroll 1
  while (kind != Quad::kNone) {
    const Quad next_kind = source.next();
    const bool more = next_kind != Quad::kNone;
    scales_copied += scales_step;
    const uint32_t to = place + slot * kKeysBytes;
#pragma unroll
    for (int32_t half = 0; half < 2; ++half) {
      copy_wait_but<1>();
      __syncwarp();
      uint4 codes[2];
      uint32_t scales[2];
      codes[0] = load_shared_16(read + half * 2 * kGranuleBytes);
      codes[1] = load_shared_16(read + (half * 2 + 1) * kGranuleBytes);
      if (kind == Quad::kGlobal) {
        scales[0] = load_shared_two_bytes(scales_read + half * 16 + share * 2);
        scales[1] = load_shared_two_bytes(scales_read + half * 16 + 8 + share * 2);
      } else {
        const uint32_t at =
            scales_read + (kind == Quad::kWindowSecond ? 8 : 0) + half * 4 + (share >> 1);
        scales[0] = load_shared_byte(at);
        scales[1] = load_shared_byte(at + 2);
      }
      __syncwarp();
      copy_half(half, more);
      if (half == 1 && source.step < 4) source.look_up();
      if (half == 0 && kind != Quad::kWindowSecond) {
        barrier_wait(places.empty + slot * 8, parity);
      }
      if (kind == Quad::kGlobal) {
#pragma unroll
        for (int32_t i = 0; i < 2; ++i) {  // two tiles each
          store_global(codes[i], scales[i], to + ((half * 2 + i) * 2 + (share >> 1)) * kTileBytes,
                       (share & 1) * 4, key);
        }
      } else {
        const uint32_t at = to + (kind == Quad::kWindowSecond ? 4 * kTileBytes : 0);
#pragma unroll
        for (int32_t i = 0; i < 2; ++i) {
          store_window(codes[i], scales[i], at + (half * 2 + i) * kTileBytes, share * 2, key);
        }
      }
    }
    scales_read += scales_step;
    scales_step = -scales_step;
    if (kind != Quad::kWindowFirst) {
      __syncwarp();
      if (lane == 0) barrier_arrive(places.full + slot * 8);  // the reader has the proxy fence
      parity ^= slot;
      slot ^= 1;
    }
    kind = next_kind;
  }
}

}  // namespace attention
}  // namespace galley::kernels::cuda
