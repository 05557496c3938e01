// Views of a layer's stored experts where kernels can read them.
#pragma once

#include <array>
#include <map>

#include "base/result.h"
#include "kernels/memory.h"
#include "kernels/ops.h"

namespace galley::kernels::cuda {

// One list of views a matrix, in device memory.
struct ExpertTable {
  std::array<const WeightView*, 3> matrix = {};  // w1, w3, w2
};

class ExpertTables {
 public:
  explicit ExpertTables(Memory& memory) : memory_(memory) {}

  // Made when a layer is first asked for; layers are told apart by where their experts' views are.
  // kExhausted without memory for it.
  Result<const ExpertTable*> of(const MoeWeights& weights);

 private:
  struct Placed {
    MemoryBlock block;
    ExpertTable table;
  };

  Memory& memory_;
  std::map<const ExpertWeights*, Placed> placed_;
};

}  // namespace galley::kernels::cuda
