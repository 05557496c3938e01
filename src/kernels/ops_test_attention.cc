// Rotary embedding, cache records, compressor, indexer and core attention of any
// backend: ops_test_cases.h says against what and which properties.
#include <algorithm>
#include <limits>

#include "kernels/ops_test_cases.h"
#include "kernels/plain/norm.h"
#include "kernels/plain/quantise.h"
#include "kernels/plain/rope.h"

namespace galley::kernels {
namespace {

constexpr float kEps = 1e-20F;

TEST_P(OpsTest, Rope) {
  Random random(40);
  struct Shape {
    int32_t heads;
    int64_t width;
    int64_t rotary;
  };
  for (const Shape& shape :
       {Shape{1, 64, 32}, Shape{3, 96, 64}, Shape{2, 64, 64}, Shape{4, 128, 16}}) {
    const int64_t rows = 9;
    const int64_t cols = shape.heads * shape.width;
    const StoredAngles angles(1000, rows, shape.rotary);
    const std::vector<Bf16> before = random.bf16(rows * cols);
    for (const bool inverse : {false, true}) {
      const auto turn = [&](Ops& ops, int64_t begin, int64_t count) {
        std::vector<Bf16> x(before.begin() + begin * cols, before.begin() + (begin + count) * cols);
        ops.rope(as_rows(x, count), shape.heads, angles.view(begin, count), inverse);
        return x;
      };
      const std::vector<Bf16> after = turn(ops(), 0, rows);
      for (int64_t r = 0; r < rows; ++r) {
        for (int32_t head = 0; head < shape.heads; ++head) {
          const int64_t at = r * cols + head * shape.width;
          std::vector<double> expected = widened(before.data() + at, shape.width);
          const std::vector<double> in = expected;
          const int64_t pairs = shape.rotary / 2;
          reference_rope(expected, angles.cos.data() + r * pairs, angles.sin.data() + r * pairs,
                         pairs, inverse);
          for (int64_t i = 0; i < shape.width; ++i) {
            const bool turns = i >= shape.width - shape.rotary;
            const int64_t partner = turns ? i ^ 1 : i;
            // One ulp where the f32 value lies on the other side of a tie.
            const double tolerance = turns
                                         ? 0x1p-7 * std::fabs(expected[i]) +
                                               0x1p-22 * (std::fabs(in[i]) + std::fabs(in[partner]))
                                         : 0.0;
            ASSERT_NEAR(static_cast<double>(to_f32(after[at + i])), expected[i], tolerance);
          }
        }
      }
      expect_row_invariant(rows, [&](Ops& ops, int64_t begin, int64_t count) {
        return bytes_of(turn(ops, begin, count));
      });
    }
  }
}

// --- records -------------------------------------------------------------------

// At least 99 % of the decoded elements equal, the rest one code apart: a bf16 ulp
// before the quantiser moves one code, `step` of the largest element of the row at most.
void expect_nearly_equal_codes(const std::vector<float>& actual, const std::vector<float>& expected,
                               double step) {
  ASSERT_EQ(actual.size(), expected.size());
  double largest = 0.0;
  for (const float value : expected) {
    largest = std::max(largest, std::fabs(static_cast<double>(value)));
  }
  int64_t differing = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    differing += actual[i] != expected[i];
    ASSERT_NEAR(static_cast<double>(actual[i]), static_cast<double>(expected[i]), step * largest);
  }
  EXPECT_LE(differing * 100, static_cast<int64_t>(actual.size()));
}

struct RecordKind {
  const char* name;
  int64_t (*bytes)(int64_t width);
  void (*write)(const Bf16* x, int64_t width, uint8_t* record);
  void (*read)(const uint8_t* record, int64_t width, float* x);
  bool normalises;
  double step;  // largest code step over the largest code
};

const RecordKind kRecordKinds[] = {
    {"window", window_record_bytes, plain::write_window_record, plain::read_window_record, true,
     32.0 / 448.0},
    {"global", global_record_bytes, plain::write_global_record, plain::read_global_record, false,
     2.0 / 6.0},
    {"index", index_record_bytes, plain::write_index_record, plain::read_index_record, true,
     2.0 / 6.0},
};

TEST_P(OpsTest, KeyRecords) {
  Random random(41);
  for (const RecordKind& kind : kRecordKinds) {
    for (const auto& [width, rotary] :
         {std::pair<int64_t, int64_t>{64, 32}, {128, 64}, {512, 64}}) {
      SCOPED_TRACE(testing::Message() << kind.name << " " << width);
      const int64_t rows = 13;
      const int64_t record_bytes = kind.bytes(width);
      const StoredAngles angles(77, rows, rotary);
      const std::vector<Bf16> x = random.bf16(rows * width);
      const std::vector<Bf16> norm = random.bf16(width);
      const auto write = [&](Ops& ops, int64_t begin, int64_t count) {
        std::vector<uint8_t> records(static_cast<size_t>(count * record_bytes), 0xEE);
        std::vector<uint8_t*> places;
        for (int64_t r = 0; r < count; ++r) places.push_back(records.data() + r * record_bytes);
        const Rows<const Bf16> part = as_rows(x, rows).slice(begin, count);
        const RopeAngles turned = angles.view(begin, count);
        if (kind.write == plain::write_window_record) {
          ops.window_keys(part, norm.data(), kEps, turned, as_rows(records, count));
        } else if (kind.write == plain::write_global_record) {
          ops.global_keys(part, turned, places);
        } else {
          ops.index_keys(part, norm.data(), kEps, turned, places);
        }
        return records;
      };
      const std::vector<uint8_t> records = write(ops(), 0, rows);
      std::vector<float> actual(static_cast<size_t>(width));
      std::vector<float> expected(actual.size());
      std::vector<uint8_t> record(static_cast<size_t>(record_bytes));
      for (int64_t r = 0; r < rows; ++r) {
        std::vector<Bf16> key(x.begin() + r * width, x.begin() + (r + 1) * width);
        if (kind.normalises) plain::rms_norm(key.data(), norm.data(), width, kEps, key.data());
        plain::rope(key.data(), width, angles.cos.data() + r * rotary / 2,
                    angles.sin.data() + r * rotary / 2, rotary, false);
        kind.write(key.data(), width, record.data());
        kind.read(record.data(), width, expected.data());
        kind.read(records.data() + r * record_bytes, width, actual.data());
        expect_nearly_equal_codes(actual, expected, kind.step);
      }
      expect_row_invariant(rows, write);
    }
  }
}

// Without sums in front the quantisers are exact: bits must equal.
TEST_P(OpsTest, QuantisersAreExact) {
  Random random(42);
  const int64_t width = 64;
  const int64_t rows = 300;
  StoredAngles still(0, rows, 32);
  std::fill(still.cos.begin(), still.cos.end(), 1.0F);
  std::fill(still.sin.begin(), still.sin.end(), 0.0F);
  std::vector<Bf16> x;
  for (int64_t r = 0; r < rows; ++r) {
    // From below every amax floor to far above: each exponent is its own row.
    const double size = std::ldexp(1.0, static_cast<int>(r % 60) - 40);
    const std::vector<Bf16> row = random.bf16(width, size);
    x.insert(x.end(), row.begin(), row.end());
  }
  const int64_t global_bytes = global_record_bytes(width);
  std::vector<uint8_t> records(static_cast<size_t>(rows * global_bytes));
  std::vector<uint8_t*> places;
  for (int64_t r = 0; r < rows; ++r) places.push_back(records.data() + r * global_bytes);
  ops().global_keys(as_rows(std::as_const(x), rows), still.view(0, rows), places);
  std::vector<Bf16> queries = x;
  ops().index_queries(as_rows(queries, rows), 2, still.view(0, rows));
  std::vector<uint8_t> record(static_cast<size_t>(global_bytes));
  std::vector<float> simulated(static_cast<size_t>(width));
  for (int64_t r = 0; r < rows; ++r) {
    plain::write_global_record(x.data() + r * width, width, record.data());
    ASSERT_EQ(std::memcmp(record.data(), places[r], record.size()), 0) << "row " << r;
    plain::write_index_record(x.data() + r * width, width, record.data());
    plain::read_index_record(record.data(), width, simulated.data());
    for (int64_t i = 0; i < width; ++i) {
      ASSERT_EQ(to_f32(queries[r * width + i]), simulated[i]) << r << " " << i;
    }
  }
}

TEST_P(OpsTest, IndexQueries) {
  Random random(43);
  const int32_t heads = 3;
  for (const auto& [width, rotary] : {std::pair<int64_t, int64_t>{64, 32}, {128, 64}}) {
    const int64_t rows = 13;
    const int64_t cols = heads * width;
    const StoredAngles angles(5, rows, rotary);
    const std::vector<Bf16> x = random.bf16(rows * cols);
    const auto turn = [&](Ops& ops, int64_t begin, int64_t count) {
      std::vector<Bf16> part(x.begin() + begin * cols, x.begin() + (begin + count) * cols);
      ops.index_queries(as_rows(part, count), heads, angles.view(begin, count));
      return bytes_of(part);
    };
    const std::vector<uint8_t> bytes = turn(ops(), 0, rows);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t head = 0; head < heads; ++head) {
        const int64_t at = r * cols + head * width;
        std::vector<Bf16> query(x.begin() + at, x.begin() + at + width);
        plain::rope(query.data(), width, angles.cos.data() + r * rotary / 2,
                    angles.sin.data() + r * rotary / 2, rotary, false);
        std::vector<uint8_t> record(static_cast<size_t>(index_record_bytes(width)));
        std::vector<float> expected(static_cast<size_t>(width));
        plain::write_index_record(query.data(), width, record.data());
        plain::read_index_record(record.data(), width, expected.data());
        std::vector<float> actual;
        for (int64_t i = 0; i < width; ++i) {
          Bf16 value;
          std::memcpy(&value, bytes.data() + (at + i) * 2, sizeof(value));
          actual.push_back(to_f32(value));
        }
        expect_nearly_equal_codes(actual, expected, 2.0 / 6.0);
      }
    }
    expect_row_invariant(rows, turn);
  }
}

TEST_P(OpsTest, Compress) {
  Random random(44);
  for (const int64_t width : {32, 64, 512}) {
    for (const int32_t ratio : {2, 4}) {
      const int64_t groups = 9;
      const std::vector<float> kv = random.f32(groups * ratio * width);
      std::vector<float> gate = random.f32(groups * ratio * width, 2.0);
      gate[0] = 90.0F;  // e^90 has no f32: the maximum must be taken off first
      const std::vector<Bf16> norm = random.bf16(width);
      const auto compress = [&](Ops& ops, int64_t begin, int64_t count) {
        std::vector<Bf16> latent(static_cast<size_t>(count * width));
        const int64_t rows = groups * ratio;
        ops.compress(as_rows(kv, rows).slice(begin * ratio, count * ratio),
                     as_rows(gate, rows).slice(begin * ratio, count * ratio), ratio, norm.data(),
                     kEps, as_rows(latent, count));
        return latent;
      };
      const std::vector<Bf16> latent = compress(ops(), 0, groups);
      for (int64_t g = 0; g < groups; ++g) {
        std::vector<double> z;
        for (int64_t i = 0; i < width; ++i) {
          double top = -1e300;
          double sum = 0.0;
          double value = 0.0;
          const auto at = [&](int32_t m) { return (g * ratio + m) * width + i; };
          for (int32_t m = 0; m < ratio; ++m) top = std::max(top, static_cast<double>(gate[at(m)]));
          for (int32_t m = 0; m < ratio; ++m) {
            const double p = std::exp(static_cast<double>(gate[at(m)]) - top);
            sum += p;
            value += p * static_cast<double>(kv[at(m)]);
          }
          z.push_back(round_to_bf16(value / sum));
        }
        // Single elements may be a bf16 ulp apart in either rounding.
        EXPECT_LE(relative_l2(latent.data() + g * width, reference_rms(z, norm.data(), 1e-20)),
                  0x1p-9);
      }
      expect_row_invariant(groups, [&](Ops& ops, int64_t begin, int64_t count) {
        return bytes_of(compress(ops, begin, count));
      });
    }
  }
}

// --- pages -----------------------------------------------------------------------

// Random records of one kind scattered over pages in a shuffled order.
struct StoredPages {
  StoredPages(Random& random, const RecordKind& kind, int64_t width, int64_t count,
              int32_t records_per_page_in)
      : record_bytes(kind.bytes(width)), records_per_page(records_per_page_in) {
    const int64_t pages = (count + records_per_page - 1) / records_per_page;
    page_stride = record_bytes * records_per_page + 13;  // other kinds lie between
    for (int64_t p = 0; p < pages; ++p) table.push_back(static_cast<int32_t>(p + 2));
    for (int64_t p = pages - 1; p > 0; --p) {
      std::swap(table[p], table[static_cast<size_t>(random.below(p + 1))]);
    }
    bytes.assign(static_cast<size_t>((pages + 2) * page_stride + 5), 0xFF);  // NaN where unused
    for (int64_t j = 0; j < count; ++j) {
      const std::vector<Bf16> x = random.bf16(width);
      kind.write(x.data(), width, view().record(j));
      std::vector<float> decoded(static_cast<size_t>(width));
      kind.read(view().record(j), width, decoded.data());
      values.emplace_back(decoded.begin(), decoded.end());
    }
  }

  PagedRecords view() {
    return {bytes.data() + 5, page_stride, table.data(), records_per_page,
            static_cast<int32_t>(record_bytes)};
  }

  int64_t record_bytes;
  int32_t records_per_page;
  int64_t page_stride = 0;
  std::vector<int32_t> table;
  std::vector<uint8_t> bytes;
  std::vector<std::vector<double>> values;  // decoded, by entry
};

// --- indexer -----------------------------------------------------------------------

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
      : shape(shape_in), keys(random, kRecordKinds[2], shape_in.head_dim, entries, 8) {
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
        row.pool_count = static_cast<int32_t>(part.size()) - 1;
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

// --- core attention ------------------------------------------------------------------

struct AttentionCase {
  AttentionShape shape;
  int64_t rotary;
  int64_t entries;       // compressed entries in the pages
  int64_t selected_max;  // a row selects 0..this many
};

// A sequence whose last rows are the queries: window keys by position, in a ring
// or as this step's chunk, and selections.
struct Attended {
  Attended(Random& random, const AttentionCase& c, int64_t rows_in, int64_t first_position)
      : shape(c.shape),
        rows(rows_in),
        first(first_position),
        record_bytes(window_record_bytes(c.shape.head_dim)),
        ring_slots(c.shape.window + 5),
        angles(first_position, rows_in, c.rotary),
        pages(random, kRecordKinds[1], c.shape.head_dim, std::max<int64_t>(c.entries, 1), 4) {
    const int64_t width = shape.head_dim;
    window.resize(static_cast<size_t>((first + rows) * record_bytes));
    for (int64_t t = 0; t < first + rows; ++t) {
      const std::vector<Bf16> x = random.bf16(width);
      plain::write_window_record(x.data(), width, window.data() + t * record_bytes);
    }
    q = random.bf16(rows * shape.heads * width);
    sink = random.f32(shape.heads);
    for (int64_t r = 0; r < rows; ++r) {
      std::vector<int32_t> chosen;
      const int64_t count = c.selected_max == 0 ? 0 : random.below(c.selected_max + 1);
      for (int64_t j = 0; j < c.entries; ++j) {
        if (static_cast<int64_t>(chosen.size()) < count && random.below(3) != 0) {
          chosen.push_back(static_cast<int32_t>(j));
        }
      }
      selected.push_back(chosen);
    }
  }

  int64_t window_begin(int64_t position) const {
    return std::max<int64_t>(0, position - shape.window + 1);
  }

  // Rows [begin, begin + count) as a step whose own keys start at `chunk_begin`.
  std::vector<Bf16> run(Ops& ops, int64_t begin, int64_t count, int64_t chunk_begin,
                        bool in_place = false) {
    std::vector<uint8_t> ring(static_cast<size_t>(ring_slots * record_bytes), 0xFF);  // NaN codes
    for (int64_t t = std::max<int64_t>(0, chunk_begin - ring_slots); t < chunk_begin; ++t) {
      std::copy_n(window.begin() + t * record_bytes, record_bytes,
                  ring.begin() + (t % ring_slots) * record_bytes);
    }
    std::vector<AttentionRow> attention_rows;
    for (int64_t r = begin; r < begin + count; ++r) {
      AttentionRow row;
      row.position = first + r;
      row.window_begin = window_begin(row.position);
      row.ring = ring.data();
      row.ring_slots = ring_slots;
      row.chunk = window.data() + chunk_begin * record_bytes;
      row.chunk_begin = chunk_begin;
      row.global = pages.view();
      row.selected = selected[r].data();
      row.selected_count = static_cast<int32_t>(selected[r].size());
      attention_rows.push_back(row);
    }
    const int64_t cols = shape.heads * shape.head_dim;
    std::vector<Bf16> o(q.begin() + begin * cols, q.begin() + (begin + count) * cols);
    const std::vector<Bf16> input = o;
    if (!in_place) std::fill(o.begin(), o.end(), Bf16{0});
    ops.attention(in_place ? as_rows(std::as_const(o), count) : as_rows(input, count), sink.data(),
                  shape, angles.view(begin, count), attention_rows, as_rows(o, count));
    return o;
  }

  std::vector<double> reference(int64_t r, int64_t head) {
    const int64_t width = shape.head_dim;
    std::vector<std::vector<double>> keys;
    const int64_t position = first + r;
    for (int64_t t = window_begin(position); t <= position; ++t) {
      std::vector<float> key(static_cast<size_t>(width));
      plain::read_window_record(window.data() + t * record_bytes, width, key.data());
      keys.emplace_back(key.begin(), key.end());
    }
    for (const int32_t j : selected[r]) keys.push_back(pages.values[j]);
    const std::vector<double> query = widened(q.data() + (r * shape.heads + head) * width, width);
    std::vector<double> score;
    double top = static_cast<double>(sink[head]);
    for (const std::vector<double>& key : keys) {
      double dot = 0.0;
      for (int64_t i = 0; i < width; ++i) dot += query[i] * key[i];
      score.push_back(dot / std::sqrt(static_cast<double>(width)));
      top = std::max(top, score.back());
    }
    double denominator = std::exp(static_cast<double>(sink[head]) - top);
    std::vector<double> o(static_cast<size_t>(width), 0.0);
    for (size_t j = 0; j < keys.size(); ++j) {
      const double p = std::exp(score[j] - top);
      denominator += p;
      for (int64_t i = 0; i < width; ++i) o[i] += p * keys[j][i];
    }
    for (double& value : o) value = round_to_bf16(value / denominator);
    const auto pairs = static_cast<int64_t>(angles.cos.size()) / rows;
    reference_rope(o, angles.cos.data() + r * pairs, angles.sin.data() + r * pairs, pairs, true);
    return o;
  }

  AttentionShape shape;
  int64_t rows;
  int64_t first;
  int64_t record_bytes;
  int64_t ring_slots;
  StoredAngles angles;
  StoredPages pages;
  std::vector<uint8_t> window;  // every position's record
  std::vector<Bf16> q;
  std::vector<float> sink;
  std::vector<std::vector<int32_t>> selected;
};

const AttentionCase kAttentionCases[] = {
    {{.heads = 4, .head_dim = 64, .window = 16}, 32, 60, 32},
    {{.heads = 3, .head_dim = 64, .window = 16}, 32, 0, 0},
    {{.heads = 2, .head_dim = 512, .window = 128}, 64, 200, 130},
    {{.heads = 5, .head_dim = 96, .window = 24}, 64, 40, 9}};

TEST_P(OpsTest, AttentionAgrees) {
  Random random(49);
  for (const AttentionCase& c : kAttentionCases) {
    for (const int64_t first : {0, 3, 200}) {
      SCOPED_TRACE(testing::Message() << "head width " << c.shape.head_dim << " from " << first);
      Attended attended(random, c, 7, first);
      const std::vector<Bf16> o = attended.run(ops(), 0, attended.rows, first);
      for (int64_t r = 0; r < attended.rows; ++r) {
        for (int64_t head = 0; head < c.shape.heads; ++head) {
          const Bf16* actual = o.data() + (r * c.shape.heads + head) * c.shape.head_dim;
          EXPECT_LE(relative_l2(actual, attended.reference(r, head)), GetParam().attention_error)
              << r << " " << head;
        }
      }
      EXPECT_EQ(bytes_of(attended.run(ops(), 0, attended.rows, first, true)), bytes_of(o))
          << "in place";
    }
  }
}

TEST_P(OpsTest, AttentionDoesNotSeeWhereKeysLie) {
  Random random(50);
  for (const AttentionCase& c : kAttentionCases) {
    Attended attended(random, c, 5, 300);
    const std::vector<uint8_t> expected = bytes_of(attended.run(ops(), 0, 5, 300));
    for (const int64_t earlier : {1, 7, 15, 200}) {
      EXPECT_EQ(bytes_of(attended.run(ops(), 0, 5, 300 - earlier)) == expected, true)
          << earlier << " keys before the rows lie in the chunk instead of the ring";
    }
  }
}

TEST_P(OpsTest, AttentionIsRowInvariant) {
  Random random(51);
  for (const AttentionCase& c : kAttentionCases) {
    for (const int64_t first : {0, 200}) {
      Attended attended(random, c, 19, first);
      expect_row_invariant(19, [&](Ops& ops, int64_t begin, int64_t count) {
        return bytes_of(attended.run(ops, begin, count, first + begin));
      });
    }
  }
}

// Scores far apart: no overflow, and a sink far above everything leaves zeros.
TEST_P(OpsTest, AttentionSurvivesExtremeScores) {
  Random random(52);
  Attended attended(random, kAttentionCases[0], 4, 50);
  for (Bf16& value : attended.q) value = to_bf16(to_f32(value) * 300.0F);
  attended.sink[0] = 5000.0F;
  attended.sink[1] = -5000.0F;
  const std::vector<Bf16> o = attended.run(ops(), 0, 4, 50);
  for (const Bf16 value : o) ASSERT_TRUE(std::isfinite(to_f32(value)));
  for (int64_t r = 0; r < 4; ++r) {
    for (int64_t head = 1; head < 4; ++head) {
      EXPECT_LE(relative_l2(o.data() + (r * 4 + head) * 64, attended.reference(r, head)),
                GetParam().attention_error);
    }
  }
  // Zero queries and a sink that outweighs all keys by e^1000.
  std::fill(attended.q.begin(), attended.q.end(), Bf16{0});
  attended.sink[0] = 1000.0F;
  const std::vector<Bf16> silent = attended.run(ops(), 0, 4, 50);
  for (int64_t r = 0; r < 4; ++r) {
    for (int64_t i = 0; i < 64; ++i) EXPECT_EQ(to_f32(silent[r * 256 + i]), 0.0F);
  }
}

}  // namespace
}  // namespace galley::kernels
