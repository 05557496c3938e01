#include "kernels/plain/rope.h"

#include "kernels/number_formats.h"

namespace galley::kernels::plain {

void rope(Bf16* x, int64_t width, const float* cos, const float* sin, int64_t rotary,
          bool inverse) {
  Bf16* pairs = x + width - rotary;
  for (int64_t u = 0; u < rotary / 2; ++u) {
    const float a = to_f32(pairs[2 * u]);
    const float b = to_f32(pairs[2 * u + 1]);
    const float c = cos[u];
    const float s = inverse ? -sin[u] : sin[u];
    pairs[2 * u] = to_bf16(a * c - b * s);
    pairs[2 * u + 1] = to_bf16(a * s + b * c);
  }
}

}  // namespace galley::kernels::plain
