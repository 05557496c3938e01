// Engram rows and the gated write (spec/model.md 6.5). Sums as in norm.h. Floor: the
// table rows' bytes; the limit is the latency of memory far away, so all rows of a
// call are prefetched before the first is read.
#include <hwy/cache_control.h>

#include "base/check.h"
#include "kernels/fast/isa_class.h"
#include "kernels/fast/norm.h"
#include "kernels/fast/quantise.h"

namespace galley::kernels::GALLEY_ISA {

void FastOps::engram_lookup(const EngramTable& table, Rows<const int64_t> ids, Rows<Bf16> e) {
  const int64_t width = table.width;
  const int64_t blocks = (width + 31) / 32;
  for_rows(ids.rows, ids.cols * (width + 200), [&](int64_t begin, int64_t count, int) {
    for (int64_t r = begin; r < begin + count; ++r) {
      for (int64_t c = 0; c < ids.cols; ++c) {
        const uint8_t* row = table.codes + ids.row(r)[c] * width;
        for (int64_t line = 0; line < width; line += 64) hwy::Prefetch(row + line);
        hwy::Prefetch(table.scale + ids.row(r)[c] * blocks);
      }
    }
    for (int64_t r = begin; r < begin + count; ++r) {
      for (int64_t c = 0; c < ids.cols; ++c) {
        const int64_t id = ids.row(r)[c];
        read_fp8_row(table.codes + id * width, table.scale + id * blocks, width,
                     e.row(r) + c * width);
      }
    }
  });
}

void FastOps::engram_write(Rows<const Bf16> kv, const Bf16* q_weight, const Bf16* k_weight,
                           std::span<const uint8_t> alive, int32_t stream_count, float eps,
                           Rows<Bf16> streams, Rows<float> gate) {
  const int64_t hidden = streams.cols / stream_count;
  const auto scale = static_cast<float>(std::pow(static_cast<double>(hidden), -0.5));
  const uint8_t* living = alive.data();
  for_rows(streams.rows, streams.cols, [&](int64_t begin, int64_t count, int) {
    for (int64_t r = begin; r < begin + count; ++r) {
      if (living[r] == 0) {
        if (gate.data != nullptr) {
          for (int32_t j = 0; j < stream_count; ++j) gate.row(r)[j] = 0.0F;
        }
        continue;
      }
      const Bf16* value = kv.row(r) + stream_count * hidden;
      for (int32_t j = 0; j < stream_count; ++j) {
        Bf16* s = streams.row(r) + j * hidden;
        const Bf16* key = kv.row(r) + j * hidden;
        const Bf16* q = q_weight + j * hidden;
        const Bf16* k = k_weight + j * hidden;
        const float nu = inverse_rms(s, hidden, eps) * inverse_rms(key, hidden, eps);
        const float product = sum_terms(hidden, [&](int64_t i, int64_t n) {
          const VecF weighted = hn::Mul(load(s + i, n), hn::Mul(load(q + i, n), load(k + i, n)));
          return hn::Mul(weighted, load(key + i, n));
        });
        const float delta = product * nu * scale;
        // copysign: +0 counts as positive.
        const float size = std::fabs(delta) < 1e-6F ? 1e-6F : std::fabs(delta);  // keeps NaN
        const float root = std::copysign(std::sqrt(size), delta);
        const float gamma = hn::GetLane(sigmoid(set(root)));
        if (gate.data != nullptr) gate.row(r)[j] = gamma;
        for_lanes(hidden, [&](int64_t i, int64_t n) {
          store(hn::Add(load(s + i, n), hn::Mul(set(gamma), load(value + i, n))), s + i, n);
        });
      }
    }
  });
}

}  // namespace galley::kernels::GALLEY_ISA
