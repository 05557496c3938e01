#include "kernels/cuda/expert_tables.h"

#include <utility>
#include <vector>

namespace galley::kernels::cuda {

Result<const ExpertTable*> ExpertTables::of(const MoeWeights& weights) {
  Placed& placed = placed_[weights.experts.data()];
  if (placed.block.bytes() > 0) return &placed.table;
  const size_t count = weights.experts.size();
  std::vector<WeightView> views(3 * count);
  for (size_t e = 0; e < count; ++e) {
    views[e] = weights.experts[e].w1;
    views[count + e] = weights.experts[e].w3;
    views[2 * count + e] = weights.experts[e].w2;
  }
  const auto size = static_cast<int64_t>(views.size() * sizeof(WeightView));
  placed.block = TRY(MemoryBlock::create(memory_, size, "the table of experts"));
  memory_.write(placed.block.data(), views.data(), size);
  const auto* first = reinterpret_cast<const WeightView*>(placed.block.data());
  for (size_t m = 0; m < 3; ++m) placed.table.matrix[m] = first + m * count;
  return &placed.table;
}

}  // namespace galley::kernels::cuda
