// Cache records and the numbers they hold: stored bf16 values to packed records
// and back, exactly.
//
// Quantising values that were quantised before does not always give them back
// (a group whose scale sat on its floor gets a smaller one), so packing searches
// for a scale under which every value of the group is a code. Knows the three
// record formats of kernels/tensor.h, nothing of pages or layers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "kernels/tensor.h"

namespace galley::verify {

enum class RecordKind : uint8_t {
  kWindow,  // Q8: E4M3 codes, UE8M0 scale per 32
  kGlobal,  // Q4e4: E2M1 codes, E4M3 scale per 16
  kIndex,   // Q4e8: E2M1 codes, UE8M0 scale per 32
};
int64_t record_bytes(RecordKind kind, int64_t width);

// kCorrupt when a group of `values` is not of the format.
Result<std::vector<uint8_t>> pack_record(RecordKind kind, std::span<const kernels::Bf16> values);

// values.size() channels; all are exact in bf16.
void unpack_record(RecordKind kind, const uint8_t* record, std::span<float> values);

// How two records of the same channels differ.
struct RecordDifference {
  int64_t elements = 0;
  int64_t unequal = 0;  // as numbers: -0 equals 0
  int64_t far = 0;      // further apart than one quantiser step of either
  void add(const RecordDifference& other);
};
RecordDifference compare_records(RecordKind kind, const uint8_t* measured, const uint8_t* expected,
                                 int64_t width);

}  // namespace galley::verify
