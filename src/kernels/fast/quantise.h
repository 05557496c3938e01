// The quantisers of spec/model.md 0.1 and the packed records (tensor.h), vectorised;
// bit for bit those of number_formats.h.
#pragma once

#include <cstdint>

#include "kernels/fast/dot.h"
#include "kernels/tensor.h"

namespace galley::kernels::GALLEY_ISA {

// out = bf16(Q8(x)), the number the codes stand for; out may be x.
void simulate_q8(const Bf16* x, int64_t width, Bf16* out);
// In place, groups of 32 with UE8M0 scales.
void simulate_q4e8(Bf16* x, int64_t width);

void write_window_record(const Bf16* x, int64_t width, uint8_t* record);
void write_global_record(const Bf16* x, int64_t width, uint8_t* record);
void write_index_record(const Bf16* x, int64_t width, uint8_t* record);

// The numbers of a record as natural-order operands; width is a multiple of 32.
void read_window_record(const uint8_t* record, int64_t width, Operand* x);
void read_global_record(const uint8_t* record, int64_t width, Operand* x);

// E4M3 row with one UE8M0 scale per 32 channels to bf16.
void read_fp8_row(const uint8_t* codes, const uint8_t* scales, int64_t width, Bf16* x);

}  // namespace galley::kernels::GALLEY_ISA
