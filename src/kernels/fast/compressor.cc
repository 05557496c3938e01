// Gated pooling of a group into a latent (spec/model.md 4.3): per channel over the
// group's members in order, f32. Floor: bytes of kv and gate.
#include "kernels/fast/isa_class.h"
#include "kernels/fast/norm.h"

namespace galley::kernels::GALLEY_ISA {

void FastOps::compress(Rows<const float> kv, Rows<const float> gate, int32_t ratio,
                       const Bf16* norm_weight, float eps, Rows<Bf16> latent) {
  for_rows(latent.rows, latent.cols * ratio * 2, [&](int64_t begin, int64_t count, int) {
    for (int64_t g = begin; g < begin + count; ++g) {
      Bf16* out = latent.row(g);
      for_lanes(latent.cols, [&](int64_t i, int64_t n) {
        VecF gate_max = load(gate.row(g * ratio) + i, n);
        for (int32_t m = 1; m < ratio; ++m) {
          gate_max = hn::Max(gate_max, load(gate.row(g * ratio + m) + i, n));
        }
        VecF sum = zero();
        for (int32_t m = 0; m < ratio; ++m) {
          sum = hn::Add(sum, exp(hn::Sub(load(gate.row(g * ratio + m) + i, n), gate_max)));
        }
        VecF z = zero();
        for (int32_t m = 0; m < ratio; ++m) {
          const VecF p = exp(hn::Sub(load(gate.row(g * ratio + m) + i, n), gate_max));
          z = hn::Add(z, hn::Mul(load(kv.row(g * ratio + m) + i, n), hn::Div(p, sum)));
        }
        store(z, out + i, n);
      });
      rms_norm_row(out, norm_weight, latent.cols, eps, out);
    }
  });
}

}  // namespace galley::kernels::GALLEY_ISA
