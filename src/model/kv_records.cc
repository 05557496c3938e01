#include "model/kv_records.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "base/check.h"
#include "kernels/number_formats.h"

namespace galley::model {

namespace {

using kernels::Bf16;

struct Format {
  int64_t group;
  bool wide_codes;      // E4M3 codes of a byte, else E2M1 pairs
  bool e4m3_scale;      // else UE8M0
  int scale_codes_max;  // exclusive
};

Format format_of(RecordKind kind) {
  switch (kind) {
    case RecordKind::kWindow:
      return {32, true, false, 255};
    case RecordKind::kGlobal:
      return {16, false, true, 0x7F};
    case RecordKind::kIndex:
      return {32, false, false, 255};
  }
  CHECK(false);
  return {};
}

float scale_value(const Format& format, uint8_t code) {
  return format.e4m3_scale ? kernels::e4m3_to_f32(code) : kernels::e8m0_to_f32(code);
}

float code_value(const Format& format, uint8_t code) {
  return format.wide_codes ? kernels::e4m3_to_f32(code) : kernels::e2m1_to_f32(code);
}

// The code that stands for exactly `value` under `scale`.
std::optional<uint8_t> exact_code(const Format& format, float value, float scale) {
  const float quotient = value / scale;
  const float bound = format.wide_codes ? 448.0F : 6.0F;
  if (!(std::fabs(quotient) <= bound)) return std::nullopt;
  const uint8_t code =
      format.wide_codes ? kernels::f32_to_e4m3(quotient) : kernels::f32_to_e2m1(quotient);
  const float back = kernels::round_bf16(code_value(format, code) * scale);
  if (back != value) return std::nullopt;
  return code;
}

uint8_t code_at(const Format& format, const uint8_t* record, int64_t channel) {
  if (format.wide_codes) return record[channel];
  const uint8_t pair = record[channel / 2];
  return static_cast<uint8_t>(channel % 2 == 0 ? pair & 15U : pair >> 4);
}

int64_t code_bytes(const Format& format, int64_t channels) {
  return format.wide_codes ? channels : channels / 2;
}

const uint8_t* scales_of(const Format& format, const uint8_t* record, int64_t width) {
  return record + code_bytes(format, width);
}

// Writes the codes of one group; false when a value is none under this scale.
bool pack_group(const Format& format, std::span<const Bf16> values, float scale, uint8_t* codes) {
  for (size_t i = 0; i < values.size(); ++i) {
    const auto code = exact_code(format, kernels::to_f32(values[i]), scale);
    if (!code) return false;
    if (format.wide_codes) {
      codes[i] = *code;
    } else {
      uint8_t& pair = codes[i / 2];
      pair = static_cast<uint8_t>(i % 2 == 0 ? *code : pair | (*code << 4));
    }
  }
  return true;
}

}  // namespace

int64_t record_bytes(RecordKind kind, int64_t width) {
  switch (kind) {
    case RecordKind::kWindow:
      return kernels::window_record_bytes(width);
    case RecordKind::kGlobal:
      return kernels::global_record_bytes(width);
    case RecordKind::kIndex:
      return kernels::index_record_bytes(width);
  }
  CHECK(false);
  return 0;
}

Result<void> pack_record(RecordKind kind, std::span<const Bf16> values, uint8_t* record) {
  const Format format = format_of(kind);
  const auto width = static_cast<int64_t>(values.size());
  CHECK(width % format.group == 0);
  uint8_t* scales = record + code_bytes(format, width);
  for (int64_t begin = 0; begin < width; begin += format.group) {
    const auto group =
        values.subspan(static_cast<size_t>(begin), static_cast<size_t>(format.group));
    bool packed = false;
    for (int scale = 0; scale < format.scale_codes_max && !packed; ++scale) {
      const float factor = scale_value(format, static_cast<uint8_t>(scale));
      if (factor == 0) continue;
      packed = pack_group(format, group, factor, record + code_bytes(format, begin));
      if (packed) scales[begin / format.group] = static_cast<uint8_t>(scale);
    }
    if (!packed) {
      return Error{ErrorCode::kCorrupt, "channels " + std::to_string(begin) + " to " +
                                            std::to_string(begin + format.group - 1) +
                                            " are not values of the packed format"};
    }
  }
  return {};
}

float record_value(RecordKind kind, const uint8_t* record, int64_t width, int64_t channel) {
  const Format format = format_of(kind);
  const uint8_t scale = scales_of(format, record, width)[channel / format.group];
  return kernels::round_bf16(code_value(format, code_at(format, record, channel)) *
                             scale_value(format, scale));
}

float record_step(RecordKind kind, const uint8_t* record, int64_t width, int64_t channel) {
  const Format format = format_of(kind);
  const uint8_t magnitude_mask = format.wide_codes ? 0x7FU : 7U;
  const uint8_t largest_code = format.wide_codes ? 0x7EU : 7U;
  const auto code = static_cast<uint8_t>(code_at(format, record, channel) & magnitude_mask);
  const float here = code_value(format, code);
  float gap = 0;
  if (code < largest_code) {
    gap = code_value(format, static_cast<uint8_t>(code + 1)) - here;
  }
  if (code > 0) {
    gap = std::max(gap, here - code_value(format, static_cast<uint8_t>(code - 1)));
  }
  return gap * scale_value(format, scales_of(format, record, width)[channel / format.group]);
}

}  // namespace galley::model
