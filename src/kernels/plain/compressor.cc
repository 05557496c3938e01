#include "kernels/plain/compressor.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/number_formats.h"
#include "kernels/plain/dot.h"
#include "kernels/plain/norm.h"

namespace galley::kernels::plain {

void compress_group(const float* kv, int64_t kv_stride, const float* gate, int64_t gate_stride,
                    int32_t ratio, const Bf16* norm_weight, int64_t width, float eps,
                    Bf16* latent) {
  std::vector<float> p(static_cast<size_t>(ratio));
  for (int64_t i = 0; i < width; ++i) {
    float gate_max = gate[i];
    for (int32_t m = 1; m < ratio; ++m) gate_max = std::max(gate_max, gate[m * gate_stride + i]);
    float sum = 0.0F;
    for (int32_t m = 0; m < ratio; ++m) {
      p[m] = exp_f32(gate[m * gate_stride + i] - gate_max);
      sum += p[m];
    }
    float z = 0.0F;
    for (int32_t m = 0; m < ratio; ++m) z += kv[m * kv_stride + i] * (p[m] / sum);
    latent[i] = to_bf16(z);
  }
  rms_norm(latent, norm_weight, width, eps, latent);
}

}  // namespace galley::kernels::plain
