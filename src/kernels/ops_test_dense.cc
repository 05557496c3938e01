// Matrix products, norms and hyper-connections of any backend: ops_test_cases.h
// says against what and which properties.
#include <algorithm>

#include "kernels/ops_test_cases.h"

namespace galley::kernels {
namespace {

constexpr float kEps = 1e-20F;
// Half a bf16 ulp is at most 2^-8 of the value; a little more for the f32 value it rounds.
constexpr double kBf16Rounding = 0x1.02p-8;
// f32 sums of up to 2,000 terms: 2^-24 an addition, growing like the root of their number.
constexpr double kF32Sum = 0x1p-18;

struct LinearShape {
  int64_t rows;
  int64_t in;
  int64_t out;
};

// One row, few and many rows; tiles that fit and tails of both dimensions.
const LinearShape kShapes[] = {{1, 32, 32},   {1, 256, 96},  {2, 64, 40},
                               {3, 96, 64},   {7, 80, 50},   {16, 64, 64},
                               {33, 160, 72}, {5, 1280, 33}, {40, 512, 128}};

const WeightFormat kFormats[] = {WeightFormat::kFp8Tile32, WeightFormat::kFp4Row32,
                                 WeightFormat::kBf16, WeightFormat::kF32};

// Compares one output with sum x w; `x` is what the product really multiplies.
void expect_product(double actual, const std::vector<double>& x, const StoredWeight& weight,
                    int64_t out, double rounding) {
  double sum = 0.0;
  double magnitude = 0.0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double term = x[i] * weight.at(out, static_cast<int64_t>(i));
    sum += term;
    magnitude += std::fabs(term);
  }
  ASSERT_NEAR(actual, sum, rounding * std::fabs(sum) + kF32Sum * magnitude);
}

TEST_P(OpsTest, LinearAgrees) {
  Random random(1);
  for (const LinearShape& shape : kShapes) {
    for (const WeightFormat format : kFormats) {
      for (const bool quantise : {false, true}) {
        SCOPED_TRACE(testing::Message() << shape.rows << "x" << shape.in << " -> " << shape.out
                                        << " format " << int(format) << " q8 " << quantise);
        const StoredWeight weight(random, format, shape.out, shape.in);
        const std::vector<Bf16> x = random.bf16(shape.rows * shape.in);
        std::vector<Bf16> y(static_cast<size_t>(shape.rows * shape.out));
        std::vector<float> y_f32(y.size());
        const Product products[2] = {{weight.view(), quantise, as_rows(y, shape.rows), {}},
                                     {weight.view(), quantise, {}, as_rows(y_f32, shape.rows)}};
        ops().linear(as_rows(x, shape.rows), products);
        for (int64_t r = 0; r < shape.rows; ++r) {
          std::vector<double> input = widened(x.data() + r * shape.in, shape.in);
          if (quantise) input = reference_q8(input);
          for (int64_t o = 0; o < shape.out; ++o) {
            const int64_t at = r * shape.out + o;
            expect_product(static_cast<double>(to_f32(y[at])), input, weight, o, kBf16Rounding);
            expect_product(static_cast<double>(y_f32[at]), input, weight, o, 0.0);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST_P(OpsTest, LinearWritesStridedRowsAndNothingElse) {
  Random random(2);
  const StoredWeight weight(random, WeightFormat::kFp8Tile32, 64, 96);
  const std::vector<Bf16> x = random.bf16(5 * 128);
  std::vector<Bf16> packed(5 * 64);
  std::vector<Bf16> strided(5 * 100, Bf16{0x1234});
  std::vector<Bf16> dense_x;
  for (int64_t r = 0; r < 5; ++r) {
    dense_x.insert(dense_x.end(), x.begin() + r * 128, x.begin() + r * 128 + 96);
  }
  Product product = {weight.view(), true, as_rows(packed, 5), {}};
  ops().linear(as_rows(dense_x, 5), {&product, 1});
  product.y = Rows<Bf16>(strided.data(), 5, 64, 100);
  ops().linear(Rows<const Bf16>(x.data(), 5, 96, 128), {&product, 1});
  for (int64_t r = 0; r < 5; ++r) {
    for (int64_t i = 0; i < 100; ++i) {
      const uint16_t expected = i < 64 ? packed[r * 64 + i].bits : 0x1234;
      ASSERT_EQ(strided[r * 100 + i].bits, expected) << r << " " << i;
    }
  }
}

TEST_P(OpsTest, LinearIsRowInvariant) {
  Random random(3);
  for (const LinearShape& shape : {LinearShape{37, 160, 72}, LinearShape{70, 96, 256}}) {
    for (const WeightFormat format : kFormats) {
      const StoredWeight weight(random, format, shape.out, shape.in);
      const std::vector<Bf16> x = random.bf16(shape.rows * shape.in);
      for (const bool quantise : {false, true}) {
        SCOPED_TRACE(testing::Message() << "format " << int(format) << " q8 " << quantise);
        expect_row_invariant(shape.rows, [&](Ops& ops, int64_t begin, int64_t count) {
          std::vector<Bf16> y(static_cast<size_t>(count * shape.out));
          std::vector<float> y_f32(y.size());
          const Product products[2] = {{weight.view(), quantise, as_rows(y, count), {}},
                                       {weight.view(), quantise, {}, as_rows(y_f32, count)}};
          ops.linear(as_rows(x, shape.rows).slice(begin, count), products);
          std::vector<uint8_t> bytes;
          for (int64_t r = 0; r < count; ++r) {
            append_bytes(bytes, y.data() + r * shape.out, shape.out);
            append_bytes(bytes, y_f32.data() + r * shape.out, shape.out);
          }
          return bytes;
        });
      }
    }
  }
}

TEST_P(OpsTest, GroupedLinear) {
  Random random(4);
  for (const WeightFormat format : {WeightFormat::kFp8Tile32, WeightFormat::kBf16}) {
    for (const int64_t group_out : {16, 64}) {  // 16: a group that ends inside a tile
      const int64_t rows = 19;
      const int64_t in = 128;
      const int32_t groups = 4;
      const StoredWeight weight(random, format, groups * group_out, in);
      const std::vector<Bf16> x = random.bf16(rows * groups * in);
      std::vector<Bf16> y(static_cast<size_t>(rows * groups * group_out));
      ops().grouped_linear(as_rows(x, rows), weight.view(), groups, as_rows(y, rows));
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t o = 0; o < groups * group_out; ++o) {
          const int64_t group = o / group_out;
          expect_product(static_cast<double>(to_f32(y[r * groups * group_out + o])),
                         widened(x.data() + (r * groups + group) * in, in), weight, o,
                         kBf16Rounding);
          if (HasFatalFailure()) return;
        }
      }
      expect_row_invariant(rows, [&](Ops& ops, int64_t begin, int64_t count) {
        std::vector<Bf16> part(static_cast<size_t>(count * groups * group_out));
        ops.grouped_linear(as_rows(x, rows).slice(begin, count), weight.view(), groups,
                           as_rows(part, count));
        return bytes_of(part);
      });
    }
  }
}

TEST_P(OpsTest, RmsNorm) {
  Random random(5);
  for (const int64_t width : {32, 64, 100, 1280}) {
    const int64_t rows = 9;
    std::vector<Bf16> x = random.bf16(rows * width);
    std::fill_n(x.begin(), width, Bf16{0});  // zeros stay zeros
    for (int64_t i = width; i < 2 * width; ++i) {
      x[i] = to_bf16(static_cast<float>(random.normal() * 1e-12));  // eps 1e-20 is felt
    }
    const std::vector<Bf16> weight = random.bf16(width);
    std::vector<Bf16> y(x.size());
    ops().rms_norm(as_rows(x, rows), weight.data(), kEps, as_rows(y, rows));
    for (int64_t r = 0; r < rows; ++r) {
      const std::vector<double> expected =
          reference_rms(widened(x.data() + r * width, width), weight.data(), 1e-20);
      for (int64_t i = 0; i < width; ++i) {
        // One ulp: the f32 value before rounding may lie on the other side of a tie.
        ASSERT_NEAR(static_cast<double>(to_f32(y[r * width + i])), expected[i],
                    0x1p-7 * std::fabs(expected[i]));
      }
    }
    expect_row_invariant(rows, [&](Ops& ops, int64_t begin, int64_t count) {
      std::vector<Bf16> part(x.begin() + begin * width, x.begin() + (begin + count) * width);
      ops.rms_norm(as_rows(part, count), weight.data(), kEps, as_rows(part, count));  // in place
      return bytes_of(part);
    });
  }
}

// The norm and the products in one call have the bits of one after the other, for few rows and
// more.
TEST_P(OpsTest, NormLinearIsNormThenLinear) {
  Random random(6);
  for (const int64_t width : {64, 128, 1280}) {
    const StoredWeight fp8(random, WeightFormat::kFp8Tile32, 96, width);
    const StoredWeight plain(random, WeightFormat::kBf16, 40, width);
    for (const int64_t rows : {1, 5, 8, 9, 70}) {
      const std::vector<Bf16> x = random.bf16(rows * width);
      const std::vector<Bf16> weight = random.bf16(width);
      std::vector<Bf16> a(rows * 96);
      std::vector<float> b(rows * 40);
      std::vector<Bf16> expected_a(a.size());
      std::vector<float> expected_b(b.size());
      std::vector<Bf16> input = x;
      const Product together[2] = {{fp8.view(), true, as_rows(a, rows), {}},
                                   {plain.view(), false, {}, as_rows(b, rows)}};
      ops().norm_linear(as_rows(input, rows), weight.data(), kEps, together);
      input = x;
      ops().rms_norm(as_rows(input, rows), weight.data(), kEps, as_rows(input, rows));
      const Product apart[2] = {{fp8.view(), true, as_rows(expected_a, rows), {}},
                                {plain.view(), false, {}, as_rows(expected_b, rows)}};
      ops().linear(as_rows(input, rows), apart);
      EXPECT_EQ(bytes_of(a), bytes_of(expected_a)) << "width " << width << " rows " << rows;
      EXPECT_EQ(bytes_of(b), bytes_of(expected_b)) << "width " << width << " rows " << rows;
    }
  }
}

// Weights of a site as the released models have them: small projections.
struct Site {
  Site(Random& random, int64_t hidden)
      : fn(random.f32(24 * 4 * hidden, 0.01)), base(random.f32(24, 0.5)), scale(random.f32(3)) {}
  HcWeights view() const { return {fn.data(), base.data(), scale.data()}; }

  std::vector<float> fn;
  std::vector<float> base;
  std::vector<float> scale;
};

struct SiteResult {
  std::vector<double> pre, post, comb;
};

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

SiteResult reference_site(const std::vector<double>& v, const Site& site, int iterations = 20) {
  const auto wide = [](const std::vector<float>& f, int64_t i) {
    return static_cast<double>(f[static_cast<size_t>(i)]);
  };
  double square = 0.0;
  for (const double value : v) square += value * value;
  const double nu = 1.0 / std::sqrt(square / static_cast<double>(v.size()) + 1e-20);
  std::vector<double> m;
  for (int64_t row = 0; row < 24; ++row) {
    double sum = 0.0;
    for (size_t i = 0; i < v.size(); ++i) {
      sum += wide(site.fn, row * static_cast<int64_t>(v.size()) + static_cast<int64_t>(i)) * v[i];
    }
    m.push_back(sum * nu);
  }
  SiteResult result;
  const double delta = 1e-6;
  for (int64_t j = 0; j < 4; ++j) {
    result.pre.push_back(sigmoid(m[j] * wide(site.scale, 0) + wide(site.base, j)) + delta);
    result.post.push_back(2.0 * sigmoid(m[4 + j] * wide(site.scale, 1) + wide(site.base, 4 + j)));
  }
  double a[4][4];
  for (int64_t i = 0; i < 4; ++i) {
    double sum = 0.0;
    for (int64_t j = 0; j < 4; ++j) {
      a[i][j] = std::exp(m[8 + 4 * i + j] * wide(site.scale, 2) + wide(site.base, 8 + 4 * i + j));
      sum += a[i][j];
    }
    for (int64_t j = 0; j < 4; ++j) a[i][j] = a[i][j] / sum + delta;
  }
  for (int half = 1; half < 2 * iterations; ++half) {  // columns first, 39 half-steps at 20
    for (int64_t line = 0; line < 4; ++line) {
      double sum = 0.0;
      for (int64_t k = 0; k < 4; ++k) sum += half % 2 == 1 ? a[k][line] : a[line][k];
      for (int64_t k = 0; k < 4; ++k) (half % 2 == 1 ? a[k][line] : a[line][k]) /= sum + delta;
    }
  }
  for (int64_t i = 0; i < 4; ++i) result.comb.insert(result.comb.end(), a[i], a[i] + 4);
  return result;
}

// bf16(sum_j pi_j S_j).
std::vector<double> reference_collapse(const std::vector<double>& streams, const float* pi) {
  const size_t hidden = streams.size() / 4;
  std::vector<double> x(hidden, 0.0);
  for (size_t j = 0; j < 4; ++j) {
    for (size_t i = 0; i < hidden; ++i) {
      x[i] += static_cast<double>(pi[j]) * streams[j * hidden + i];
    }
  }
  for (double& value : x) value = round_to_bf16(value);
  return x;
}

TEST_P(OpsTest, HyperConnectionEnter) {
  Random random(6);
  for (const int64_t hidden : {32, 64, 200}) {
    const int64_t rows = 11;
    const Site site(random, hidden);
    const std::vector<Bf16> streams = random.bf16(rows * 4 * hidden);
    const std::vector<float> carried = random.f32(rows * 4);
    const std::vector<Bf16> norm = random.bf16(hidden);
    const auto enter = [&](Ops& ops, int64_t begin, int64_t count, std::vector<float>& pre,
                           std::vector<float>& post, std::vector<float>& comb) {
      std::vector<Bf16> x(static_cast<size_t>(count * hidden));
      pre.resize(static_cast<size_t>(count * 4));
      post.resize(pre.size());
      comb.resize(static_cast<size_t>(count * 16));
      ops.hc_enter(as_rows(streams, rows).slice(begin, count), site.view(), HcOptions{},
                   as_rows(carried, rows).slice(begin, count), norm.data(),
                   {as_rows(pre, count), as_rows(post, count), as_rows(comb, count)},
                   as_rows(x, count));
      return x;
    };
    std::vector<float> pre;
    std::vector<float> post;
    std::vector<float> comb;
    const std::vector<Bf16> x = enter(ops(), 0, rows, pre, post, comb);
    std::vector<Bf16> alone(x.size());
    ops().collapse_norm(as_rows(streams, rows), as_rows(carried, rows), 4, norm.data(), kEps,
                        as_rows(alone, rows));
    EXPECT_EQ(bytes_of(alone), bytes_of(x)) << "collapse_norm differs from hc_enter";
    for (int64_t r = 0; r < rows; ++r) {
      const std::vector<double> v = widened(streams.data() + r * 4 * hidden, 4 * hidden);
      const SiteResult expected = reference_site(v, site);
      // f32 throughout; a projection's rounding error enters each exponent.
      for (int64_t j = 0; j < 4; ++j) {
        EXPECT_NEAR(static_cast<double>(pre[r * 4 + j]), expected.pre[j], 1e-5);
        EXPECT_NEAR(static_cast<double>(post[r * 4 + j]), expected.post[j], 1e-5);
      }
      for (int64_t e = 0; e < 16; ++e) {
        EXPECT_NEAR(static_cast<double>(comb[r * 16 + e]), expected.comb[e], 1e-5);
      }
      const std::vector<double> y =
          reference_rms(reference_collapse(v, carried.data() + r * 4), norm.data(), 1e-20);
      // Two roundings; single elements of the collapse may be a bf16 ulp apart.
      EXPECT_LE(relative_l2(x.data() + r * hidden, y), 0x1p-9);
    }
    expect_row_invariant(rows, [&](Ops& ops, int64_t begin, int64_t count) {
      const std::vector<Bf16> part = enter(ops, begin, count, pre, post, comb);
      std::vector<uint8_t> bytes;
      for (int64_t r = 0; r < count; ++r) {
        append_bytes(bytes, part.data() + r * hidden, hidden);
        append_bytes(bytes, pre.data() + r * 4, 4);
        append_bytes(bytes, post.data() + r * 4, 4);
        append_bytes(bytes, comb.data() + r * 16, 16);
      }
      return bytes;
    });
  }
}

// A zero projection leaves base alone, so nothing hides a missing eps or a Sinkhorn round too few.
TEST_P(OpsTest, HyperConnectionCoefficientsAreTight) {
  Random random(9);
  const int64_t hidden = 32;
  const std::vector<Bf16> streams = random.bf16(4 * hidden);
  const std::vector<float> carried = random.f32(4);
  const std::vector<Bf16> norm = random.bf16(hidden);
  for (int trial = 0; trial < 50; ++trial) {
    Site site(random, hidden);
    std::fill(site.fn.begin(), site.fn.end(), 0.0F);
    site.base = random.f32(24, 5.0);  // far from uniform: 20 rounds do not converge
    for (const int32_t iterations : {1, 2, 11, 20}) {
      HcOptions options;
      options.sinkhorn_iterations = iterations;
      std::vector<float> pre(4);
      std::vector<float> post(4);
      std::vector<float> comb(16);
      std::vector<Bf16> x(static_cast<size_t>(hidden));
      ops().hc_enter(as_rows(streams, 1), site.view(), options, as_rows(carried, 1), norm.data(),
                     {as_rows(pre, 1), as_rows(post, 1), as_rows(comb, 1)}, as_rows(x, 1));
      const SiteResult expected =
          reference_site(widened(streams.data(), 4 * hidden), site, iterations);
      // A few f32 ulps (6e-8) of exp, sigmoid and up to 40 divisions.
      const auto expect_close = [&](float actual, double wanted) {
        EXPECT_NEAR(static_cast<double>(actual), wanted, 3e-6 * wanted) << iterations;
      };
      for (size_t j = 0; j < 4; ++j) expect_close(pre[j], expected.pre[j]);
      for (size_t j = 0; j < 4; ++j) expect_close(post[j], expected.post[j]);
      for (size_t e = 0; e < 16; ++e) expect_close(comb[e], expected.comb[e]);
    }
  }
}

TEST_P(OpsTest, HyperConnectionLeave) {
  Random random(7);
  for (const int64_t hidden : {32, 64, 200}) {
    const int64_t rows = 11;
    const std::vector<Bf16> before = random.bf16(rows * 4 * hidden);
    const std::vector<Bf16> y = random.bf16(rows * hidden);
    const std::vector<float> post = random.f32(rows * 4);
    const std::vector<float> comb = random.f32(rows * 16);
    const auto leave = [&](Ops& ops, int64_t begin, int64_t count) {
      std::vector<Bf16> streams(before.begin() + begin * 4 * hidden,
                                before.begin() + (begin + count) * 4 * hidden);
      ops.hc_leave(as_rows(y, rows).slice(begin, count), as_rows(post, rows).slice(begin, count),
                   as_rows(comb, rows).slice(begin, count), 4, as_rows(streams, count));
      return streams;
    };
    const std::vector<Bf16> streams = leave(ops(), 0, rows);
    for (int64_t r = 0; r < rows; ++r) {
      const std::vector<double> in = widened(before.data() + r * 4 * hidden, 4 * hidden);
      for (int64_t j = 0; j < 4; ++j) {
        for (int64_t i = 0; i < hidden; ++i) {
          double sum =
              static_cast<double>(post[r * 4 + j]) * static_cast<double>(to_f32(y[r * hidden + i]));
          double magnitude = std::fabs(sum);
          for (int64_t from = 0; from < 4; ++from) {  // the ROW index is summed
            const double term = static_cast<double>(comb[r * 16 + from * 4 + j]) *
                                in[static_cast<size_t>(from * hidden + i)];
            sum += term;
            magnitude += std::fabs(term);
          }
          ASSERT_NEAR(static_cast<double>(to_f32(streams[(r * 4 + j) * hidden + i])), sum,
                      kBf16Rounding * std::fabs(sum) + 0x1p-22 * magnitude);
        }
      }
    }
    expect_row_invariant(rows, [&](Ops& ops, int64_t begin, int64_t count) {
      return bytes_of(leave(ops, begin, count));
    });
  }
}

TEST_P(OpsTest, SpreadAndStreamMean) {
  Random random(8);
  for (const int64_t hidden : {32, 100}) {
    const int64_t rows = 5;
    const std::vector<Bf16> table = random.bf16(7 * hidden);
    const DrawnToken drawn{.token = 5, .valid = 1};
    std::vector<SourceRow> sources;
    std::vector<const Bf16*> expected;
    for (int64_t r = 0; r < rows; ++r) {
      expected.push_back(table.data() + random.below(7) * hidden);
      sources.push_back({expected.back()});
    }
    expected[3] = table.data() + drawn.token * hidden;
    sources[3] = {table.data(), &drawn};
    std::vector<Bf16> streams(static_cast<size_t>(rows * 4 * hidden));
    ops().spread(sources, hidden, 4, as_rows(streams, rows));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < 4; ++j) {
        EXPECT_EQ(std::memcmp(streams.data() + (r * 4 + j) * hidden, expected[r], hidden * 2), 0);
      }
    }
    streams = random.bf16(rows * 4 * hidden);
    std::vector<Bf16> mean(static_cast<size_t>(rows * hidden));
    ops().stream_mean(as_rows(streams, rows), 4, as_rows(mean, rows));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < hidden; ++i) {
        double sum = 0.0;
        double magnitude = 0.0;
        for (int64_t j = 0; j < 4; ++j) {
          const auto term = static_cast<double>(to_f32(streams[(r * 4 + j) * hidden + i]));
          sum += term;
          magnitude += std::fabs(term);
        }
        ASSERT_NEAR(static_cast<double>(to_f32(mean[r * hidden + i])), sum / 4.0,
                    kBf16Rounding * std::fabs(sum) / 4.0 + 0x1p-22 * magnitude);
      }
    }
  }
}

}  // namespace
}  // namespace galley::kernels
