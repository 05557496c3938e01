#include "kernels/plain/linear.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/number_formats.h"
#include "kernels/plain/dot.h"
#include "kernels/plain/quantise.h"

namespace galley::kernels::plain {
namespace {

// Output rows a thread takes at once: it widens them once for all rows of x.
constexpr int64_t kOutputsPerPart = kColumns;

// store(r, o, sum) for every row r of x and every output o; x_row(r, o) is the f32 input.
template <class Input, class Store>
void multiply(ThreadPool& pool, const WeightView& weight, int64_t rows, Input&& input,
              Store&& store) {
  const bool scaled =
      weight.format == WeightFormat::kFp8Tile32 || weight.format == WeightFormat::kFp4Row32;
  const int64_t chain_terms = scaled ? kScaledTerms : kChainTerms;
  const int64_t parts = (weight.out + kOutputsPerPart - 1) / kOutputsPerPart;
  pool.run(parts, [&](int64_t part, int) {
    std::vector<float> row(static_cast<size_t>(weight.in));
    std::vector<float> w(static_cast<size_t>(weight.in * kColumns), 0.0F);  // [in, kColumns]
    const int64_t begin = part * kOutputsPerPart;
    const int64_t end = std::min(weight.out, begin + kOutputsPerPart);
    for (int64_t o = begin; o < end; ++o) {
      read_weight_row(weight, o, row.data());
      for (int64_t i = 0; i < weight.in; ++i) w[i * kColumns + (o - begin)] = row[i];
    }
    float sums[kColumns];
    for (int64_t r = 0; r < rows; ++r) {
      const float* x = nullptr;
      for (int64_t o = begin; o < end; ++o) {
        if (input(r, o) != x) {
          x = input(r, o);
          dot_columns(x, w.data(), weight.in, chain_terms, sums);
        }
        store(r, o, sums[o - begin]);
      }
    }
  });
}

}  // namespace

void read_weight_row(const WeightView& weight, int64_t out, float* row) {
  const int64_t in = weight.in;
  const int64_t blocks = (in + 31) / 32;
  const auto* bytes = static_cast<const uint8_t*>(weight.data);
  switch (weight.format) {
    case WeightFormat::kFp8Tile32:
      dequantise_q8(bytes + out * in, weight.scale + (out / 32) * blocks, in, row);
      break;
    case WeightFormat::kFp4Row32:
      dequantise_q4e8(bytes + out * (in / 2), weight.scale + out * blocks, in, row);
      break;
    case WeightFormat::kBf16: {
      const auto* w = static_cast<const Bf16*>(weight.data) + out * in;
      for (int64_t i = 0; i < in; ++i) row[i] = to_f32(w[i]);
      break;
    }
    case WeightFormat::kF32: {
      const auto* w = static_cast<const float*>(weight.data) + out * in;
      std::copy(w, w + in, row);
      break;
    }
  }
}

std::vector<float> widen(Rows<const Bf16> x, bool quantise) {
  std::vector<float> wide(static_cast<size_t>(x.rows * x.cols));
  std::vector<uint8_t> codes(static_cast<size_t>(x.cols));
  std::vector<uint8_t> scales(static_cast<size_t>((x.cols + 31) / 32));
  for (int64_t r = 0; r < x.rows; ++r) {
    float* out = wide.data() + r * x.cols;
    if (quantise) {
      quantise_q8(x.row(r), x.cols, codes.data(), scales.data());
      dequantise_q8(codes.data(), scales.data(), x.cols, out);
    } else {
      for (int64_t i = 0; i < x.cols; ++i) out[i] = to_f32(x.row(r)[i]);
    }
  }
  return wide;
}

void linear(ThreadPool& pool, Rows<const Bf16> x, std::span<const Product> products) {
  std::vector<float> exact;
  std::vector<float> quantised;
  for (const Product& product : products) {
    CHECK((product.y.data != nullptr) != (product.y_f32.data != nullptr));
    CHECK(product.weight.in == x.cols);
    std::vector<float>& wide = product.quantise_input ? quantised : exact;
    if (wide.empty()) wide = widen(x, product.quantise_input);
    const auto input = [&](int64_t r, int64_t) { return wide.data() + r * x.cols; };
    if (product.y.data != nullptr) {
      multiply(pool, product.weight, x.rows, input,
               [&](int64_t r, int64_t o, float sum) { product.y.row(r)[o] = to_bf16(sum); });
    } else {
      multiply(pool, product.weight, x.rows, input,
               [&](int64_t r, int64_t o, float sum) { product.y_f32.row(r)[o] = sum; });
    }
  }
}

void grouped_linear(ThreadPool& pool, Rows<const Bf16> x, const WeightView& weight, int32_t groups,
                    Rows<Bf16> y) {
  CHECK(x.cols == groups * weight.in && weight.out % groups == 0);
  const int64_t group_out = weight.out / groups;
  const std::vector<float> wide = widen(x, false);
  multiply(
      pool, weight, x.rows,
      [&](int64_t r, int64_t o) { return wide.data() + r * x.cols + (o / group_out) * weight.in; },
      [&](int64_t r, int64_t o, float sum) { y.row(r)[o] = to_bf16(sum); });
}

}  // namespace galley::kernels::plain
