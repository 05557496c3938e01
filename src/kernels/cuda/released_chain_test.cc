// The input side of an attention layer at the released widths, as a step calls it: what rides
// along with something else (the norm with its quantiser, window keys, copies, several matrices
// of one input, queries that turn) has the bits of one operation after the other, for every number
// of rows. So has attention, which reads its keys while the product in front still makes q.
//
// Each operation is finished before the next one in one run, and all are handed over together in
// the other, which is what a step does. Skipped without a usable device.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/cuda/device_fixture.h"
#include "kernels/ops_test_records.h"
#include "kernels/plain/quantise.h"

namespace galley::kernels {
namespace {

constexpr int64_t kHidden = 5120;
constexpr int64_t kLatent = 1280;
constexpr int32_t kHeads = 64;
constexpr int64_t kKeyWidth = 512;
constexpr int64_t kQueries = kHeads * kKeyWidth;
constexpr int64_t kEntries = 700;
constexpr int64_t kSelected = 512;
constexpr int64_t kRotary = 64;
constexpr int64_t kRowsMax = 600;
constexpr float kEps = 1e-6F;

class CudaReleasedChain : public DeviceFixture {
 protected:
  template <class T>
  Rows<T> rows_of(int64_t rows, int64_t cols) {
    return Rows<T>(reinterpret_cast<T*>(room(rows * cols * static_cast<int64_t>(sizeof(T)))), rows,
                   cols);
  }
  template <class T>
  std::vector<T> read(Rows<T> rows) {
    std::vector<T> host(static_cast<size_t>(rows.rows * rows.cols));
    ops_->memory().read(host.data(), rows.data, std::ssize(host) * static_cast<int64_t>(sizeof(T)));
    return host;
  }
  WeightView folded(Random& random, int64_t out, int64_t in) {
    return DeviceFixture::folded(StoredWeight(random, WeightFormat::kFp8Tile32, out, in));
  }

  // Rows that see window keys which the chain itself makes, and entries that were there before.
  std::vector<AttentionRow> attention_rows(Random& random, Rows<const uint8_t> keys) {
    constexpr int64_t kPerPage = 50;
    constexpr int64_t kPages = kEntries / kPerPage;
    const int64_t record = global_kind().bytes(kKeyWidth);
    std::vector<uint8_t> pool(static_cast<size_t>(kEntries * record));
    for (int64_t j = 0; j < kEntries; ++j) {
      plain::write_global_record(random.bf16(kKeyWidth).data(), kKeyWidth,
                                 pool.data() + j * record);
    }
    std::vector<int32_t> table;
    for (int64_t page = 0; page < kPages; ++page) {
      table.push_back(static_cast<int32_t>((page * 3 + 1) % kPages));
    }
    std::vector<int32_t> selected;
    std::vector<int32_t> counts;
    for (int64_t row = 0; row < kRowsMax; ++row) {
      for (int64_t j = 0; j < kSelected; ++j) {
        selected.push_back(static_cast<int32_t>(j + row % (kEntries - kSelected)));
      }
      const int64_t count = row % 4 == 3 ? random.below(kSelected + 1) : kSelected;
      counts.push_back(static_cast<int32_t>(count));
    }
    const PagedRecords global{.pool = placed(pool),
                              .page_stride = kPerPage * record,
                              .page_table = placed(table),
                              .records_per_page = kPerPage,
                              .record_bytes = static_cast<int32_t>(record)};
    const int32_t* all_selected = placed(selected);
    const int32_t* all_counts = placed(counts);
    std::vector<AttentionRow> rows(static_cast<size_t>(kRowsMax));
    for (int64_t row = 0; row < kRowsMax; ++row) {
      AttentionRow& one = rows[static_cast<size_t>(row)];
      one.position = row;
      one.window_begin = std::max<int64_t>(0, row - 127);
      one.chunk = keys.data;
      one.global = global;
      one.selected = all_selected + row * kSelected;
      one.selected_count = row % 5 == 4 ? nullptr : all_counts + row;
    }
    return rows;
  }
};

struct Chain {
  WeightView wq_a, wkv, wq_b, index_wq_b, wo_b;
  const Bf16* q_norm;
  const Bf16* kv_norm;
  Rows<const Bf16> x;
  RopeAngles angles;
  Rows<Bf16> lambda, kv, q, o, index_query, ring, out;
  Rows<uint8_t> keys;
  const float* sink;
  std::vector<AttentionRow> attention_rows;

  Chain first(int64_t rows) const {
    Chain part = *this;
    part.x = x.slice(0, rows);
    part.angles = {angles.cos.slice(0, rows), angles.sin.slice(0, rows)};
    part.lambda = lambda.slice(0, rows);
    part.kv = kv.slice(0, rows);
    part.q = q.slice(0, rows);
    part.o = o.slice(0, rows);
    part.index_query = index_query.slice(0, rows);
    part.ring = ring.slice(0, rows);
    part.out = out.slice(0, rows);
    part.keys = keys.slice(0, rows);
    part.attention_rows.resize(static_cast<size_t>(rows));
    return part;
  }
};

Product quantised(const WeightView& weight, Rows<Bf16> y) {
  return {.weight = weight, .quantise_input = true, .y = y, .y_f32 = {}};
}

void attend(Ops& ops, const Chain& c) {
  const AttentionShape shape{
      .heads = kHeads, .head_dim = kKeyWidth, .window = 128, .selected_max = kSelected};
  ops.attention(c.q, c.sink, shape, c.angles, c.attention_rows, c.o);
}

// next() stands between operations.
template <class Next>
void apart(Ops& ops, const Chain& c, const Next& next) {
  for (const Product& one : {quantised(c.wq_a, c.lambda), quantised(c.wkv, c.kv)}) {
    ops.linear(c.x, {&one, 1});
    next();
  }
  ops.window_keys(c.kv, c.kv_norm, kEps, c.angles, c.keys);
  next();
  ops.rms_norm(c.lambda, c.q_norm, kEps, c.lambda);
  next();
  for (const Product& one : {quantised(c.wq_b, c.q), quantised(c.index_wq_b, c.index_query)}) {
    ops.linear(c.lambda, {&one, 1});
    next();
  }
  ops.rope(c.q, kHeads, c.angles, false);
  next();
  attend(ops, c);
  next();
}

void together(Ops& ops, const Chain& c) {
  const Product first[2] = {quantised(c.wq_a, c.lambda), quantised(c.wkv, c.kv)};
  ops.linear(c.x, first);
  ops.window_keys(c.kv, c.kv_norm, kEps, c.angles, c.keys);
  const Product second[2] = {quantised(c.wq_b, c.q), quantised(c.index_wq_b, c.index_query)};
  ops.norm_linear(c.lambda, c.q_norm, kEps, second);
  ops.rope(c.q, kHeads, c.angles, false);
  attend(ops, c);
}

TEST_F(CudaReleasedChain, TogetherIsOneAfterTheOther) {
  Random random(90);
  Chain chain{};
  chain.wq_a = folded(random, kLatent, kHidden);
  chain.wkv = folded(random, kKeyWidth, kHidden);
  chain.wq_b = folded(random, kQueries, kLatent);
  chain.index_wq_b = folded(random, 4096, kLatent);
  chain.wo_b = folded(random, kHidden, 8192);
  chain.q_norm = placed(random.bf16(kLatent));
  chain.kv_norm = placed(random.bf16(kKeyWidth));
  chain.x = Rows<const Bf16>(placed(random.bf16(kRowsMax * kHidden)), kRowsMax, kHidden);
  const StoredAngles angles(5000, kRowsMax, kRotary);
  chain.angles = {Rows<const float>(placed(angles.cos), kRowsMax, kRotary / 2),
                  Rows<const float>(placed(angles.sin), kRowsMax, kRotary / 2)};
  chain.lambda = rows_of<Bf16>(kRowsMax, kLatent);
  chain.kv = rows_of<Bf16>(kRowsMax, kKeyWidth);
  chain.q = rows_of<Bf16>(kRowsMax, kQueries);
  chain.o = rows_of<Bf16>(kRowsMax, kQueries);
  chain.index_query = rows_of<Bf16>(kRowsMax, 4096);
  chain.ring = rows_of<Bf16>(kRowsMax, kKeyWidth);
  chain.out = rows_of<Bf16>(kRowsMax, kHidden);
  chain.keys = rows_of<uint8_t>(kRowsMax, window_kind().bytes(kKeyWidth));
  chain.sink = placed(random.f32(kHeads));
  chain.attention_rows = attention_rows(random, chain.keys);

  for (const int64_t rows : {1, 2, 4, 8, 9, 33, 64, 65, 200, 257, 600}) {
    SCOPED_TRACE(std::to_string(rows) + " rows");
    const Chain c = chain.first(rows);
    // The copies have nothing to do with the product behind them.
    const Rows<const Bf16> u(c.o.data, rows, 8192, c.o.stride);
    std::vector<RowCopy> copies;
    for (int64_t row = 0; row < std::min<int64_t>(rows, 64); ++row) {
      copies.push_back({c.kv.row(row), c.ring.row(row), kKeyWidth * int64_t{sizeof(Bf16)}});
    }
    const Product last = quantised(c.wo_b, c.out);
    const auto results = [&] {
      std::vector<uint8_t> bytes = bytes_of(read(c.o));
      append_bytes(bytes, read(c.index_query).data(), rows * 4096);
      append_bytes(bytes, read(c.keys).data(), rows * c.keys.cols);
      append_bytes(bytes, read(c.out).data(), rows * kHidden);
      append_bytes(bytes, read(c.ring.slice(0, std::ssize(copies))).data(),
                   std::ssize(copies) * kKeyWidth);
      return bytes;
    };
    const auto forget = [&] {
      const std::vector<Bf16> ones(static_cast<size_t>(rows * kQueries), to_bf16(1.0F));
      for (const Rows<Bf16>& y : {c.q, c.o, c.index_query, c.lambda, c.kv, c.out, c.ring}) {
        ops_->memory().write(y.data, ones.data(), rows * y.cols * int64_t{sizeof(Bf16)});
      }
      ops_->memory().write(c.keys.data, ones.data(), rows * c.keys.cols);
    };
    const auto next = [&] {
      ASSERT_TRUE(ops_->finish());
      ops_->begin_step();
    };
    forget();
    ops_->begin_step();
    apart(*ops_, c, next);
    ops_->copy(copies);
    next();
    ops_->linear(u, {&last, 1});
    next();
    ASSERT_TRUE(ops_->finish());
    const std::vector<uint8_t> expected = results();
    // Steps take turns in two sets of places: the last two are graphs of the first two.
    for (int run = 0; run < 4; ++run) {
      forget();
      ops_->begin_step();
      together(*ops_, c);
      ops_->copy(copies);
      ops_->linear(u, {&last, 1});
      ASSERT_TRUE(ops_->finish());
      EXPECT_TRUE(results() == expected) << "run " << run;
    }
  }
}

}  // namespace
}  // namespace galley::kernels
