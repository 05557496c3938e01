// The sources of a step's streams, which wait for the copies that follow them: one launch makes
// both.
//
// Owned by the engine's thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/cuda/memory_span.h"
#include "kernels/ops.h"

namespace galley::kernels::cuda {

struct HeldSpread {
  const SourceRow* sources = nullptr;  // of the device
  Rows<Bf16> streams;                  // without rows: nothing is held
  MemorySpan rows;                     // that sources are, and what lies between them
  MemorySpan drawn;                    // tokens

  static HeldSpread of(std::span<const SourceRow> host, const SourceRow* staged, int64_t hidden,
                       Rows<Bf16> streams) {
    HeldSpread spread{staged, streams, {}, {}};
    for (const SourceRow& one : host) {
      spread.rows = spread.rows.with(MemorySpan::of(one.row, hidden * int64_t{sizeof(Bf16)}));
      if (one.drawn == nullptr) continue;
      spread.drawn = spread.drawn.with(MemorySpan::of(one.drawn, int64_t{sizeof(DrawnToken)}));
    }
    return spread;
  }

  bool empty() const { return streams.rows == 0; }
  // Whether the order of the copies and of the streams matters. Where a row of the table is drawn,
  // nobody here knows which: tables are constant.
  bool meets(std::span<const RowCopy> copies) const {
    const MemorySpan ours = MemorySpan::of(streams);
    return std::ranges::any_of(copies, [&](const RowCopy& one) {
      const auto to = MemorySpan::of(one.to, one.bytes);
      return to.meets(rows) || to.meets(drawn) || to.meets(ours) ||
             MemorySpan::of(one.from, one.bytes).meets(ours);
    });
  }
};

}  // namespace galley::kernels::cuda
