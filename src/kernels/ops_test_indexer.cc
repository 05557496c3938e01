// Index scores, candidate pool and selection of any backend: ops_test_cases.h
// says against what and which properties.
#include <algorithm>
#include <limits>

#include "kernels/ops_test_records.h"
#include "kernels/plain/quantise.h"

namespace galley::kernels {
namespace {

struct Choice {
  std::vector<int32_t> selected;
  std::vector<int32_t> pool;
  std::vector<float> scores;
};

// The best `count` of `ids`, ascending; the lower id wins a tie.
std::vector<int32_t> best(std::vector<int32_t> ids, int64_t count,
                          const std::vector<float>& score) {
  std::stable_sort(ids.begin(), ids.end(),
                   [&](int32_t a, int32_t b) { return score[a] > score[b]; });
  if (static_cast<int64_t>(ids.size()) > count) ids.resize(static_cast<size_t>(count));
  std::sort(ids.begin(), ids.end());
  return ids;
}

struct Indexer {
  Indexer(Random& random, const IndexShape& shape_in, int64_t entries)
      : shape(shape_in), keys(random, index_kind(), shape_in.head_dim, entries, 8) {
    for (const int64_t visible : {int64_t{0}, int64_t{1}, entries / 3, entries - 1, entries,
                                  int64_t{shape.top_k}, int64_t{shape.top_k + 1}, entries / 2}) {
      visible_of_row.push_back(std::min(visible, entries));
    }
    rows = static_cast<int64_t>(visible_of_row.size());
    queries = random.bf16(rows * shape.heads * shape.head_dim);
    head_weights = random.bf16(rows * shape.heads, 3.0);
    std::vector<uint8_t> record(static_cast<size_t>(index_record_bytes(shape.head_dim)));
    std::vector<float> simulated(static_cast<size_t>(shape.head_dim));
    for (int64_t at = 0; at < rows * shape.heads; ++at) {  // as index_queries leaves them
      Bf16* query = queries.data() + at * shape.head_dim;
      plain::write_index_record(query, shape.head_dim, record.data());
      plain::read_index_record(record.data(), shape.head_dim, simulated.data());
      for (int64_t i = 0; i < shape.head_dim; ++i) query[i] = to_bf16(simulated[i]);
    }
  }

  std::vector<Choice> run(Ops& ops, int64_t begin, int64_t count, bool want_scores,
                          const std::vector<int32_t>* pool, bool build_pool) {
    std::vector<Choice> choices(static_cast<size_t>(count));
    std::vector<int32_t> counts(static_cast<size_t>(2 * count), -1);
    std::vector<int32_t> pool_counts(static_cast<size_t>(count));
    std::vector<IndexRow> index_rows;
    for (int64_t r = 0; r < count; ++r) {
      Choice& choice = choices[r];
      choice.selected.resize(static_cast<size_t>(shape.top_k));
      choice.pool.resize(static_cast<size_t>(shape.pool_blocks));
      IndexRow row;
      row.visible = visible_of_row[begin + r];
      choice.scores.resize(static_cast<size_t>(row.visible));
      row.keys = keys.view();
      std::vector<int32_t>& part = pools.emplace_back();
      if (pool != nullptr) {
        // A pool holds blocks with a visible entry only.
        for (const int32_t block : *pool) {
          if (block * shape.pool_block_size < row.visible) part.push_back(block);
        }
        part.push_back(-1);  // never null, and never read
        row.pool = part.data();
        pool_counts[r] = static_cast<int32_t>(part.size()) - 1;
        row.pool_count = &pool_counts[r];
      }
      row.selected = choice.selected.data();
      row.selected_count = &counts[2 * r];
      if (build_pool) {
        row.built_pool = choice.pool.data();
        row.built_pool_count = &counts[2 * r + 1];
      }
      if (want_scores) row.scores = choice.scores.data();
      index_rows.push_back(row);
    }
    ops.index_select(as_rows(std::as_const(queries), rows).slice(begin, count),
                     as_rows(std::as_const(head_weights), rows).slice(begin, count), shape,
                     index_rows);
    for (int64_t r = 0; r < count; ++r) {
      choices[r].selected.resize(static_cast<size_t>(counts[2 * r]));
      choices[r].pool.resize(build_pool ? static_cast<size_t>(counts[2 * r + 1]) : 0);
    }
    pools.clear();
    return choices;
  }

  // Score in double precision and the sum of its terms' magnitudes.
  std::pair<double, double> reference_score(int64_t row, int64_t entry) const {
    const double factor = std::pow(static_cast<double>(shape.head_dim) * shape.heads, -0.5);
    double score = 0.0;
    double magnitude = 0.0;
    for (int64_t head = 0; head < shape.heads; ++head) {
      const double weight = round_to_bf16(
          static_cast<double>(to_f32(head_weights[row * shape.heads + head])) * factor);
      const Bf16* query = queries.data() + (row * shape.heads + head) * shape.head_dim;
      double dot = 0.0;
      double dot_magnitude = 0.0;
      for (int64_t i = 0; i < shape.head_dim; ++i) {
        const double term = static_cast<double>(to_f32(query[i])) * keys.values[entry][i];
        dot += term;
        dot_magnitude += std::fabs(term);
      }
      score += weight * std::max(dot, 0.0);
      magnitude += std::fabs(weight) * (std::max(dot, 0.0) + 0x1p-6 * dot_magnitude);
    }
    return {score, magnitude};
  }

  IndexShape shape;
  StoredPages keys;
  std::vector<int64_t> visible_of_row;
  int64_t rows = 0;
  std::vector<Bf16> queries;
  std::vector<Bf16> head_weights;
  std::vector<std::vector<int32_t>> pools;  // kept alive during a run
};

const IndexShape kIndexShapes[] = {
    {.heads = 4, .head_dim = 64, .top_k = 16, .pool_blocks = 5, .pool_block_size = 8},
    {.heads = 3, .head_dim = 32, .top_k = 7, .pool_blocks = 4, .pool_block_size = 4},
    {.heads = 8, .head_dim = 128, .top_k = 32, .pool_blocks = 9, .pool_block_size = 8}};

TEST_P(OpsTest, IndexScoresAgreeAndTheBestAreChosen) {
  Random random(45);
  for (const IndexShape& shape : kIndexShapes) {
    Indexer indexer(random, shape, 101);
    const std::vector<Choice> choices = indexer.run(ops(), 0, indexer.rows, true, nullptr, true);
    for (int64_t r = 0; r < indexer.rows; ++r) {
      SCOPED_TRACE(testing::Message() << shape.heads << " heads, row " << r);
      const Choice& choice = choices[r];
      std::vector<int32_t> all;
      const int64_t block_size = shape.pool_block_size;
      const int64_t blocks = (indexer.visible_of_row[r] + block_size - 1) / block_size;
      std::vector<float> block_score(static_cast<size_t>(blocks),
                                     -std::numeric_limits<float>::infinity());
      for (int64_t j = 0; j < indexer.visible_of_row[r]; ++j) {
        const auto [score, magnitude] = indexer.reference_score(r, j);
        ASSERT_NEAR(static_cast<double>(choice.scores[j]), score,
                    GetParam().index_score_error * magnitude);
        all.push_back(static_cast<int32_t>(j));
        block_score[j / block_size] = std::max(block_score[j / block_size], choice.scores[j]);
      }
      EXPECT_EQ(choice.selected, best(all, shape.top_k, choice.scores));
      if (blocks > 0) block_score.back() = std::numeric_limits<float>::infinity();
      all.resize(static_cast<size_t>(blocks));
      EXPECT_EQ(choice.pool, best(all, shape.pool_blocks, block_score));
    }
  }
}

TEST_P(OpsTest, IndexPoolRestrictsTheChoice) {
  Random random(46);
  for (const IndexShape& shape : kIndexShapes) {
    Indexer indexer(random, shape, 101);
    std::vector<int32_t> pool;
    for (int32_t block = 0; block * shape.pool_block_size < 101; ++block) {
      if (block % 3 != 1 && static_cast<int32_t>(pool.size()) < shape.pool_blocks) {
        pool.push_back(block);
      }
    }
    const std::vector<Choice> with = indexer.run(ops(), 0, indexer.rows, true, &pool, false);
    const std::vector<Choice> without = indexer.run(ops(), 0, indexer.rows, false, &pool, false);
    for (int64_t r = 0; r < indexer.rows; ++r) {
      std::vector<int32_t> eligible;
      for (const int32_t block : pool) {
        for (int32_t j = block * shape.pool_block_size;
             j < std::min<int64_t>((block + 1) * shape.pool_block_size, indexer.visible_of_row[r]);
             ++j) {
          eligible.push_back(j);
        }
      }
      EXPECT_EQ(with[r].selected, best(eligible, shape.top_k, with[r].scores)) << r;
      EXPECT_EQ(without[r].selected, with[r].selected) << "asking for scores changed the choice";
    }
  }
}

TEST_P(OpsTest, IndexTiesGoToTheLowerEntry) {
  Random random(47);
  Indexer indexer(random, kIndexShapes[0], 101);
  std::fill(indexer.queries.begin(), indexer.queries.end(), Bf16{0});  // every score is zero
  const std::vector<Choice> choices = indexer.run(ops(), 0, indexer.rows, true, nullptr, true);
  for (int64_t r = 0; r < indexer.rows; ++r) {
    for (size_t i = 0; i < choices[r].selected.size(); ++i) {
      EXPECT_EQ(choices[r].selected[i], static_cast<int32_t>(i));
    }
    for (size_t i = 0; i + 1 < choices[r].pool.size(); ++i) {  // the last is the forced one
      EXPECT_EQ(choices[r].pool[i], static_cast<int32_t>(i));
    }
  }
}

TEST_P(OpsTest, IndexSelectIsRowInvariant) {
  Random random(48);
  for (const IndexShape& shape : kIndexShapes) {
    Indexer indexer(random, shape, 101);
    expect_row_invariant(indexer.rows, [&](Ops& ops, int64_t begin, int64_t count) {
      std::vector<uint8_t> bytes;
      for (const Choice& choice : indexer.run(ops, begin, count, true, nullptr, true)) {
        const auto add = [&](const auto& part) {
          append_bytes(bytes, part.data(), static_cast<int64_t>(part.size()));
        };
        add(choice.scores);
        add(choice.selected);
        add(choice.pool);
      }
      return bytes;
    });
  }
}

}  // namespace
}  // namespace galley::kernels
