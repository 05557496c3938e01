#include "model/engram_prefetch.h"

#include <sys/mman.h>
#include <unistd.h>

namespace galley::model {
namespace {

// A table below this stays in memory once read; asking the system for each of
// its rows would cost more than the rows.
constexpr int64_t kResidentBytes = int64_t{256} << 20;
constexpr int64_t kSamples = 256;  // of a larger one: with any missing, its rows are asked for
// More rows than this come in a chunk that takes far longer than memory does.
constexpr int64_t kCacheRowsMax = 32;
constexpr int64_t kCacheLine = 64;

void ask_system(const uint8_t* begin, int64_t bytes, int64_t page) {
  const auto address = reinterpret_cast<uintptr_t>(begin);
  const uintptr_t aligned = address / page * page;
  // A hint: should it fail, the row is read when it is needed.
  static_cast<void>(madvise(reinterpret_cast<void*>(aligned),
                            static_cast<size_t>(bytes) + (address - aligned), MADV_WILLNEED));
}

void ask_processor(const uint8_t* begin, int64_t bytes) {
  for (int64_t offset = 0; offset < bytes; offset += kCacheLine) {
    __builtin_prefetch(begin + offset);
  }
}

}  // namespace

bool engram_rows_on_disk(const EngramWeights& weights, int64_t head_dim) {
  const int64_t bytes = weights.table_rows * head_dim;
  if (bytes <= kResidentBytes) return false;
  const int64_t page = sysconf(_SC_PAGESIZE);
  for (int64_t i = 0; i < kSamples; ++i) {
    const auto address =
        reinterpret_cast<uintptr_t>(weights.table) + static_cast<uintptr_t>(bytes / kSamples * i);
    unsigned char resident = 0;
    const int asked = mincore(reinterpret_cast<void*>(address / page * page), 1, &resident);
    if (asked != 0 || (resident & 1) == 0) return true;
  }
  return false;
}

void prefetch_engram_rows(const EngramWeights& weights, int64_t head_dim, bool on_disk,
                          kernels::Rows<const int64_t> ids) {
  const int64_t scale_bytes = (head_dim + 31) / 32;
  if (!on_disk && ids.rows > kCacheRowsMax) return;
  static const int64_t page = sysconf(_SC_PAGESIZE);
  for (int64_t row = 0; row < ids.rows; ++row) {
    for (int64_t column = 0; column < ids.cols; ++column) {
      const int64_t id = ids.row(row)[column];
      const uint8_t* codes = weights.table + id * head_dim;
      const uint8_t* scales = weights.scale + id * scale_bytes;
      if (on_disk) {
        ask_system(codes, head_dim, page);
        ask_system(scales, scale_bytes, page);
      } else {
        ask_processor(codes, head_dim);
        ask_processor(scales, scale_bytes);
      }
    }
  }
}

}  // namespace galley::model
