// Engram table rows and the gated write into the streams (spec/model.md 6.5).
#pragma once

#include <cstdint>

#include "kernels/tensor.h"

namespace galley::kernels::plain {

// e [width] = bf16(E4M3 row `id` * its UE8M0 scale per 32 columns).
void engram_read(const uint8_t* table, const uint8_t* scale, int64_t width, int64_t id, Bf16* e);

// One living row: kv [(n + 1) hidden] holds n keys, then the value; streams [n, hidden]
// in place; gate [n] gets gamma unless null.
void engram_write_row(const Bf16* kv, const Bf16* q_weight, const Bf16* k_weight, int64_t hidden,
                      int32_t stream_count, float eps, Bf16* streams, float* gate);

}  // namespace galley::kernels::plain
