#include "model/preload.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

// Of Linux 5.14; older kernels refuse it.
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace galley::model {
namespace {

constexpr size_t kStepBytes = size_t{16} << 20;

struct Range {
  uintptr_t begin;
  uintptr_t end;
};

std::vector<Range> ranges_of(const Checkpoint& checkpoint) {
  std::vector<Range> ranges;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (std::string_view(name).find("engram.embed.") != std::string_view::npos) continue;
    const auto begin = reinterpret_cast<uintptr_t>(tensor.data);
    ranges.push_back({begin, begin + tensor.size_bytes});
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  return ranges;
}

}  // namespace

int64_t preload_bytes(const Checkpoint& checkpoint) {
  int64_t bytes = 0;
  for (const Range& range : ranges_of(checkpoint)) {
    bytes += static_cast<int64_t>(range.end - range.begin);
  }
  return bytes;
}

void preload(const Checkpoint& checkpoint, const std::function<bool(int64_t)>& progress) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  int64_t done = 0;
  for (const Range& range : ranges_of(checkpoint)) {
    for (uintptr_t at = range.begin; at < range.end;) {
      const uintptr_t end = std::min<uintptr_t>(range.end, at + kStepBytes);
      const uintptr_t aligned = at / page * page;
      auto* const memory = reinterpret_cast<void*>(aligned);
      // A file that fails to be read says so here, and ends the program at its use (mapping_fault).
      if (::madvise(memory, end - aligned, MADV_POPULATE_READ) != 0) {
        ::madvise(memory, end - aligned, MADV_WILLNEED);
      }
      done += static_cast<int64_t>(end - at);
      at = end;
      if (!progress(done)) return;
    }
  }
}

}  // namespace galley::model
