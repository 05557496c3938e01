// Quantised rows and cache records (spec/model.md 0.1, 4.2-4.5, 8.1), with the bits of plain/.
//
// Pointers and rows are device memory; `destination` is a device array of device pointers, one a
// row. Widths are multiples of 32 and at most kRecordWidthMax for records.
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/ops.h"
#include "kernels/tensor.h"

namespace galley::kernels::cuda {

constexpr int64_t kRecordWidthMax = 1024;

// Q8 of rows: codes [R, width] E4M3, scales [R, ceil(width / 32)] UE8M0.
void quantise_q8(Stream stream, Rows<const Bf16> x, Rows<uint8_t> codes, Rows<uint8_t> scales);

// records: Q8(rope(RMS(x))).
void window_keys(Stream stream, Rows<const Bf16> x, const Bf16* norm_weight, float eps,
                 const RopeAngles& angles, Rows<uint8_t> records);

// *destination[r] = Q4e4(rope(latent r)).
void global_keys(Stream stream, Rows<const Bf16> latent, const RopeAngles& angles,
                 uint8_t* const* destination);

// *destination[r] = Q4e8(rope(RMS(x r))).
void index_keys(Stream stream, Rows<const Bf16> x, const Bf16* norm_weight, float eps,
                const RopeAngles& angles, uint8_t* const* destination);

// x <- Q4e8(rope(x)), simulated, for each of `heads` vectors of a row.
void index_queries(Stream stream, Rows<Bf16> x, int32_t heads, const RopeAngles& angles);

}  // namespace galley::kernels::cuda
