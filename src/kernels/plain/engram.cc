#include "kernels/plain/engram.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/number_formats.h"
#include "kernels/plain/dot.h"
#include "kernels/plain/quantise.h"

namespace galley::kernels::plain {

void engram_read(const uint8_t* table, const uint8_t* scale, int64_t width, int64_t id, Bf16* e) {
  std::vector<float> row(static_cast<size_t>(width));
  dequantise_q8(table + id * width, scale + id * ((width + 31) / 32), width, row.data());
  for (int64_t i = 0; i < width; ++i) e[i] = to_bf16(row[i]);
}

void engram_write_row(const Bf16* kv, const Bf16* q_weight, const Bf16* k_weight, int64_t hidden,
                      int32_t stream_count, float eps, Bf16* streams, float* gate) {
  const auto width = static_cast<float>(hidden);
  const auto scale = static_cast<float>(std::pow(static_cast<double>(hidden), -0.5));
  const Bf16* value = kv + stream_count * hidden;
  std::vector<float> stream(static_cast<size_t>(hidden));
  std::vector<float> key(static_cast<size_t>(hidden));
  std::vector<float> weighted(static_cast<size_t>(hidden));
  for (int32_t j = 0; j < stream_count; ++j) {
    for (int64_t i = 0; i < hidden; ++i) {
      const int64_t at = j * hidden + i;
      stream[i] = to_f32(streams[at]);
      key[i] = to_f32(kv[at]);
      weighted[i] = stream[i] * (to_f32(q_weight[at]) * to_f32(k_weight[at]));
    }
    const float stream_mean = sum_of_products(stream.data(), stream.data(), hidden) / width;
    const float key_mean = sum_of_products(key.data(), key.data(), hidden) / width;
    const float nu = (1.0F / std::sqrt(stream_mean + eps)) * (1.0F / std::sqrt(key_mean + eps));
    const float delta = sum_of_products(weighted.data(), key.data(), hidden) * nu * scale;
    // copysign: +0 counts as positive.
    const float root = std::copysign(std::sqrt(std::max(std::fabs(delta), 1e-6F)), delta);
    const float gamma = 1.0F / (1.0F + exp_f32(-root));
    if (gate != nullptr) gate[j] = gamma;
    for (int64_t i = 0; i < hidden; ++i) {
      streams[j * hidden + i] = to_bf16(stream[i] + gamma * to_f32(value[i]));
    }
  }
}

}  // namespace galley::kernels::plain
