// The bits of NumPy's default random generator for a small integer seed.
//
// Only what Engram's multipliers need (spec/model.md 6.3): SeedSequence and
// PCG64 (XSL-RR, 128-bit state), and a bounded draw. Sources: O'Neill 2014, "PCG: a family of
// simple fast space-efficient statistically good algorithms"; Lemire 2019, "Fast random integer
// generation in an interval".
#pragma once

#include <cstdint>

namespace galley::model {

class Pcg64 {
 public:
  explicit Pcg64(uint64_t seed);

  uint64_t next();
  // Uniform in [0, bound); `bound` above 2^32, below which NumPy draws differently.
  uint64_t below(uint64_t bound);

 private:
  __extension__ typedef unsigned __int128 Wide;

  void step();

  Wide state_ = 0;
  Wide increment_ = 0;
};

}  // namespace galley::model
