// What the engine does at one moment, for people to look at.
//
// Filled by the engine thread between two steps, and only when somebody asked
// since the last one: nobody pays for it who does not look.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/page_ages.h"
#include "engine/request.h"

namespace galley::engine {

struct RunningSequence {
  SequenceId id{};
  Usage usage;
  bool replays = false;  // its steps refill the windows
  int64_t computed = 0;  // tokens whose KV is there
};

struct EngineGlance {
  TimePoint at;
  std::vector<RunningSequence> running;    // at most sequences_max
  int32_t pages_unused = 0;                // hold nothing
  cache::PageAges::Bands pages_kept = {};  // by nobody but the prefix index
};

}  // namespace galley::engine
