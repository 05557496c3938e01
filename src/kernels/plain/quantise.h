// The three quantisers of spec/model.md 0.1, to codes and scales and back, and
// the packed cache records made of them (tensor.h says how a record lies).
//
// Everything a quantiser yields is exact in bf16, so reading back into f32
// gives the numbers the reference keeps in bf16.
#pragma once

#include <cstdint>

#include "kernels/tensor.h"

namespace galley::kernels::plain {

// codes: one E4M3 byte a channel; scales: one UE8M0 per 32 channels, the last
// group may be shorter.
void quantise_q8(const Bf16* x, int64_t width, uint8_t* codes, uint8_t* scales);
// codes: two E2M1 a byte, even channel low; scales: UE8M0 per 32, E4M3 per 16.
void quantise_q4e8(const Bf16* x, int64_t width, uint8_t* codes, uint8_t* scales);
void quantise_q4e4(const Bf16* x, int64_t width, uint8_t* codes, uint8_t* scales);

void dequantise_q8(const uint8_t* codes, const uint8_t* scales, int64_t width, float* x);
void dequantise_q4e8(const uint8_t* codes, const uint8_t* scales, int64_t width, float* x);
void dequantise_q4e4(const uint8_t* codes, const uint8_t* scales, int64_t width, float* x);

void write_window_record(const Bf16* x, int64_t width, uint8_t* record);
void write_global_record(const Bf16* x, int64_t width, uint8_t* record);
void write_index_record(const Bf16* x, int64_t width, uint8_t* record);

void read_window_record(const uint8_t* record, int64_t width, float* x);
void read_global_record(const uint8_t* record, int64_t width, float* x);
void read_index_record(const uint8_t* record, int64_t width, float* x);

}  // namespace galley::kernels::plain
