// Rows of Engram tables on their way to a step: from device memory, from the rows that the device
// keeps of a table in host memory, or brought with the step's arguments.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "kernels/cuda/engram.h"
#include "kernels/cuda/hot_rows.h"
#include "kernels/cuda/stage_arena.h"
#include "kernels/memory.h"
#include "kernels/ops.h"

namespace galley::kernels::cuda {

class EngramStore {
 public:
  // The arena is that of the steps; both outlive this.
  EngramStore(Memory& memory, StageArena& arena);

  // Makes room for the hot rows of a table in host memory (256 MiB), all of them forgotten; other
  // tables want none. Nothing of the device may be under way. kExhausted without memory.
  Result<void> keep(const EngramTable& table);

  // Whether a lookup of these ids goes through the hot rows: larger ones bring every row.
  bool keeps(const EngramTable& table, Rows<const int64_t> ids) const;

  // Arguments of engram_lookup_kept and engram_lookup, on the device with the step's upload. Null
  // cells or ids: the arena is full, which the step's end tells.
  struct Kept {
    EngramRows kept;
    EngramRows staged;
    const EngramCell* cells = nullptr;
  };
  Kept bring(const EngramTable& table, Rows<const int64_t> ids);
  struct Gathered {
    const uint8_t* codes = nullptr;
    const uint8_t* scale = nullptr;
    Rows<const int64_t> ids;
  };
  Gathered gather(const EngramTable& table, Rows<const int64_t> ids);

 private:
  struct KeptRows {
    explicit KeptRows(int64_t places) : policy(places) {}
    HotRows policy;
    MemoryBlock codes;
    MemoryBlock scale;
    std::vector<EngramCell> cells;  // of a call
    std::vector<int64_t> brought;   // the rows that it brings
  };

  void copy_rows(const EngramTable& table, std::span<const int64_t> rows, std::byte* codes,
                 std::byte* scale);

  Memory& memory_;
  StageArena& arena_;
  ThreadPool pool_;
  std::map<const uint8_t*, KeptRows> kept_;  // by a table's codes
};

}  // namespace galley::kernels::cuda
