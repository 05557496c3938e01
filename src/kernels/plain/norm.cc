#include "kernels/plain/norm.h"

#include <cmath>
#include <vector>

#include "kernels/number_formats.h"
#include "kernels/plain/dot.h"

namespace galley::kernels::plain {

void rms_norm(const Bf16* x, const Bf16* weight, int64_t width, float eps, Bf16* y) {
  std::vector<float> wide(static_cast<size_t>(width));
  for (int64_t i = 0; i < width; ++i) wide[i] = to_f32(x[i]);
  const float mean = sum_of_products(wide.data(), wide.data(), width) / static_cast<float>(width);
  const float inverse = 1.0F / std::sqrt(mean + eps);
  for (int64_t i = 0; i < width; ++i) y[i] = to_bf16(wide[i] * inverse * to_f32(weight[i]));
}

}  // namespace galley::kernels::plain
