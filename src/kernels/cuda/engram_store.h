// Rows of Engram tables on their way to a step: from device memory, from the rows that the device
// keeps of a table in host memory, or brought along.
//
// A small step's lookups are posted: their launches name a place of device memory and wait for it;
// it is filled when the ids are known, be it while the step runs, by copies beside the kernels.
// There are places for two steps in flight. A larger step stages all its rows, whose ids must be
// known. (Kernels that read the host's memory themselves took 330 us for the rows of 64 sequences,
// 1.2 GB/s.)
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
  EngramStore(Memory& memory, Stream copies);

  // For steps that look up these tables in this order, each `columns` rows of a table a row:
  // hot rows of tables in host memory (256 MiB each, all forgotten), places for the posts of
  // `rows` rows. Nothing of the device may be under way. kExhausted without memory.
  Result<void> reserve(std::span<const EngramTable> tables, int64_t columns, int64_t rows);

  // Whether a step of so many rows can post all its lookups.
  bool posts_all(int64_t rows) const { return rows <= rows_max_; }

  // The lookups that follow are those of a step; that of the call before the last has ended.
  void begin_step();

  // Whether this lookup, the next of its step, is one of those that were reserved.
  bool posts(const EngramTable& table, Rows<const int64_t> ids) const;

  // Arguments of engram_lookup_kept (cells) or of engram_lookup. `ids` are read by fill().
  struct Posted {
    PostFlag* flag = nullptr;
    EngramRows kept;
    EngramRows staged;
    const EngramCell* cells = nullptr;
    Rows<const int64_t> ids;
  };
  Posted post(const EngramTable& table, Rows<const int64_t> ids);
  void fill();     // everything posted
  void release();  // what waits on the device goes on, with whatever lies there

  // Arguments of engram_lookup, on the device with the step's upload. Null ids: the arena is full,
  // which the step's end tells.
  struct Gathered {
    const uint8_t* codes = nullptr;
    const uint8_t* scale = nullptr;
    Rows<const int64_t> ids;
  };
  Gathered gather(const EngramTable& table, Rows<const int64_t> ids, StageArena& arena);

 private:
  struct KeptRows {
    explicit KeptRows(int64_t places) : policy(places) {}
    HotRows policy;
    MemoryBlock codes;
    MemoryBlock scale;
    std::vector<int64_t> brought;  // the rows that a call brings
  };
  // A place for one lookup of one of two steps: the host's side, and the same on the device.
  struct Side {
    MemoryBlock room;
    std::byte* cells = nullptr;  // EngramCell, or ids of a table on the device
    std::byte* codes = nullptr;
    std::byte* scale = nullptr;
  };
  struct Place {
    const uint8_t* table = nullptr;  // its codes
    bool on_host = false;
    int64_t cells_max = 0;
    Side host;
    Side device;
    PostFlag* flag = nullptr;   // in the device's room
    uint64_t* posts = nullptr;  // in the host's
    // Of the lookup that is posted and not filled.
    EngramTable wanted;
    Rows<const int64_t> ids;
    bool waits = false;
  };

  Result<void> keep(const EngramTable& table, int64_t cells);
  Result<Place> make_place(const EngramTable& table, int64_t cells);
  void fill(Place& place);
  void send(const std::byte* host, std::byte* device, int64_t bytes);
  void raise(Place& place);
  std::vector<Place>& places() { return places_[side_]; }
  void copy_rows(const EngramTable& table, std::span<const int64_t> rows, std::byte* codes,
                 std::byte* scale);

  Memory& memory_;
  Stream copies_;
  ThreadPool pool_;
  std::map<const uint8_t*, KeptRows> kept_;  // by a table's codes
  std::vector<Place> places_[2];             // in the order of a step's lookups
  size_t side_ = 0;
  size_t next_ = 0;  // of places()
  int64_t rows_max_ = 0;
};

}  // namespace galley::kernels::cuda
