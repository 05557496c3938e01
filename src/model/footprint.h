// How large a model is: values and bytes by part and by type, bytes of cache per
// token and per sequence, and what of it a given memory holds.
//
// Arithmetic over the config alone, so that a planner can ask about machines
// that are not there.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "model/config.h"
#include "model/inventory.h"

namespace galley::model {

struct PartSize {
  int64_t parameters = 0;  // weights; scales are no parameters
  int64_t bytes = 0;       // scales included
};

struct DTypeSize {
  DType dtype = DType::kU8;
  int64_t tensors = 0;
  int64_t bytes = 0;
};

struct Footprint {
  std::array<PartSize, kPartCount> parts;  // by Part
  std::vector<DTypeSize> dtypes;           // those that occur
  int64_t tensors = 0;
  int64_t parameters = 0;
  int64_t bytes = 0;
  int64_t active_parameters = 0;  // weights multiplied per decoded token, head included

  int64_t kv_bytes_per_token = 0;     // global KV and index keys of all sources, packed
  int64_t kv_bytes_per_sequence = 0;  // window rings and pending groups, drafting excluded

  // What every token needs, what only chosen experts need, what is looked up by rows.
  int64_t always_bytes = 0;
  int64_t expert_bytes = 0;
  int64_t table_bytes = 0;
  int64_t draft_bytes = 0;
  int64_t vision_bytes = 0;

  const PartSize& part(Part part) const { return parts[static_cast<size_t>(part)]; }
};

Footprint footprint(const Config& config);

// What fits in `memory_bytes`: weights first, then one sequence of this many tokens.
struct Fit {
  bool weights = false;          // text weights without tables stay in memory
  bool always = false;           // at least those that every token needs; experts come from disk
  bool tables = false;           // the Engram tables too
  int64_t context_resident = 0;  // tokens with all text weights in memory, 0 if they do not fit
  int64_t context_paged = 0;     // tokens with experts read from disk as they are chosen
};

Fit fit(const Config& config, const Footprint& size, int64_t memory_bytes);

}  // namespace galley::model
