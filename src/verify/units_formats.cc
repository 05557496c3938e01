// Number formats and the three quantisers against the units, to the bit. The
// quantisers run through the backend: Q8 as the input of a product with the
// identity, Q4e8 and Q4e4 as unrotated index queries and global records.
#include <cmath>

#include "kernels/number_formats.h"
#include "verify/context.h"
#include "verify/units.h"

namespace galley::verify {

namespace {

using kernels::Bf16;

Result<void> check_e4m3(UnitsContext& context) {
  UnitTensors tensors(context);
  const auto codes = tensors.bytes("e4m3.from_bf16_pattern", {65536});
  const auto values = tensors.floats("e4m3.value_of_code", {256});
  if (!TRY(tensors.complete("e4m3"))) return {};
  std::vector<uint8_t> measured_codes(65536);
  for (uint32_t pattern = 0; pattern < 65536; ++pattern) {
    const float value = kernels::to_f32(Bf16{static_cast<uint16_t>(pattern)});
    measured_codes[pattern] = kernels::f32_to_e4m3(std::isfinite(value) ? value : 0.0F);
  }
  judge_bytes(context.report, "e4m3.from_bf16_pattern", measured_codes, codes.values);
  std::vector<float> measured_values(256);
  for (uint32_t code = 0; code < 256; ++code) {
    const float value = kernels::e4m3_to_f32(static_cast<uint8_t>(code));
    measured_values[code] = std::isnan(value) ? 0.0F : value;
  }
  judge_f32(context.report, "e4m3.value_of_code", measured_values, values.values, 0);
  return {};
}

// Angles that rotate nothing.
struct NoRotation {
  NoRotation(int64_t rows, int64_t pairs)
      : cos(static_cast<size_t>(rows * pairs), 1.0F), sin(static_cast<size_t>(rows * pairs), 0.0F) {
    angles = {{cos.data(), rows, pairs}, {sin.data(), rows, pairs}};
  }
  std::vector<float> cos;
  std::vector<float> sin;
  kernels::RopeAngles angles;
};

Result<void> check_q8(UnitsContext& context, const Table<Bf16>& input) {
  UnitTensors tensors(context);
  const int64_t rows = input.rows();
  const int64_t width = input.cols();
  const auto simulated = tensors.bf16("quant.q8.simulated", {rows, width});
  if (!TRY(tensors.complete("quant.q8"))) return {};
  // The identity in fp8 tiles of scale 1: every output is one input, quantised and back.
  const int64_t tiles = (width + 31) / 32;
  std::vector<uint8_t> identity(static_cast<size_t>(width * width), 0);
  for (int64_t i = 0; i < width; ++i) {
    identity[static_cast<size_t>(i * width + i)] = kernels::f32_to_e4m3(1.0F);
  }
  const std::vector<uint8_t> scales(static_cast<size_t>(tiles * tiles), 127);
  std::vector<Bf16> y(input.values.size());
  kernels::Product product;
  product.weight = {kernels::WeightFormat::kFp8Tile32, width, width, identity.data(),
                    scales.data()};
  product.quantise_input = true;
  product.y = matrix(y, rows);
  context.ops.linear(input.view(), {&product, 1});
  judge_bf16(context.report, "quant.q8.simulated", y, simulated.values, 0);
  return {};
}

Result<void> check_q4e8(UnitsContext& context, const Table<Bf16>& input) {
  UnitTensors tensors(context);
  const auto simulated = tensors.bf16("quant.q4e8.simulated", {input.rows(), input.cols()});
  if (!TRY(tensors.complete("quant.q4e8"))) return {};
  std::vector<Bf16> x = input.values;
  const NoRotation still(input.rows(), input.cols() / 2);
  context.ops.index_queries(matrix(x, input.rows()), 1, still.angles);
  judge_bf16(context.report, "quant.q4e8.simulated", x, simulated.values, 0);
  return {};
}

// E2M1 pairs with -0 written as 0: a rotation by nothing, which the seam always does, subtracts a
// zero and may lose the sign.
std::vector<uint8_t> without_negative_zeros(std::vector<uint8_t> pairs) {
  for (uint8_t& pair : pairs) {
    if ((pair & 0x0F) == 0x08) pair &= 0xF0;
    if ((pair & 0xF0) == 0x80) pair &= 0x0F;
  }
  return pairs;
}

Result<void> check_q4e4(UnitsContext& context, const Table<Bf16>& input) {
  UnitTensors tensors(context);
  const int64_t rows = input.rows();
  const int64_t width = input.cols();
  const auto codes = tensors.bytes("quant.q4e4.codes", {rows, width / 2});
  const auto scales = tensors.bytes("quant.q4e4.scales", {rows, width / 16});
  if (!TRY(tensors.complete("quant.q4e4"))) return {};
  const int64_t record_size = kernels::global_record_bytes(width);
  std::vector<uint8_t> records(static_cast<size_t>(rows * record_size));
  std::vector<uint8_t*> destination;
  for (int64_t r = 0; r < rows; ++r) destination.push_back(records.data() + r * record_size);
  const NoRotation still(rows, width / 2);
  context.ops.global_keys(input.view(), still.angles, destination);
  std::vector<uint8_t> measured_codes;
  std::vector<uint8_t> measured_scales;
  for (const uint8_t* record : destination) {
    measured_codes.insert(measured_codes.end(), record, record + width / 2);
    measured_scales.insert(measured_scales.end(), record + width / 2, record + record_size);
  }
  judge_bytes(context.report, "quant.q4e4.codes", without_negative_zeros(measured_codes),
              without_negative_zeros(codes.values));
  judge_bytes(context.report, "quant.q4e4.scales", measured_scales, scales.values);
  return {};
}

}  // namespace

Result<void> check_unit_formats(UnitsContext& context) {
  TRY(check_e4m3(context));
  UnitTensors tensors(context);
  const auto input = tensors.bf16("quant.input", {kAny, kAny});
  if (!TRY(tensors.complete("quantisers"))) return {};
  if (input.cols() % 32 != 0) {
    return Error{ErrorCode::kCorrupt,
                 context.file.path() + ": quant.input is not a multiple of 32 wide"};
  }
  TRY(check_q8(context, input));
  TRY(check_q4e8(context, input));
  return check_q4e4(context, input);
}

}  // namespace galley::verify
