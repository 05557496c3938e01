// Packed cache records to numbers and back, exactly (spec/model.md 0.1, 8.1).
//
// For verification and tests: the kernels read packed records themselves. Every
// simulated value is exact in bf16, so both directions lose nothing.
#pragma once

#include <cstdint>

#include "kernels/tensor.h"

namespace galley::model {

// `values` gets `width` numbers.
void unpack_window_record(const uint8_t* record, int64_t width, kernels::Bf16* values);
void unpack_global_record(const uint8_t* record, int64_t width, kernels::Bf16* values);
void unpack_index_record(const uint8_t* record, int64_t width, kernels::Bf16* values);

// The record that unpacks to exactly these values; false when none does.
bool pack_global_record(const kernels::Bf16* values, int64_t width, uint8_t* record);
bool pack_index_record(const kernels::Bf16* values, int64_t width, uint8_t* record);

}  // namespace galley::model
