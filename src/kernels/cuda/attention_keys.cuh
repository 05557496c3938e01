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
constexpr uint32_t kListAt = kProbabilityAt + kTileBytes;      // two lists of record pointers
constexpr uint32_t kListBytes = kSlots * 8;
constexpr uint32_t kRescaleAt = kListAt + 2 * kListBytes;  // [2][64] f32
constexpr uint32_t kTopAt = kRescaleAt + 512;              // [2][64] f32
constexpr uint32_t kSumAt = kTopAt + 512;                  // [2][64] f32
constexpr uint32_t kBarriersAt = kSumAt + 512;
constexpr uint32_t kStagingAt = kBarriersAt + 64;  // packed keys on their way
constexpr uint32_t kGranuleBytes = 8 * 64;         // of a warp: 8 keys' codes, 64 bytes of each
constexpr int32_t kGranules = 3;
constexpr uint32_t kSharedBytes = kStagingAt + kProducers / 32 * kGranules * kGranuleBytes + 1024;

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

// A list of where the row's records lie, built in three stages, each of which only uses what the
// one before has loaded long ago.
template <int32_t kThreads>
struct ListBuilder {
  static constexpr int32_t kEach = kAttentionSelectedMax / kThreads;
  int32_t entry[kEach];
  int32_t page[kEach];

  __device__ __forceinline__ void load_entries(const AttentionRow* row) {
    const int32_t count = selection_of(*row);
    const int32_t* selected = row->selected;
#pragma unroll
    for (int32_t i = 0; i < kEach; ++i) {
      const int32_t at = min(static_cast<int32_t>(threadIdx.x) + i * kThreads, count - 1);
      entry[i] = at >= 0 ? __ldg(selected + at) : 0;
    }
  }
  __device__ __forceinline__ void load_pages(const AttentionRow* row) {
    if (selection_of(*row) == 0) return;
    const auto per_page = static_cast<uint32_t>(row->global.records_per_page);
    const int32_t* table = row->global.page_table;
#pragma unroll
    for (int32_t i = 0; i < kEach; ++i) {
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
    for (int32_t i = 0; i < kEach; ++i) {
      const int32_t at = static_cast<int32_t>(threadIdx.x) + i * kThreads;
      if (at < padded) {
        const uint8_t* record = row->global.pool + page[i] * row->global.page_stride +
                                static_cast<uint32_t>(entry[i]) % per_page * kGlobalBytes;
        store_shared(list + (g.window_blocks * kBlock + at) * 8, record);
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
    const uint32_t even = words[q] << 4;
#pragma unroll
    for (int32_t k = 0; k < 4; ++k) {
      // Both codes of byte k, each twice: below for the magnitude, on top for the sign.
      const uint32_t codes = __byte_perm(even, words[q], 0x4400U + 0x1111U * k);
      const uint32_t bits = ((codes << 2) & 0x01C001C0U) | (codes & 0x80008000U);
      pairs[q][k] = multiply_bf16x2(bits, q < 2 ? low : high);
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

// Packed keys on their way from memory, warp by warp: a granule is 64 bytes of codes of each of the
// warp's 8 keys of a block, and neighbouring threads copy neighbouring bytes. A global record has 4
// granules, a window record 8.
struct KeyStream {
  const uint8_t* at = nullptr;  // of key lane / 4
  int32_t left = 0;             // granules of this block
  uint32_t list = 0;            // of the row
  int32_t block = 0;
  int32_t blocks = 0;  // of the row
  int32_t window_blocks = 0;
  uint32_t granule_at = 0;  // where the next one goes
  bool dry = true;          // the rows that have a list are over

  __device__ __forceinline__ void set_row(const Geometry& g, uint32_t row_list) {
    list = row_list;
    block = 0;
    blocks = g.blocks;
    window_blocks = g.window_blocks;
  }

  // Copies a granule, if there is one; in any case the copies that count grow by one. `staging` is
  // where this thread's 16 bytes of the warp's first granule go.
  __device__ __forceinline__ void next(uint32_t staging, bool next_known, const Geometry& next_g,
                                       uint32_t next_list) {
    if (left == 0) {
      if (block == blocks && next_known && next_g.blocks > 0 && list != next_list) {
        set_row(next_g, next_list);
      }
      if (block == blocks) {
        dry = true;
      } else {
        const uint32_t lane = threadIdx.x & 31;
        at = record_of(list, block, lane >> 2) + (lane & 3) * 16;
        left = block < window_blocks ? 8 : 4;
        ++block;
      }
    }
    if (left > 0) {
      copy_16(staging + granule_at, at);
      at += 64;
      --left;
    }
    copy_commit();
    granule_at = granule_at == (kGranules - 1) * kGranuleBytes ? 0 : granule_at + kGranuleBytes;
  }

  // Key 0..7 of this warp's in a block.
  __device__ __forceinline__ static const uint8_t* record_of(uint32_t list, int32_t block,
                                                             uint32_t key) {
    return load_shared_pointer(list + (block * kBlock + (threadIdx.x >> 5) * 8 + key) * 8);
  }
  // A quarter of the scales of key lane / 4: of a global record 8 bytes, of a window record 4.
  __device__ __forceinline__ static uint2 scales_of(uint32_t list, int32_t block, bool window) {
    const uint32_t lane = threadIdx.x & 31;
    const uint8_t* record = record_of(list, block, lane >> 2);
    if (window)
      return {__ldg(reinterpret_cast<const uint32_t*>(record + kWidth + (lane & 3) * 4)), 0};
    return __ldg(reinterpret_cast<const uint2*>(record + kWidth / 2 + (lane & 3) * 8));
  }
};

template <bool kPair>
__device__ __forceinline__ void produce_keys(const Work& work) {
  const uint32_t shared = work.shared;
  // Thread 8 h + k of a warp decodes key k, 16 bytes of every 64; thread 4 k + h has copied them.
  // Pieces of a key's 64 bytes change places by its number, so that neither meets its own banks.
  const uint32_t lane = threadIdx.x & 31;
  const uint32_t key = lane & 7;
  const uint32_t share = lane >> 3;
  const uint32_t warp_staging =
      shared + kStagingAt + (threadIdx.x >> 5) * (kGranules * kGranuleBytes);
  const uint32_t copied = warp_staging + (lane >> 2) * 64 + ((lane ^ (lane >> 3)) & 3) * 16;
  const uint32_t read = warp_staging + key * 64 + ((share ^ (key >> 1)) & 3) * 16;
  const uint32_t place = ((threadIdx.x >> 5) * 8 + key) * 128;

  int32_t row = first_row<kPair>();
  if (row >= work.call.row_count) return;
  ListBuilder<kProducers> builder;
  uint32_t list = shared + kListAt;
  Geometry g = geometry_of(work.call.rows + row);
  builder.load_entries(work.call.rows + row);
  builder.write_window(work.call.rows + row, g, list);
  named_sync(1, kProducers);
  KeyStream stream;
  uint32_t read_at = 0;  // where the oldest granule is
  uint2 scales = {};
  bool have_scales = false;
  const auto prime = [&] {
    for (int32_t i = 0; i < kGranules; ++i) stream.next(copied, false, g, list);
  };
  if (g.window_blocks > 0) {
    // The window's records are on their way while the selection is looked up.
    stream.set_row(g, list);
    stream.dry = false;
    scales = KeyStream::scales_of(list, 0, true);
    have_scales = true;
    prime();
  }
  builder.load_pages(work.call.rows + row);
  builder.write_selected(work.call.rows + row, g, list);
  named_sync(1, kProducers);

  int32_t slot = 0;
  uint32_t parity = 1;  // the first round finds the slots free
  for (;;) {
    const int32_t next_row = row + row_step<kPair>();
    const bool more = next_row < work.call.row_count;
    const AttentionRow* next_descriptor = work.call.rows + next_row;
    Geometry next_g = g;
    const uint32_t next_list = shared + kListAt + (shared + kListAt + kListBytes - list);
    int32_t stage = more ? 0 : 4;
    const auto advance_stage = [&] {
      if (stage == 0) {
        next_g = geometry_of(next_descriptor);
        builder.load_entries(next_descriptor);
      } else if (stage == 1) {
        builder.load_pages(next_descriptor);
      } else if (stage == 2) {
        named_sync(1, kProducers);  // no one reads the list of two rows ago any more
        builder.write_window(next_descriptor, next_g, next_list);
        builder.write_selected(next_descriptor, next_g, next_list);
      } else {
        named_sync(1, kProducers);
      }
      ++stage;
    };
    if (g.blocks > 0 && stream.dry) {
      copy_wait();
      stream.set_row(g, list);
      stream.dry = false;
      stream.granule_at = 0;
      read_at = 0;
      prime();
    }
#pragma unroll 1
    for (int32_t block = 0; block < g.blocks; ++block) {
      while (stage < 4) {
        advance_stage();
        if (block + 1 < g.blocks) break;
      }
      const bool next_known = more && stage == 4;
      const bool window = block < g.window_blocks;
      if (!have_scales) scales = KeyStream::scales_of(list, block, window);
      uint2 next_scales = {};
      have_scales = true;
      if (block + 1 < g.blocks) {
        next_scales = KeyStream::scales_of(list, block + 1, block + 1 < g.window_blocks);
      } else if (next_known && next_g.blocks > 0) {
        next_scales = KeyStream::scales_of(next_list, 0, next_g.window_blocks > 0);
      } else {
        have_scales = false;
      }
      barrier_wait(empty_barrier(shared, slot), parity);
      uint32_t to = shared + kKeysAt + slot * kKeysBytes + place;
      if (window) {
#pragma unroll 1
        for (int32_t i = 0; i < 8; ++i) {  // a tile of 64 channels each
          copy_wait_but<kGranules - 1>();
          __syncwarp();
          // Byte 2 i + share / 2 of the scales: thread 4 key + i / 2 has it.
          const uint32_t word = __shfl_sync(0xFFFFFFFFU, scales.x, key * 4 + i / 2);
          const uint4 codes = load_shared_16(read + read_at);
          store_window(codes, (word >> ((i & 1) * 16 + (share >> 1) * 8)) & 0xFFU, to, share * 2,
                       key);
          to += kTileBytes;
          __syncwarp();  // the granule has been read
          read_at = read_at == (kGranules - 1) * kGranuleBytes ? 0 : read_at + kGranuleBytes;
          stream.next(copied, next_known, next_g, next_list);
        }
      } else {
        to += (share >> 1) * kTileBytes;
#pragma unroll 1
        for (int32_t i = 0; i < 4; ++i) {  // two tiles each
          copy_wait_but<kGranules - 1>();
          __syncwarp();
          // Bytes 8 i + 2 share and the next of the scales: thread 4 key + i has them.
          const uint32_t low = __shfl_sync(0xFFFFFFFFU, scales.x, key * 4 + i);
          const uint32_t high = __shfl_sync(0xFFFFFFFFU, scales.y, key * 4 + i);
          const uint4 codes = load_shared_16(read + read_at);
          store_global(codes, (share < 2 ? low : high) >> ((share & 1) * 16), to, (share & 1) * 4,
                       key);
          to += 2 * kTileBytes;
          __syncwarp();
          read_at = read_at == (kGranules - 1) * kGranuleBytes ? 0 : read_at + kGranuleBytes;
          stream.next(copied, next_known, next_g, next_list);
        }
      }
      scales = next_scales;
      barrier_arrive(full_barrier(shared, slot));  // the reader has the proxy fence
      parity ^= slot;
      slot ^= 1;
    }
    if (!more) return;
    while (stage < 4) advance_stage();  // a row without blocks leaves them undone
    row = next_row;
    g = next_g;
    list = next_list;
  }
}

}  // namespace attention
}  // namespace galley::kernels::cuda
