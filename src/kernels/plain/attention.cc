#include "kernels/plain/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/check.h"
#include "kernels/number_formats.h"
#include "kernels/plain/dot.h"
#include "kernels/plain/quantise.h"

namespace galley::kernels::plain {
namespace {

constexpr int64_t kBlockSlots = 64;  // of the reference's kernel
constexpr float kMaxStart = -1e30F;  // of the reference's kernel; a row without keys gives zeros

const uint8_t* window_record(const AttentionRow& row, int64_t position, int64_t record_bytes) {
  if (position >= row.chunk_begin) {
    return row.chunk + (position - row.chunk_begin) * record_bytes;
  }
  return row.ring + (position % row.ring_slots) * record_bytes;
}

}  // namespace

void attend(const float* q, const float* keys, const uint8_t* present, int64_t slot_count,
            int64_t width, float sink, Bf16* o) {
  const auto scale = static_cast<float>(std::pow(static_cast<double>(width), -0.5));
  float running_max = kMaxStart;
  float denominator = 0.0F;
  std::vector<float> numerator(static_cast<size_t>(width), 0.0F);
  std::vector<float> block(static_cast<size_t>(width));
  float ones[kBlockSlots];
  std::fill(ones, ones + kBlockSlots, 1.0F);
  for (int64_t begin = 0; begin < slot_count; begin += kBlockSlots) {
    const int64_t count = std::min(kBlockSlots, slot_count - begin);
    float score[kBlockSlots];
    float block_max = running_max;
    for (int64_t j = 0; j < count; ++j) {
      score[j] = present[begin + j] != 0 ? dot(q, keys + (begin + j) * width, width) * scale
                                         : -std::numeric_limits<float>::infinity();
      block_max = std::max(block_max, score[j]);
    }
    const float rescale = std::exp(running_max - block_max);
    running_max = block_max;
    float probability[kBlockSlots] = {};
    std::fill(block.begin(), block.end(), 0.0F);
    for (int64_t j = 0; j < count; ++j) {
      if (present[begin + j] == 0) continue;
      probability[j] = std::exp(score[j] - running_max);
      const float rounded = round_bf16(probability[j]);
      const float* value = keys + (begin + j) * width;
      for (int64_t i = 0; i < width; ++i) block[i] = std::fma(rounded, value[i], block[i]);
    }
    for (int64_t i = 0; i < width; ++i) numerator[i] = numerator[i] * rescale + block[i];
    denominator = denominator * rescale + sum_of_products(probability, ones, count);
  }
  denominator += std::exp(sink - running_max);
  for (int64_t i = 0; i < width; ++i) o[i] = to_bf16(numerator[i] / denominator);
}

void attention_row(const Bf16* q, const float* sink, const AttentionShape& shape,
                   const AttentionRow& row, Bf16* o) {
  const int64_t width = shape.head_dim;
  const int64_t window_count = row.position - row.window_begin + 1;
  CHECK(window_count >= 0 && window_count <= shape.window);
  const int64_t slot_count = shape.window + row.selection();
  std::vector<float> keys(static_cast<size_t>(slot_count * width));
  std::vector<uint8_t> present(static_cast<size_t>(slot_count), 0);
  const int64_t record_bytes = window_record_bytes(width);
  for (int64_t i = 0; i < window_count; ++i) {
    read_window_record(window_record(row, row.window_begin + i, record_bytes), width,
                       keys.data() + i * width);
    present[i] = 1;
  }
  for (int64_t i = 0; i < row.selection(); ++i) {
    const int64_t slot = shape.window + i;
    read_global_record(row.global.record(row.selected[i]), width, keys.data() + slot * width);
    present[slot] = 1;
  }
  std::vector<float> wide(static_cast<size_t>(width));
  for (int32_t head = 0; head < shape.heads; ++head) {
    for (int64_t i = 0; i < width; ++i) wide[i] = to_f32(q[head * width + i]);
    attend(wide.data(), keys.data(), present.data(), slot_count, width, sink[head],
           o + head * width);
  }
}

}  // namespace galley::kernels::plain
