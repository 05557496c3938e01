// The class of every token id that the Engram hash sees: tokens that read
// alike (case, accents, width, one space) share one (spec/model.md 6.1).
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "model/tokenizer.h"

namespace galley::model {

struct CompressedIds {
  std::vector<int32_t> class_of;  // [vocab size]
  int32_t class_count = 0;
};

// `vocab_size` and `expected_class_count` come from the config; another number
// of classes is refused, since every hash multiplier depends on it.
Result<CompressedIds> compressed_ids(const Tokenizer& tokenizer, int32_t vocab_size,
                                     int32_t expected_class_count);

}  // namespace galley::model
