// What ranks of an expert-parallel group do together outside of kernels: they tell each other a
// number (a step's control vector) and where they keep what others write to.
//
// A rank is a thread of its own with kernels of its own. What kernels of one rank send to another's
// memory, and how they wait for it, is kernels/expert_sharing.h; who sends what is
// expert_parallel.h. Every call is a meeting: it returns when all ranks made the same call, or with
// an error when one of them left. Owned by the rank's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/result.h"

namespace galley::cluster {

class Collectives {
 public:
  virtual ~Collectives() = default;

  virtual int32_t rank() const = 0;
  virtual int32_t size() const = 0;

  // Every rank's value, by rank.
  virtual Result<std::vector<int64_t>> exchange(int64_t value) = 0;
  // Every rank's room, at the address where this rank's kernels reach it. Whoever made a room keeps
  // it until all ranks met again.
  virtual Result<std::vector<std::byte*>> share(std::byte* room) = 0;
};

}  // namespace galley::cluster
