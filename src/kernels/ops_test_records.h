// Cache records for the kernel tests: the three kinds, and random records
// scattered over pages.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/ops_test_cases.h"

namespace galley::kernels {

struct RecordKind {
  const char* name;
  int64_t (*bytes)(int64_t width);
  void (*write)(const Bf16* x, int64_t width, uint8_t* record);
  void (*read)(const uint8_t* record, int64_t width, float* x);
  bool normalises;
  double step;  // largest code step over the largest code
};

const RecordKind& window_kind();
const RecordKind& global_kind();
const RecordKind& index_kind();

// Random records of one kind scattered over pages in a shuffled order.
struct StoredPages {
  StoredPages(Random& random, const RecordKind& kind, int64_t width, int64_t count,
              int32_t records_per_page_in);

  PagedRecords view();

  int64_t record_bytes;
  int32_t records_per_page;
  int64_t page_stride = 0;
  std::vector<int32_t> table;
  std::vector<uint8_t> bytes;
  std::vector<std::vector<double>> values;  // decoded, by entry
};

}  // namespace galley::kernels
