#include "kernels/plain/quantise.h"

#include <algorithm>
#include <cmath>

#include "kernels/number_formats.h"

namespace galley::kernels::plain {
namespace {

// a = max(max|x|, floor) over one group.
float group_amax(const Bf16* x, int64_t count, float floor) {
  float amax = floor;
  for (int64_t i = 0; i < count; ++i) amax = std::max(amax, std::fabs(to_f32(x[i])));
  return amax;
}

// Packs the group's E2M1 codes; `count` is even.
void pack_e2m1(const Bf16* x, int64_t count, float scale, uint8_t* codes) {
  for (int64_t i = 0; i < count; i += 2) {
    const uint8_t low = f32_to_e2m1(std::clamp(to_f32(x[i]) / scale, -6.0F, 6.0F));
    const uint8_t high = f32_to_e2m1(std::clamp(to_f32(x[i + 1]) / scale, -6.0F, 6.0F));
    codes[i / 2] = static_cast<uint8_t>(low | (high << 4));
  }
}

void unpack_e2m1(const uint8_t* codes, int64_t count, float scale, float* x) {
  for (int64_t i = 0; i < count; i += 2) {
    x[i] = e2m1_to_f32(codes[i / 2] & 15U) * scale;
    x[i + 1] = e2m1_to_f32(codes[i / 2] >> 4) * scale;
  }
}

}  // namespace

void quantise_q8(const Bf16* x, int64_t width, uint8_t* codes, uint8_t* scales) {
  for (int64_t begin = 0; begin < width; begin += 32) {
    const int64_t count = std::min<int64_t>(32, width - begin);
    const float amax = group_amax(x + begin, count, 1e-4F);
    scales[begin / 32] = power_of_two_scale(amax, 448.0F);
    const float scale = e8m0_to_f32(scales[begin / 32]);
    for (int64_t i = begin; i < begin + count; ++i) {
      codes[i] = f32_to_e4m3(std::clamp(to_f32(x[i]) / scale, -448.0F, 448.0F));
    }
  }
}

void quantise_q4e8(const Bf16* x, int64_t width, uint8_t* codes, uint8_t* scales) {
  for (int64_t begin = 0; begin < width; begin += 32) {
    const int64_t count = std::min<int64_t>(32, width - begin);
    const float amax = group_amax(x + begin, count, 6.0F * 0x1p-126F);
    scales[begin / 32] = power_of_two_scale(amax, 6.0F);
    pack_e2m1(x + begin, count, e8m0_to_f32(scales[begin / 32]), codes + begin / 2);
  }
}

void quantise_q4e4(const Bf16* x, int64_t width, uint8_t* codes, uint8_t* scales) {
  for (int64_t begin = 0; begin < width; begin += 16) {
    const int64_t count = std::min<int64_t>(16, width - begin);
    const float amax = group_amax(x + begin, count, 6.0F * 0x1p-9F);
    scales[begin / 16] = f32_to_e4m3(amax / 6.0F);
    pack_e2m1(x + begin, count, e4m3_to_f32(scales[begin / 16]), codes + begin / 2);
  }
}

void dequantise_q8(const uint8_t* codes, const uint8_t* scales, int64_t width, float* x) {
  for (int64_t i = 0; i < width; ++i) x[i] = e4m3_to_f32(codes[i]) * e8m0_to_f32(scales[i / 32]);
}

void dequantise_q4e8(const uint8_t* codes, const uint8_t* scales, int64_t width, float* x) {
  for (int64_t begin = 0; begin < width; begin += 32) {
    const int64_t count = std::min<int64_t>(32, width - begin);
    unpack_e2m1(codes + begin / 2, count, e8m0_to_f32(scales[begin / 32]), x + begin);
  }
}

void dequantise_q4e4(const uint8_t* codes, const uint8_t* scales, int64_t width, float* x) {
  for (int64_t begin = 0; begin < width; begin += 16) {
    const int64_t count = std::min<int64_t>(16, width - begin);
    unpack_e2m1(codes + begin / 2, count, e4m3_to_f32(scales[begin / 16]), x + begin);
  }
}

void write_window_record(const Bf16* x, int64_t width, uint8_t* record) {
  quantise_q8(x, width, record, record + width);
}
void write_global_record(const Bf16* x, int64_t width, uint8_t* record) {
  quantise_q4e4(x, width, record, record + width / 2);
}
void write_index_record(const Bf16* x, int64_t width, uint8_t* record) {
  quantise_q4e8(x, width, record, record + width / 2);
}

void read_window_record(const uint8_t* record, int64_t width, float* x) {
  dequantise_q8(record, record + width, width, x);
}
void read_global_record(const uint8_t* record, int64_t width, float* x) {
  dequantise_q4e4(record, record + width / 2, width, x);
}
void read_index_record(const uint8_t* record, int64_t width, float* x) {
  dequantise_q4e8(record, record + width / 2, width, x);
}

}  // namespace galley::kernels::plain
