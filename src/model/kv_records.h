// Packed cache records to numbers and back, exactly (spec/model.md 0.1, 8.1).
//
// For verification and tests: the kernels read packed records themselves. Quantising values that
// were quantised before does not always give them back (a group whose scale sat on its floor gets
// a smaller one), so packing searches for a scale under which every value of the group is a code.
// Knows the three record formats of kernels/tensor.h, nothing of pages or layers.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "kernels/tensor.h"

namespace galley::model {

enum class RecordKind : uint8_t {
  kWindow,  // Q8: E4M3 codes, UE8M0 scale per 32
  kGlobal,  // Q4e4: E2M1 codes, E4M3 scale per 16
  kIndex,   // Q4e8: E2M1 codes, UE8M0 scale per 32
};
int64_t record_bytes(RecordKind kind, int64_t width);

// Writes record_bytes(kind, values.size()) bytes. kCorrupt when a group of `values` is not of the
// format.
Result<void> pack_record(RecordKind kind, std::span<const kernels::Bf16> values, uint8_t* record);

// One channel of a record that holds `width`: exact in bf16.
float record_value(RecordKind kind, const uint8_t* record, int64_t width, int64_t channel);

// The widest gap between a channel's code and its neighbours, in the channel's units.
float record_step(RecordKind kind, const uint8_t* record, int64_t width, int64_t channel);

}  // namespace galley::model
