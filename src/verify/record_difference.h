// How two packed cache records of the same channels differ: as numbers, in quantiser steps.
#pragma once

#include <cstdint>

#include "model/kv_records.h"

namespace galley::verify {

struct RecordDifference {
  int64_t elements = 0;
  int64_t unequal = 0;  // as numbers: -0 equals 0
  int64_t far = 0;      // further apart than one quantiser step of either
  void add(const RecordDifference& other);
};
RecordDifference compare_records(model::RecordKind kind, const uint8_t* measured,
                                 const uint8_t* expected, int64_t width);

}  // namespace galley::verify
