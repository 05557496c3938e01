// Core attention of any backend: ops_test_cases.h says against what and which
// properties.
#include <algorithm>

#include "kernels/ops_test_records.h"
#include "kernels/plain/quantise.h"

namespace galley::kernels {
namespace {

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
        pages(random, global_kind(), c.shape.head_dim, std::max<int64_t>(c.entries, 1), 4) {
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
    std::vector<int32_t> counts;
    for (int64_t r = begin; r < begin + count; ++r) {
      counts.push_back(static_cast<int32_t>(selected[r].size()));
    }
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
      row.selected_count = &counts[r - begin];
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
