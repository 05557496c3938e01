#include "verify/record_difference.h"

#include <algorithm>
#include <cmath>

namespace galley::verify {

void RecordDifference::add(const RecordDifference& other) {
  elements += other.elements;
  unequal += other.unequal;
  far += other.far;
}

RecordDifference compare_records(model::RecordKind kind, const uint8_t* measured,
                                 const uint8_t* expected, int64_t width) {
  RecordDifference result;
  result.elements = width;
  for (int64_t i = 0; i < width; ++i) {
    const float m = model::record_value(kind, measured, width, i);
    const float e = model::record_value(kind, expected, width, i);
    if (m == e) continue;
    ++result.unequal;
    const float step = std::max(model::record_step(kind, measured, width, i),
                                model::record_step(kind, expected, width, i));
    if (!(std::fabs(m - e) <= step)) ++result.far;
  }
  return result;
}

}  // namespace galley::verify
