#include "model/kv_records.h"

#include "kernels/number_formats.h"

namespace galley::model {
namespace {

using kernels::Bf16;

constexpr int64_t kWindowGroup = 32;
constexpr int64_t kGlobalGroup = 16;
constexpr int64_t kIndexGroup = 32;

uint8_t nibble(const uint8_t* codes, int64_t i) {
  return i % 2 == 0 ? codes[i / 2] & 15U : static_cast<uint8_t>(codes[i / 2] >> 4);
}

template <class ScaleValue>
void unpack_fp4(const uint8_t* record, int64_t width, int64_t group, ScaleValue scale_value,
                Bf16* values) {
  const uint8_t* scales = record + width / 2;
  for (int64_t i = 0; i < width; ++i) {
    values[i] =
        kernels::to_bf16(kernels::e2m1_to_f32(nibble(record, i)) * scale_value(scales[i / group]));
  }
}

// Writes the codes of one group when every value is a multiple of the scale
// that E2M1 has; -0 keeps its sign.
bool try_scale(const Bf16* values, int64_t count, float scale, uint8_t* codes) {
  for (int64_t i = 0; i < count; ++i) {
    const float wanted = kernels::to_f32(values[i]);
    const float ratio = wanted / scale;
    if (!(ratio >= -6.0F && ratio <= 6.0F)) return false;
    const uint8_t code = kernels::f32_to_e2m1(ratio);
    if (kernels::to_bf16(kernels::e2m1_to_f32(code) * scale).bits != values[i].bits) return false;
    uint8_t& byte = codes[i / 2];
    byte = static_cast<uint8_t>(i % 2 == 0 ? code : byte | (code << 4));
  }
  return true;
}

template <class ScaleValue>
bool pack_fp4(const Bf16* values, int64_t width, int64_t group, int32_t scale_begin,
              int32_t scale_end, ScaleValue scale_value, uint8_t* record) {
  uint8_t* scales = record + width / 2;
  for (int64_t begin = 0; begin < width; begin += group) {
    bool found = false;
    for (int32_t code = scale_begin; code < scale_end && !found; ++code) {
      found = try_scale(values + begin, group, scale_value(static_cast<uint8_t>(code)),
                        record + begin / 2);
      if (found) scales[begin / group] = static_cast<uint8_t>(code);
    }
    if (!found) return false;
  }
  return true;
}

}  // namespace

void unpack_window_record(const uint8_t* record, int64_t width, Bf16* values) {
  const uint8_t* scales = record + width;
  for (int64_t i = 0; i < width; ++i) {
    values[i] = kernels::to_bf16(kernels::e4m3_to_f32(record[i]) *
                                 kernels::e8m0_to_f32(scales[i / kWindowGroup]));
  }
}

void unpack_global_record(const uint8_t* record, int64_t width, Bf16* values) {
  unpack_fp4(record, width, kGlobalGroup, kernels::e4m3_to_f32, values);
}

void unpack_index_record(const uint8_t* record, int64_t width, Bf16* values) {
  unpack_fp4(record, width, kIndexGroup, kernels::e8m0_to_f32, values);
}

bool pack_global_record(const Bf16* values, int64_t width, uint8_t* record) {
  // Positive, finite E4M3 codes.
  return pack_fp4(values, width, kGlobalGroup, 1, 0x7F, kernels::e4m3_to_f32, record);
}

bool pack_index_record(const Bf16* values, int64_t width, uint8_t* record) {
  return pack_fp4(values, width, kIndexGroup, 1, 255, kernels::e8m0_to_f32, record);
}

}  // namespace galley::model
