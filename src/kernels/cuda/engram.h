// Engram: table rows to bf16, and the gated write into the streams (spec/model.md 6.5).
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/tensor.h"

namespace galley::kernels::cuda {

constexpr int64_t kEngramHiddenMax = 8192;

// What the host raises when it has posted rows: `raised` counts posts, `awaited` the launches that
// waited for one. Device memory.
struct PostFlag {
  uint64_t raised = 0;
  uint64_t awaited = 0;
};
// What follows begins behind the next post.
void engram_await(Stream stream, PostFlag* flag);

// e [R, columns * width]: row ids[r][column] of a table of E4M3 codes with a UE8M0 scale per 32
// columns.
void engram_lookup(Stream stream, const uint8_t* codes, const uint8_t* scale, int64_t width,
                   Rows<const int64_t> ids, Rows<Bf16> e);

// Rows of a table that lie in `kept` or are brought in `staged`, in the order of e's cells: cell
// (r, column) is cells[r * columns + column]. What is brought with a place is kept there.
struct EngramRows {
  uint8_t* codes = nullptr;
  uint8_t* scale = nullptr;
};
struct EngramCell {
  int32_t place = -1;
  int32_t staged = -1;
};
void engram_lookup_kept(Stream stream, const EngramRows& kept, const EngramRows& staged,
                        int64_t width, const EngramCell* cells, Rows<Bf16> e);

// kv [R, 5 hidden]: four keys, then the value. alive [R] (device): 0 leaves a row untouched.
// gate [R, 4] may be empty.
void engram_write(Stream stream, Rows<const Bf16> kv, const Bf16* q_weight, const Bf16* k_weight,
                  const uint8_t* alive, float eps, Rows<Bf16> streams, Rows<float> gate);

}  // namespace galley::kernels::cuda
