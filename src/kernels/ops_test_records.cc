// Rotary embedding, cache records and compressor of any backend: ops_test_cases.h
// says against what and which properties.
#include "kernels/ops_test_records.h"

#include <algorithm>

#include "kernels/plain/norm.h"
#include "kernels/plain/quantise.h"
#include "kernels/plain/rope.h"

namespace galley::kernels {
namespace {

constexpr float kEps = 1e-20F;

const RecordKind kRecordKinds[] = {
    {"window", window_record_bytes, plain::write_window_record, plain::read_window_record, true,
     32.0 / 448.0},
    {"global", global_record_bytes, plain::write_global_record, plain::read_global_record, false,
     2.0 / 6.0},
    {"index", index_record_bytes, plain::write_index_record, plain::read_index_record, true,
     2.0 / 6.0},
};

}  // namespace

const RecordKind& window_kind() { return kRecordKinds[0]; }
const RecordKind& global_kind() { return kRecordKinds[1]; }
const RecordKind& index_kind() { return kRecordKinds[2]; }

StoredPages::StoredPages(Random& random, const RecordKind& kind, int64_t width, int64_t count,
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

PagedRecords StoredPages::view() {
  return {bytes.data() + 5, page_stride, table.data(), records_per_page,
          static_cast<int32_t>(record_bytes)};
}

namespace {

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

TEST_P(OpsTest, KeyRecords) {
  Random random(41);
  for (const RecordKind& kind : {window_kind(), global_kind(), index_kind()}) {
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

}  // namespace
}  // namespace galley::kernels
