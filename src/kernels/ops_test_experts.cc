// Router, experts and Engram of any backend: ops_test_cases.h says against what
// and which properties.
#include <algorithm>
#include <limits>
#include <numeric>

#include "kernels/ops_test_cases.h"

namespace galley::kernels {
namespace {

struct Routing {
  std::vector<int32_t> experts;
  std::vector<float> weights;
  std::vector<float> margin;
};

// A router's inputs; odd rows take bias_vl.
struct Router {
  Router(Random& random, int64_t rows_in, int64_t hidden, int32_t expert_count, int32_t top_k)
      : rows(rows_in),
        gate(random, WeightFormat::kBf16, expert_count, hidden),
        x(random.bf16(rows_in * hidden)),
        bias(random.f32(expert_count, 0.3)),
        bias_vl(random.f32(expert_count, 0.3)),
        options{.top_k = top_k, .scale = 1.5F} {}

  const std::vector<float>& bias_of(int64_t row) const { return row % 2 == 0 ? bias : bias_vl; }

  Routing run(Ops& ops, int64_t begin, int64_t count) const {
    Routing result;
    result.experts.resize(static_cast<size_t>(count * options.top_k));
    result.weights.resize(result.experts.size());
    result.margin.resize(static_cast<size_t>(count));
    std::vector<const float*> bias_of_row;
    for (int64_t r = begin; r < begin + count; ++r) bias_of_row.push_back(bias_of(r).data());
    ops.route(as_rows(x, rows).slice(begin, count), gate.view(), bias_of_row, options,
              as_rows(result.experts, count), as_rows(result.weights, count), result.margin.data());
    return result;
  }

  int64_t rows;
  StoredWeight gate;
  std::vector<Bf16> x;
  std::vector<float> bias;
  std::vector<float> bias_vl;
  RouterOptions options;
};

TEST_P(OpsTest, RouterAgrees) {
  Random random(20);
  for (const auto& [expert_count, top_k] : {std::pair{8, 3}, {16, 4}, {384, 6}, {5, 5}}) {
    const int64_t hidden = 96;
    const Router router(random, 24, hidden, expert_count, top_k);
    const Routing actual = router.run(ops(), 0, router.rows);
    for (int64_t r = 0; r < router.rows; ++r) {
      std::vector<double> p;
      std::vector<double> biased;
      for (int32_t e = 0; e < expert_count; ++e) {
        double g = 0.0;
        for (int64_t i = 0; i < hidden; ++i) {
          g += router.gate.at(e, i) * static_cast<double>(to_f32(router.x[r * hidden + i]));
        }
        p.push_back(std::sqrt(std::log1p(std::exp(-std::fabs(g))) + std::max(g, 0.0)));
        biased.push_back(p.back() + static_cast<double>(router.bias_of(r)[e]));
      }
      std::vector<int32_t> order(static_cast<size_t>(expert_count));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](int32_t a, int32_t b) { return biased[a] > biased[b]; });
      const double margin = top_k < expert_count ? biased[order[top_k - 1]] - biased[order[top_k]]
                                                 : std::numeric_limits<double>::infinity();
      if (top_k == expert_count) {
        EXPECT_EQ(actual.margin[r], std::numeric_limits<float>::infinity());
      } else {
        EXPECT_NEAR(static_cast<double>(actual.margin[r]), margin, 1e-4);
      }
      if (margin < 1e-4) continue;  // f32 may choose the other one
      std::sort(order.begin(), order.begin() + top_k);
      double sum = 0.0;
      for (int32_t k = 0; k < top_k; ++k) sum += p[order[k]];
      for (int32_t k = 0; k < top_k; ++k) {
        EXPECT_EQ(actual.experts[r * top_k + k], order[k]);
        EXPECT_NEAR(static_cast<double>(actual.weights[r * top_k + k]), p[order[k]] / sum * 1.5,
                    1e-5);
      }
    }
    expect_row_invariant(router.rows, [&](Ops& ops, int64_t begin, int64_t count) {
      const Routing part = router.run(ops, begin, count);
      std::vector<uint8_t> bytes;
      for (int64_t r = 0; r < count; ++r) {
        append_bytes(bytes, part.experts.data() + r * top_k, top_k);
        append_bytes(bytes, part.weights.data() + r * top_k, top_k);
        append_bytes(bytes, part.margin.data() + r, 1);
      }
      return bytes;
    });
  }
}

TEST_P(OpsTest, RouterTiesGoToTheLowerExpert) {
  Random random(21);
  for (const int32_t expert_count : {16, 384}) {
    Router router(random, 3, 64, expert_count, 4);
    std::fill(router.x.begin(), router.x.end(), Bf16{0});
    std::fill(router.bias.begin(), router.bias.end(), 0.0F);
    std::fill(router.bias_vl.begin(), router.bias_vl.end(), 0.0F);
    router.bias[9] = 0.5F;
    const Routing actual = router.run(ops(), 0, 3);
    const std::vector<int32_t> expected = {0, 1, 2, 9, 0, 1, 2, 3, 0, 1, 2, 9};
    EXPECT_EQ(actual.experts, expected);
    for (const float weight : actual.weights) EXPECT_NEAR(weight, 1.5F / 4.0F, 1e-6F);
  }
}

struct StoredExpert {
  StoredExpert(Random& random, WeightFormat format, int64_t hidden, int64_t inner)
      : w1(random, format, inner, hidden),
        w3(random, format, inner, hidden),
        w2(random, format, hidden, inner) {}
  ExpertWeights view() const { return {w1.view(), w3.view(), w2.view()}; }

  StoredWeight w1, w3, w2;
};

// y = W x with the input through Q8, each output rounded to bf16.
std::vector<double> reference_linear(const StoredWeight& weight, int64_t out,
                                     const std::vector<double>& x) {
  const std::vector<double> q = reference_q8(x);
  std::vector<double> y;
  for (int64_t o = 0; o < out; ++o) {
    double sum = 0.0;
    for (size_t i = 0; i < q.size(); ++i) sum += q[i] * weight.at(o, static_cast<int64_t>(i));
    y.push_back(round_to_bf16(sum));
  }
  return y;
}

void add_reference_expert(const StoredExpert& expert, const std::vector<double>& x, int64_t inner,
                          double weight, std::vector<double>& sum) {
  const std::vector<double> a = reference_linear(expert.w1, inner, x);
  const std::vector<double> b = reference_linear(expert.w3, inner, x);
  std::vector<double> v;
  for (int64_t i = 0; i < inner; ++i) {
    const double gate = std::min(a[i], 10.0);
    const double up = std::clamp(b[i], -10.0, 10.0);
    v.push_back(round_to_bf16(weight * gate / (1.0 + std::exp(-gate)) * up));
  }
  const std::vector<double> y = reference_linear(expert.w2, static_cast<int64_t>(x.size()), v);
  for (size_t i = 0; i < y.size(); ++i) sum[i] += y[i];
}

struct MoeCase {
  int64_t rows;
  int64_t hidden;
  int64_t inner;
  int32_t expert_count;
  int32_t top_k;
};

TEST_P(OpsTest, ExpertsAgree) {
  Random random(22);
  for (const MoeCase& c : {MoeCase{1, 64, 32, 4, 2}, MoeCase{13, 96, 64, 6, 2},
                           MoeCase{40, 64, 96, 3, 3}, MoeCase{9, 128, 32, 40, 3}}) {
    SCOPED_TRACE(testing::Message() << c.rows << " rows, " << c.expert_count << " experts");
    std::vector<StoredExpert> stored;
    std::vector<ExpertWeights> views;
    for (int32_t e = 0; e < c.expert_count; ++e) {
      stored.emplace_back(random, WeightFormat::kFp4Row32, c.hidden, c.inner);
    }
    for (const StoredExpert& expert : stored) views.push_back(expert.view());
    const StoredExpert shared(random, WeightFormat::kFp8Tile32, c.hidden, c.inner);
    const MoeWeights weights = {views, shared.view(), 10.0F};
    // Large enough that outliers hit both clamps.
    const std::vector<Bf16> x = random.bf16(c.rows * c.hidden, 2.0);
    std::vector<int32_t> experts;
    std::vector<float> expert_weights;
    for (int64_t r = 0; r < c.rows; ++r) {
      std::vector<int32_t> all(static_cast<size_t>(c.expert_count));
      std::iota(all.begin(), all.end(), 0);
      for (int32_t k = 0; k < c.top_k; ++k) {
        std::swap(all[k], all[k + random.below(c.expert_count - k)]);
        expert_weights.push_back(static_cast<float>(std::fabs(random.normal())));
      }
      std::sort(all.begin(), all.begin() + c.top_k);
      experts.insert(experts.end(), all.begin(), all.begin() + c.top_k);
    }
    const auto run = [&](Ops& ops, int64_t begin, int64_t count) {
      std::vector<Bf16> y(static_cast<size_t>(count * c.hidden));
      ops.moe(as_rows(x, c.rows).slice(begin, count), weights,
              as_rows(experts, c.rows).slice(begin, count),
              as_rows(expert_weights, c.rows).slice(begin, count), as_rows(y, count));
      return y;
    };
    const std::vector<Bf16> y = run(ops(), 0, c.rows);
    for (int64_t r = 0; r < c.rows; ++r) {
      const std::vector<double> input = widened(x.data() + r * c.hidden, c.hidden);
      std::vector<double> sum(static_cast<size_t>(c.hidden), 0.0);
      for (int32_t k = 0; k < c.top_k; ++k) {
        const int64_t at = r * c.top_k + k;
        add_reference_expert(stored[static_cast<size_t>(experts[at])], input, c.inner,
                             static_cast<double>(expert_weights[at]), sum);
      }
      add_reference_expert(shared, input, c.inner, 1.0, sum);
      // bf16 of the sum is at most 2^-8 an element; a rounding of the inner vector that falls on
      // the other side of a tie moves one e4m3 code by up to 2^-3 of itself.
      EXPECT_LE(relative_l2(y.data() + r * c.hidden, sum), 0.008) << "row " << r;
    }
    expect_row_invariant(c.rows, [&](Ops& ops, int64_t begin, int64_t count) {
      return bytes_of(run(ops, begin, count));
    });
  }
}

TEST_P(OpsTest, EngramLookupIsExact) {
  Random random(23);
  for (const int64_t width : {32, 48, 64, 256}) {
    const int64_t table_rows = 50;
    const int64_t blocks = (width + 31) / 32;
    std::vector<uint8_t> table;
    for (int64_t i = 0; i < table_rows * width; ++i) {
      const auto code = static_cast<uint8_t>(random.below(256));
      table.push_back((code & 0x7FU) == 0x7FU ? 0 : code);
    }
    std::vector<uint8_t> scale;
    for (int64_t i = 0; i < table_rows * blocks; ++i) {
      scale.push_back(static_cast<uint8_t>(110 + random.below(20)));
    }
    const int64_t rows = 7;
    const int64_t columns = 6;
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < rows * columns; ++i) ids.push_back(random.below(table_rows));
    ids[0] = 0;
    ids[1] = table_rows - 1;
    std::vector<Bf16> e(static_cast<size_t>(rows * columns * width));
    ops().engram_lookup({.codes = table.data(), .scale = scale.data(), .width = width},
                        as_rows(ids, rows), as_rows(e, rows));
    for (size_t i = 0; i < e.size(); ++i) {
      const int64_t id = ids[i / static_cast<size_t>(width)];
      const auto channel = static_cast<int64_t>(i) % width;
      const float expected =
          e4m3_to_f32(table[id * width + channel]) * e8m0_to_f32(scale[id * blocks + channel / 32]);
      ASSERT_EQ(to_f32(e[i]), expected) << i;
    }
  }
}

TEST_P(OpsTest, EngramWrite) {
  Random random(24);
  for (const int64_t hidden : {32, 64, 200}) {
    const int64_t rows = 11;
    std::vector<Bf16> kv = random.bf16(rows * 5 * hidden);
    std::fill_n(kv.begin(), hidden, Bf16{0});  // a zero key: the gate is near a half
    const std::vector<Bf16> q_weight = random.bf16(4 * hidden);
    const std::vector<Bf16> k_weight = random.bf16(4 * hidden);
    const std::vector<Bf16> before = random.bf16(rows * 4 * hidden);
    std::vector<uint8_t> alive(static_cast<size_t>(rows), 1);
    alive[3] = 0;
    const auto write = [&](Ops& ops, int64_t begin, int64_t count, std::vector<float>& gate) {
      std::vector<Bf16> streams(before.begin() + begin * 4 * hidden,
                                before.begin() + (begin + count) * 4 * hidden);
      gate.assign(static_cast<size_t>(count * 4), -1.0F);
      ops.engram_write(as_rows(std::as_const(kv), rows).slice(begin, count), q_weight.data(),
                       k_weight.data(),
                       std::span<const uint8_t>(alive).subspan(static_cast<size_t>(begin),
                                                               static_cast<size_t>(count)),
                       4, 1e-20F, as_rows(streams, count), as_rows(gate, count));
      return streams;
    };
    std::vector<float> gate;
    const std::vector<Bf16> streams = write(ops(), 0, rows, gate);
    for (int64_t r = 0; r < rows; ++r) {
      const std::vector<double> row = widened(kv.data() + r * 5 * hidden, 5 * hidden);
      for (int64_t j = 0; j < 4; ++j) {
        const int64_t at = (r * 4 + j) * hidden;
        const std::vector<double> s = widened(before.data() + at, hidden);
        double s2 = 0.0;
        double k2 = 0.0;
        double dot = 0.0;
        for (int64_t i = 0; i < hidden; ++i) {
          const double key = row[j * hidden + i];
          s2 += s[i] * s[i];
          k2 += key * key;
          dot += s[i] * key * static_cast<double>(to_f32(q_weight[j * hidden + i])) *
                 static_cast<double>(to_f32(k_weight[j * hidden + i]));
        }
        const auto width = static_cast<double>(hidden);
        const double delta = dot / std::sqrt((s2 / width + 1e-20) * (k2 / width + 1e-20) * width);
        const double root = std::copysign(std::sqrt(std::max(std::fabs(delta), 1e-6)), delta);
        const double gamma = alive[r] != 0 ? 1.0 / (1.0 + std::exp(-root)) : 0.0;
        EXPECT_NEAR(static_cast<double>(gate[r * 4 + j]), gamma, 1e-4);  // root of an f32 sum
        for (int64_t i = 0; i < hidden; ++i) {
          const double value = row[4 * hidden + i];
          const double expected = s[i] + gamma * value;
          const double tolerance =
              alive[r] != 0 ? 0x1.02p-8 * std::fabs(expected) + 1e-4 * std::fabs(value) : 0.0;
          ASSERT_NEAR(static_cast<double>(to_f32(streams[at + i])), expected, tolerance);
        }
      }
    }
    expect_row_invariant(rows, [&](Ops& ops, int64_t begin, int64_t count) {
      const std::vector<Bf16> part = write(ops, begin, count, gate);
      std::vector<uint8_t> bytes;
      for (int64_t r = 0; r < count; ++r) {
        append_bytes(bytes, part.data() + r * 4 * hidden, 4 * hidden);
        append_bytes(bytes, gate.data() + r * 4, 4);
      }
      return bytes;
    });
    // Without a place for the gate the streams are the same.
    std::vector<Bf16> quiet = before;
    ops().engram_write(as_rows(std::as_const(kv), rows), q_weight.data(), k_weight.data(), alive, 4,
                       1e-20F, as_rows(quiet, rows), {});
    EXPECT_EQ(bytes_of(quiet), bytes_of(streams));
  }
}

}  // namespace
}  // namespace galley::kernels
