#include "kernels/ops_test_cases.h"

#include <algorithm>

#include "kernels/plain/quantise.h"
#include "kernels/rope_table.h"

namespace galley::kernels {

void OpsTest::SetUp() {
  ops_ = GetParam().make(pool_);
  other_ops_ = GetParam().make(other_pool_);
  if (ops_ == nullptr) GTEST_SKIP() << "this machine cannot run " << GetParam().name;
}

void OpsTest::expect_row_invariant(int64_t rows, const Compute& compute) {
  const std::vector<uint8_t> whole = compute(*ops_, 0, rows);
  EXPECT_EQ(compute(*other_ops_, 0, rows), whole) << "another thread count";
  for (const int64_t step : {1, 2, 3, 7, 16}) {
    std::vector<uint8_t> pieces;
    for (int64_t begin = 0; begin < rows; begin += step) {
      const std::vector<uint8_t> piece = compute(*ops_, begin, std::min(step, rows - begin));
      pieces.insert(pieces.end(), piece.begin(), piece.end());
    }
    EXPECT_EQ(pieces == whole, true) << rows << " rows cut into pieces of " << step;
  }
}

double Random::with_outliers() {
  const int64_t kind = below(100);
  if (kind == 0) return normal() * 40.0;
  if (kind <= 5) return 0.0;
  return normal();
}

std::vector<Bf16> Random::bf16(int64_t count, double scale) {
  std::vector<Bf16> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(to_bf16(static_cast<float>(with_outliers() * scale)));
  }
  return values;
}

std::vector<float> Random::f32(int64_t count, double scale) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>(normal() * scale));
  return values;
}

StoredWeight::StoredWeight(Random& random, WeightFormat format, int64_t out, int64_t in)
    : format_(format), out_(out), in_(in) {
  const double size = std::pow(static_cast<double>(in), -0.5);
  const int64_t blocks = (in + 31) / 32;
  switch (format) {
    case WeightFormat::kFp8Tile32:
    case WeightFormat::kFp4Row32: {
      const bool fp8 = format == WeightFormat::kFp8Tile32;
      for (int64_t i = 0; i < out * in / (fp8 ? 1 : 2); ++i) {
        auto code = static_cast<uint8_t>(random.below(256));
        if (fp8 && (code & 0x7FU) == 0x7FU) code &= 0x80U;  // no NaN
        data_.push_back(code);
      }
      // E4M3 codes drawn evenly are about 2^7 in size, E2M1 codes about 3.
      const int64_t centre = 127 + std::lround(std::log2(size)) - (fp8 ? 7 : 2);
      for (int64_t i = 0; i < (fp8 ? (out + 31) / 32 : out) * blocks; ++i) {
        scale_.push_back(static_cast<uint8_t>(centre - 1 + random.below(3)));
      }
      break;
    }
    case WeightFormat::kBf16:
      data_ = bytes_of(random.bf16(out * in, size));
      break;
    case WeightFormat::kF32:
      data_ = bytes_of(random.f32(out * in, size));
      break;
  }
}

WeightView StoredWeight::view() const {
  return {format_, out_, in_, data_.data(), scale_.empty() ? nullptr : scale_.data()};
}

double StoredWeight::at(int64_t out, int64_t in) const {
  const int64_t blocks = (in_ + 31) / 32;
  const int64_t at = out * in_ + in;
  switch (format_) {
    case WeightFormat::kFp8Tile32:
      return static_cast<double>(e4m3_to_f32(data_[at])) *
             static_cast<double>(e8m0_to_f32(scale_[(out / 32) * blocks + in / 32]));
    case WeightFormat::kFp4Row32: {
      const uint8_t pair = data_[out * (in_ / 2) + in / 2];
      return static_cast<double>(e2m1_to_f32(in % 2 == 0 ? pair & 15U : pair >> 4)) *
             static_cast<double>(e8m0_to_f32(scale_[out * blocks + in / 32]));
    }
    case WeightFormat::kBf16: {
      Bf16 value;
      std::memcpy(&value, data_.data() + at * 2, sizeof(value));
      return static_cast<double>(to_f32(value));
    }
    case WeightFormat::kF32: {
      float value = 0.0F;
      std::memcpy(&value, data_.data() + at * 4, sizeof(value));
      return static_cast<double>(value);
    }
  }
  return 0.0;
}

StoredAngles::StoredAngles(int64_t first_position, int64_t rows_in, int64_t rotary)
    : rows(rows_in),
      cos(static_cast<size_t>(rows_in * rotary / 2)),
      sin(static_cast<size_t>(rows_in * rotary / 2)) {
  std::vector<int64_t> positions;
  for (int64_t r = 0; r < rows; ++r) positions.push_back(first_position + r);
  RopeTable({.rotary = static_cast<int32_t>(rotary)})
      .fill(positions, as_rows(cos, rows), as_rows(sin, rows));
}

RopeAngles StoredAngles::view(int64_t begin, int64_t count) const {
  return {as_rows(cos, rows).slice(begin, count), as_rows(sin, rows).slice(begin, count)};
}

double round_to_bf16(double value) {
  // Through f32: a double rounding, wrong in one case of 2^13 and then by half an ulp.
  return static_cast<double>(round_bf16(static_cast<float>(value)));
}

std::vector<double> widened(const Bf16* x, int64_t count) {
  std::vector<double> wide;
  for (int64_t i = 0; i < count; ++i) wide.push_back(static_cast<double>(to_f32(x[i])));
  return wide;
}

std::vector<double> reference_rms(const std::vector<double>& x, const Bf16* weight, double eps) {
  double sum = 0.0;
  for (const double value : x) sum += value * value;
  const double inverse = 1.0 / std::sqrt(sum / static_cast<double>(x.size()) + eps);
  std::vector<double> y;
  for (size_t i = 0; i < x.size(); ++i) {
    y.push_back(round_to_bf16(x[i] * inverse * static_cast<double>(to_f32(weight[i]))));
  }
  return y;
}

void reference_rope(std::vector<double>& x, const float* cos, const float* sin, int64_t pairs,
                    bool inverse) {
  double* pair = x.data() + static_cast<int64_t>(x.size()) - 2 * pairs;
  for (int64_t u = 0; u < pairs; ++u, pair += 2) {
    const auto c = static_cast<double>(cos[u]);
    const double s = static_cast<double>(sin[u]) * (inverse ? -1.0 : 1.0);
    const double a = pair[0];
    const double b = pair[1];
    pair[0] = round_to_bf16(a * c - b * s);
    pair[1] = round_to_bf16(a * s + b * c);
  }
}

std::vector<double> reference_q8(const std::vector<double>& x) {
  std::vector<Bf16> narrow;
  for (const double value : x) narrow.push_back(to_bf16(static_cast<float>(value)));
  const auto width = static_cast<int64_t>(x.size());
  std::vector<uint8_t> codes(x.size());
  std::vector<uint8_t> scales(x.size() / 32 + 1);
  std::vector<float> simulated(x.size());
  plain::quantise_q8(narrow.data(), width, codes.data(), scales.data());
  plain::dequantise_q8(codes.data(), scales.data(), width, simulated.data());
  return {simulated.begin(), simulated.end()};
}

double relative_l2(const Bf16* actual, const std::vector<double>& reference) {
  double difference = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double d = static_cast<double>(to_f32(actual[i])) - reference[i];
    difference += d * d;
    norm += reference[i] * reference[i];
  }
  if (norm == 0.0) return difference == 0.0 ? 0.0 : INFINITY;
  return std::sqrt(difference / norm);
}

}  // namespace galley::kernels
