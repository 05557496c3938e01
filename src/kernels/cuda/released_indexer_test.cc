// Index scores at the released shape where groups of a key or a query differ much in scale: those
// take another way through the kernel (index_scores_sm90.cu). Compared with sums in double; and a
// key's score has the same bits whatever keys and rows lie beside it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/mirrored_ops.h"
#include "kernels/ops_test_cases.h"
#include "kernels/ops_test_records.h"
#include "kernels/plain/quantise.h"

namespace galley::kernels {
namespace {

constexpr int64_t kWidth = 128;
constexpr int64_t kGroup = 32;
constexpr int32_t kPerPage = 32;
constexpr IndexShape kShape{
    .heads = 32, .head_dim = 128, .top_k = 512, .pool_blocks = 40, .pool_block_size = 8};

// A record of random values whose groups are scaled by 2^exponent, or nothing but zeros.
std::vector<uint8_t> record_of(Random& random, const std::vector<int>& exponents) {
  std::vector<Bf16> x = random.bf16(kWidth);
  for (int64_t i = 0; i < kWidth; ++i) {
    const int exponent = exponents[static_cast<size_t>(i / kGroup)];
    Bf16& value = x[static_cast<size_t>(i)];
    value = to_bf16(exponent > 99 ? 0.0F : std::ldexp(to_f32(value), exponent));
  }
  std::vector<uint8_t> record(static_cast<size_t>(index_record_bytes(kWidth)));
  plain::write_index_record(x.data(), kWidth, record.data());
  return record;
}

std::vector<float> values_of(const std::vector<uint8_t>& record) {
  std::vector<float> values(static_cast<size_t>(kWidth));
  plain::read_index_record(record.data(), kWidth, values.data());
  return values;
}

struct UnevenIndexer {
  explicit UnevenIndexer(Random& random) {
    // Differences of 0 to 3 are folded into the integers, larger ones are not.
    const std::vector<std::vector<int>> kinds = {
        {0, 0, 0, 0},   {0, 1, -1, 2},    {3, 0, 0, 0},  {0, 0, 0, 4},
        {-20, 0, 5, 0}, {100, 1, 100, 0}, {9, -9, 9, 0}, {100, 100, 100, 100}};
    for (int64_t j = 0; j < kEntries; ++j) {
      // Long stretches of even keys, then uneven ones among them.
      const int64_t kind = j < 600 ? j % 3 : random.below(std::ssize(kinds));
      records.push_back(record_of(random, kinds[static_cast<size_t>(kind)]));
    }
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t h = 0; h < kShape.heads; ++h) {
        // Row 0 even, row 1 with one uneven head, the others with any.
        const int64_t kind = r == 0   ? random.below(3)
                             : r == 1 ? (h == 13 ? 4 : 0)
                                      : random.below(std::ssize(kinds));
        const std::vector<float> q = values_of(record_of(random, kinds[static_cast<size_t>(kind)]));
        for (const float value : q) queries.push_back(to_bf16(value));
      }
    }
    head_weights = random.bf16(kRows * kShape.heads, 3.0);
  }

  // Scores [rows][entries] of `count` rows, entry j being the record order[j].
  std::vector<std::vector<float>> run(Ops& ops, int64_t begin, int64_t count,
                                      const std::vector<int64_t>& order,
                                      std::vector<std::vector<int32_t>>* chosen = nullptr) const {
    const auto bytes = static_cast<int64_t>(records.front().size());
    const auto pages = (std::ssize(order) + kPerPage - 1) / kPerPage;
    std::vector<uint8_t> pool(static_cast<size_t>(pages * kPerPage * bytes));
    std::vector<int32_t> table;
    for (int64_t p = 0; p < pages; ++p) table.push_back(static_cast<int32_t>(p));
    for (size_t j = 0; j < order.size(); ++j) {
      const std::vector<uint8_t>& record = records[static_cast<size_t>(order[j])];
      std::copy(record.begin(), record.end(), pool.begin() + static_cast<int64_t>(j) * bytes);
    }
    std::vector<std::vector<float>> scores(static_cast<size_t>(count));
    std::vector<std::vector<int32_t>> selected(static_cast<size_t>(count));
    std::vector<int32_t> counts(static_cast<size_t>(count));
    std::vector<IndexRow> rows;
    for (int64_t r = 0; r < count; ++r) {
      scores[static_cast<size_t>(r)].resize(order.size());
      selected[static_cast<size_t>(r)].resize(static_cast<size_t>(kShape.top_k));
      IndexRow row;
      row.visible = std::ssize(order);
      row.keys = {pool.data(), kPerPage * bytes, table.data(), kPerPage,
                  static_cast<int32_t>(bytes)};
      row.selected = selected[static_cast<size_t>(r)].data();
      row.selected_count = &counts[static_cast<size_t>(r)];
      row.scores = scores[static_cast<size_t>(r)].data();
      rows.push_back(row);
    }
    ops.index_select(as_rows(queries, kRows).slice(begin, count),
                     as_rows(head_weights, kRows).slice(begin, count), kShape, rows);
    if (chosen != nullptr) *chosen = selected;
    return scores;
  }

  // The score in double and the sum of its terms' magnitudes.
  std::pair<double, double> reference(int64_t row, int64_t entry) const {
    const std::vector<float> key = values_of(records[static_cast<size_t>(entry)]);
    double score = 0.0;
    double magnitude = 0.0;
    for (int64_t h = 0; h < kShape.heads; ++h) {
      const auto at = static_cast<size_t>(row * kShape.heads + h);
      const double weight = round_to_bf16(to_f32(head_weights[at]) / 64.0);
      double dot = 0.0;
      double dot_magnitude = 0.0;
      for (size_t i = 0; i < static_cast<size_t>(kWidth); ++i) {
        const double term = static_cast<double>(to_f32(queries[at * kWidth + i])) * key[i];
        dot += term;
        dot_magnitude += std::fabs(term);
      }
      score += weight * std::max(dot, 0.0);
      magnitude += std::fabs(weight) * (std::max(dot, 0.0) + 0x1p-6 * dot_magnitude);
    }
    return {score, magnitude};
  }

  static constexpr int64_t kEntries = 1500;
  static constexpr int64_t kRows = 6;
  std::vector<std::vector<uint8_t>> records;
  std::vector<Bf16> queries;
  std::vector<Bf16> head_weights;
};

TEST(CudaReleasedIndexer, ScoresOfUnevenGroupsAgree) {
  auto made = cuda::make_cuda_ops(0);
  if (!made) GTEST_SKIP() << made.error().message;
  const std::unique_ptr<Ops> ops = make_mirrored_ops(**made);
  Random random(83);
  const UnevenIndexer indexer(random);
  std::vector<int64_t> order;
  for (int64_t j = 0; j < UnevenIndexer::kEntries; ++j) order.push_back(j);
  const auto all = indexer.run(*ops, 0, UnevenIndexer::kRows, order);
  for (int64_t r = 0; r < UnevenIndexer::kRows; ++r) {
    for (int64_t j = 0; j < UnevenIndexer::kEntries; ++j) {
      const auto [score, magnitude] = indexer.reference(r, j);
      ASSERT_NEAR(all[static_cast<size_t>(r)][static_cast<size_t>(j)], score, 0x1p-18 * magnitude)
          << "row " << r << ", entry " << j;
    }
  }
  // Other neighbours: keys from the last to the first, rows alone.
  const std::vector<int64_t> backwards(order.rbegin(), order.rend());
  for (int64_t r = 0; r < UnevenIndexer::kRows; ++r) {
    std::vector<float> alone = indexer.run(*ops, r, 1, backwards).front();
    std::reverse(alone.begin(), alone.end());
    EXPECT_TRUE(alone == all[static_cast<size_t>(r)]) << "row " << r;
  }
}

// The 512 best of scores that are there to be compared with: of many entries (whose groups' largest
// scores are looked at first) and of few, all different, many of them equal, or all.
TEST(CudaReleasedIndexer, ChoosesTheFirstOfTheBest) {
  auto made = cuda::make_cuda_ops(0);
  if (!made) GTEST_SKIP() << made.error().message;
  const std::unique_ptr<Ops> ops = make_mirrored_ops(**made);
  Random random(84);
  const UnevenIndexer indexer(random);
  for (const int64_t entries : {513, 1500, 9000, 32769, 40'007}) {
    for (const int64_t kinds : {1, 3, 40, 600}) {
      std::vector<int64_t> order;
      for (int64_t j = 0; j < entries; ++j) order.push_back(random.below(kinds));
      std::vector<std::vector<int32_t>> selected;
      const auto scores = indexer.run(*ops, 0, 2, order, &selected);
      for (size_t r = 0; r < scores.size(); ++r) {
        std::vector<int32_t> best(static_cast<size_t>(entries));
        std::iota(best.begin(), best.end(), 0);
        std::stable_sort(best.begin(), best.end(), [&](int32_t a, int32_t b) {
          return scores[r][static_cast<size_t>(a)] > scores[r][static_cast<size_t>(b)];
        });
        best.resize(static_cast<size_t>(kShape.top_k));
        std::sort(best.begin(), best.end());
        EXPECT_TRUE(selected[r] == best) << entries << " entries of " << kinds << ", row " << r;
      }
    }
  }
}

}  // namespace
}  // namespace galley::kernels
