// A row's bits do not depend on the rows beside it, on how many they are, or on the
// thread count, at sizes that reach every path of fast/: weights unpacked in registers
// or in panels, K in spans, parallel regions, shared-out heads and entries. Shapes,
// counts and members are drawn at random; the seed is printed with a failure.
#include <gtest/gtest.h>

#include <numeric>

#include "kernels/fast/fast_ops.h"
#include "kernels/ops_test_cases.h"
#include "kernels/plain/quantise.h"

namespace galley::kernels {
namespace {

class Invariance : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!machine_has(GetParam())) GTEST_SKIP() << "this machine lacks " << isa_name(GetParam());
    for (int threads = 1; threads <= 3; ++threads) {
      pools_.push_back(std::make_unique<ThreadPool>(threads));
      ops_.push_back(make_fast_ops(*pools_.back(), GetParam()));
    }
  }

  Ops& any_ops(Random& random) { return *ops_[random.below(3)]; }
  Ops& one_thread() { return *ops_[0]; }

  // `count` rows of [0, rows) in random order, with repetition.
  static std::vector<int64_t> pick(Random& random, int64_t rows, int64_t count) {
    std::vector<int64_t> picked(static_cast<size_t>(count));
    for (int64_t& row : picked) row = random.below(rows);
    return picked;
  }

  template <class T>
  static std::vector<T> gather(const std::vector<T>& rows, int64_t cols,
                               const std::vector<int64_t>& picked) {
    std::vector<T> out;
    for (const int64_t row : picked) {
      out.insert(out.end(), rows.begin() + row * cols, rows.begin() + (row + 1) * cols);
    }
    return out;
  }

  template <class T>
  static bool same_row(const std::vector<T>& a, int64_t row_a, const std::vector<T>& b,
                       int64_t row_b, int64_t cols) {
    return std::memcmp(a.data() + row_a * cols, b.data() + row_b * cols,
                       static_cast<size_t>(cols) * sizeof(T)) == 0;
  }

 private:
  std::vector<std::unique_ptr<ThreadPool>> pools_;
  std::vector<std::unique_ptr<Ops>> ops_;
};

constexpr int64_t kRows = 24;

TEST_P(Invariance, Linear) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    const int64_t k = 32 * (1 + random.below(seed % 2 == 0 ? 70 : 12));
    const int64_t out = 1 + random.below(200);
    const StoredWeight fp8(random, WeightFormat::kFp8Tile32, out, k);
    const StoredWeight fp4(random, WeightFormat::kFp4Row32, out, k);
    const StoredWeight bf16(random, WeightFormat::kBf16, out, k);
    const std::vector<Bf16> x = random.bf16(kRows * k);
    const auto run = [&](Ops& ops, const std::vector<Bf16>& rows_of_x) {
      const auto rows = static_cast<int64_t>(rows_of_x.size()) / k;
      std::vector<float> y(static_cast<size_t>(3 * rows * out));
      const auto part = [&](int64_t i) {
        return Rows<float>(y.data() + i * rows * out, rows, out);
      };
      const Product products[] = {{fp8.view(), true, {}, part(0)},
                                  {fp4.view(), true, {}, part(1)},
                                  {bf16.view(), false, {}, part(2)}};
      ops.linear(as_rows(rows_of_x, rows), products);
      return y;
    };
    std::vector<std::vector<float>> alone;
    for (int64_t r = 0; r < kRows; ++r) alone.push_back(run(one_thread(), gather(x, k, {r})));
    for (int trial = 0; trial < 6; ++trial) {
      const int64_t count = 1 + random.below(trial == 0 ? 90 : 20);
      const std::vector<int64_t> picked = pick(random, kRows, count);
      const std::vector<float> y = run(any_ops(random), gather(x, k, picked));
      for (int64_t i = 0; i < count; ++i) {
        for (int64_t p = 0; p < 3; ++p) {
          ASSERT_TRUE(same_row(y, p * count + i, alone[picked[i]], p, out))
              << "product " << p << " [" << out << ", " << k << "], row " << i << " of " << count;
        }
      }
    }
  }
}

TEST_P(Invariance, Experts) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    const int64_t hidden = 32 * (1 + random.below(12));
    const int64_t inner = 32 * (1 + random.below(9));
    const int32_t experts = 6;
    const int32_t top = 2;
    std::vector<StoredWeight> stored;
    for (int32_t e = 0; e <= experts; ++e) {
      const auto format = e < experts ? WeightFormat::kFp4Row32 : WeightFormat::kFp8Tile32;
      stored.emplace_back(random, format, inner, hidden);
      stored.emplace_back(random, format, inner, hidden);
      stored.emplace_back(random, format, hidden, inner);
    }
    std::vector<ExpertWeights> table;
    for (int32_t e = 0; e <= experts; ++e) {
      table.push_back({stored[3 * e].view(), stored[3 * e + 1].view(), stored[3 * e + 2].view()});
    }
    const MoeWeights weights = {std::span<const ExpertWeights>(table.data(), experts), table.back(),
                                10.0F};
    const std::vector<Bf16> x = random.bf16(kRows * hidden);
    std::vector<int32_t> chosen;
    for (int64_t r = 0; r < kRows; ++r) {
      const auto first = static_cast<int32_t>(random.below(experts - 1));
      chosen.push_back(first);
      chosen.push_back(first + 1 + static_cast<int32_t>(random.below(experts - 1 - first)));
    }
    const std::vector<float> share = random.f32(kRows * top, 0.5);
    const auto run = [&](Ops& ops, const std::vector<int64_t>& picked) {
      const auto rows = static_cast<int64_t>(picked.size());
      std::vector<Bf16> y(static_cast<size_t>(rows * hidden));
      const std::vector<Bf16> in = gather(x, hidden, picked);
      const std::vector<int32_t> e = gather(chosen, top, picked);
      const std::vector<float> w = gather(share, top, picked);
      ops.moe(as_rows(in, rows), weights, as_rows(e, rows), as_rows(w, rows), as_rows(y, rows));
      return y;
    };
    std::vector<std::vector<Bf16>> alone;
    for (int64_t r = 0; r < kRows; ++r) alone.push_back(run(one_thread(), {r}));
    for (int trial = 0; trial < 6; ++trial) {
      const std::vector<int64_t> picked = pick(random, kRows, 1 + random.below(60));
      const std::vector<Bf16> y = run(any_ops(random), picked);
      for (size_t i = 0; i < picked.size(); ++i) {
        ASSERT_TRUE(same_row(y, static_cast<int64_t>(i), alone[picked[i]], 0, hidden))
            << "row " << i << " of " << picked.size();
      }
    }
  }
}

TEST_P(Invariance, HyperConnections) {
  Random random(3);
  const int64_t hidden = 640;
  const std::vector<float> fn = random.f32(24 * 4 * hidden, 0.02);
  const std::vector<float> base = random.f32(24, 0.1);
  const std::vector<float> scale = {0.5F, 0.5F, 0.5F};
  const std::vector<Bf16> norm = random.bf16(hidden);
  const std::vector<Bf16> streams = random.bf16(kRows * 4 * hidden);
  const std::vector<float> carried = random.f32(kRows * 4);
  const HcWeights weights = {fn.data(), base.data(), scale.data()};
  struct Result {
    std::vector<float> mix;
    std::vector<Bf16> x;
  };
  const auto run = [&](Ops& ops, const std::vector<int64_t>& picked) {
    const auto rows = static_cast<int64_t>(picked.size());
    const std::vector<Bf16> in = gather(streams, 4 * hidden, picked);
    const std::vector<float> pi = gather(carried, 4, picked);
    Result result{std::vector<float>(static_cast<size_t>(rows * 24)),
                  std::vector<Bf16>(static_cast<size_t>(rows * hidden))};
    ops.hc_enter(as_rows(in, rows), weights, {}, as_rows(pi, rows), norm.data(),
                 {Rows<float>(result.mix.data(), rows, 4, 24),
                  Rows<float>(result.mix.data() + 4, rows, 4, 24),
                  Rows<float>(result.mix.data() + 8, rows, 16, 24)},
                 as_rows(result.x, rows));
    return result;
  };
  std::vector<Result> alone;
  for (int64_t r = 0; r < kRows; ++r) alone.push_back(run(one_thread(), {r}));
  for (int trial = 0; trial < 20; ++trial) {
    const std::vector<int64_t> picked = pick(random, kRows, 1 + random.below(40));
    const Result result = run(any_ops(random), picked);
    for (size_t i = 0; i < picked.size(); ++i) {
      const auto row = static_cast<int64_t>(i);
      ASSERT_TRUE(same_row(result.mix, row, alone[picked[i]].mix, 0, 24));
      ASSERT_TRUE(same_row(result.x, row, alone[picked[i]].x, 0, hidden));
    }
  }
}

// Long key lists for one row (heads are shared out) and for many.
TEST_P(Invariance, Attention) {
  Random random(4);
  const AttentionShape shape = {.heads = 32, .head_dim = 128, .window = 64};
  const int64_t q_size = shape.heads * shape.head_dim;
  const int64_t entries = 400;
  const int64_t record = global_record_bytes(shape.head_dim);
  std::vector<uint8_t> ring(static_cast<size_t>(128 * window_record_bytes(shape.head_dim)));
  std::vector<uint8_t> global(static_cast<size_t>(entries * record));
  for (int64_t t = 0; t < 128; ++t) {
    plain::write_window_record(random.bf16(shape.head_dim).data(), shape.head_dim,
                               ring.data() + t * window_record_bytes(shape.head_dim));
  }
  for (int64_t j = 0; j < entries; ++j) {
    plain::write_global_record(random.bf16(shape.head_dim).data(), shape.head_dim,
                               global.data() + j * record);
  }
  const std::vector<int32_t> page_table = {0};
  const std::vector<Bf16> q = random.bf16(kRows * q_size);
  const std::vector<float> sink = random.f32(shape.heads);
  const StoredAngles angles(100, kRows, 64);
  std::vector<int32_t> all(static_cast<size_t>(entries));
  std::iota(all.begin(), all.end(), 0);
  std::vector<AttentionRow> rows_of(static_cast<size_t>(kRows));
  std::vector<int32_t> counts(static_cast<size_t>(kRows));
  for (int64_t r = 0; r < kRows; ++r) {
    AttentionRow& row = rows_of[r];
    row.position = 100 + r;
    row.window_begin = row.position - random.below(shape.window);
    row.ring = ring.data();
    row.ring_slots = 128;
    row.chunk = ring.data();
    row.chunk_begin = 1000;
    row.global = {global.data(), 0, page_table.data(), static_cast<int32_t>(entries),
                  static_cast<int32_t>(record)};
    row.selected = all.data() + random.below(50);
    counts[r] = static_cast<int32_t>(random.below(350));
    row.selected_count = &counts[r];
  }
  const auto run = [&](Ops& ops, const std::vector<int64_t>& picked) {
    const auto rows = static_cast<int64_t>(picked.size());
    const std::vector<Bf16> in = gather(q, q_size, picked);
    const std::vector<float> cos = gather(angles.cos, 32, picked);
    const std::vector<float> sin = gather(angles.sin, 32, picked);
    std::vector<AttentionRow> row_list;
    for (const int64_t row : picked) row_list.push_back(rows_of[row]);
    std::vector<Bf16> o(in.size());
    ops.attention(as_rows(in, rows), sink.data(), shape, {as_rows(cos, rows), as_rows(sin, rows)},
                  row_list, as_rows(o, rows));
    return o;
  };
  std::vector<std::vector<Bf16>> alone;
  for (int64_t r = 0; r < kRows; ++r) alone.push_back(run(one_thread(), {r}));
  for (int trial = 0; trial < 20; ++trial) {
    const std::vector<int64_t> picked = pick(random, kRows, 1 + random.below(12));
    const std::vector<Bf16> o = run(any_ops(random), picked);
    for (size_t i = 0; i < picked.size(); ++i) {
      ASSERT_TRUE(same_row(o, static_cast<int64_t>(i), alone[picked[i]], 0, q_size));
    }
  }
}

// Enough entries that one row's are shared out; pools and ties included.
TEST_P(Invariance, Indexer) {
  Random random(5);
  const IndexShape shape = {
      .heads = 12, .head_dim = 64, .top_k = 96, .pool_blocks = 40, .pool_block_size = 8};
  const int64_t entries = 5000;
  const int64_t record = index_record_bytes(shape.head_dim);
  std::vector<uint8_t> keys(static_cast<size_t>(entries * record));
  for (int64_t j = 0; j < entries; ++j) {
    // Every other key repeats an earlier one: ties everywhere.
    uint8_t* to = keys.data() + j * record;
    if (j % 2 == 1) {
      std::memcpy(to, keys.data() + random.below(j) * record, static_cast<size_t>(record));
    } else {
      plain::write_index_record(random.bf16(shape.head_dim).data(), shape.head_dim, to);
    }
  }
  const std::vector<int32_t> page_table = {0};
  const int64_t q_size = shape.heads * shape.head_dim;
  const std::vector<Bf16> q = random.bf16(kRows * q_size);
  const std::vector<Bf16> w = random.bf16(kRows * shape.heads);
  std::vector<int64_t> visible;
  for (int64_t r = 0; r < kRows; ++r) visible.push_back(1 + random.below(entries));
  std::vector<int32_t> pool(100);
  std::iota(pool.begin(), pool.end(), 3);
  const auto pool_size = static_cast<int32_t>(pool.size());
  const int64_t out_size = shape.top_k + shape.pool_blocks + 2;
  const auto run = [&](Ops& ops, const std::vector<int64_t>& picked) {
    const auto rows = static_cast<int64_t>(picked.size());
    std::vector<int32_t> out(static_cast<size_t>(rows * out_size), -1);
    std::vector<IndexRow> row_list;
    for (int64_t i = 0; i < rows; ++i) {
      IndexRow row;
      row.visible = visible[picked[i]];
      row.keys = {keys.data(), 0, page_table.data(), static_cast<int32_t>(entries),
                  static_cast<int32_t>(record)};
      int32_t* to = out.data() + i * out_size;
      row.selected_count = to;
      row.selected = to + 2;
      if (picked[i] % 3 == 0) {
        row.built_pool_count = to + 1;
        row.built_pool = to + 2 + shape.top_k;
      } else if (picked[i] % 3 == 1) {
        row.pool = pool.data();
        row.pool_count = &pool_size;
      }
      row_list.push_back(row);
    }
    const std::vector<Bf16> queries = gather(q, q_size, picked);
    const std::vector<Bf16> weights = gather(w, shape.heads, picked);
    ops.index_select(as_rows(queries, rows), as_rows(weights, rows), shape, row_list);
    return out;
  };
  std::vector<std::vector<int32_t>> alone;
  for (int64_t r = 0; r < kRows; ++r) alone.push_back(run(one_thread(), {r}));
  for (int trial = 0; trial < 20; ++trial) {
    const std::vector<int64_t> picked = pick(random, kRows, 1 + random.below(12));
    const std::vector<int32_t> out = run(any_ops(random), picked);
    for (size_t i = 0; i < picked.size(); ++i) {
      ASSERT_TRUE(same_row(out, static_cast<int64_t>(i), alone[picked[i]], 0, out_size));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Fast, Invariance, testing::Values(Isa::kAvx512Bf16, Isa::kAvx2),
                         [](const auto& one) { return std::string(isa_name(one.param)); });

}  // namespace
}  // namespace galley::kernels
