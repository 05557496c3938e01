// What an Ops does that leaves it to the interface.
#include "kernels/ops.h"

namespace galley::kernels {

WeightFolds* Ops::folds() { return nullptr; }

void Ops::norm_linear(Rows<Bf16> x, const Bf16* weight, float eps,
                      std::span<const Product> products) {
  rms_norm(x, weight, eps, x);
  linear(x, products);
}

}  // namespace galley::kernels
