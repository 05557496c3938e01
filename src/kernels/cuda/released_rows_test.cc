// Rows of products, attention and indexer at the released widths, alone and in company: the same
// bits whatever rows share the call, and choices that are the best by their own scores.
//
// How many rows there are decides how the kernels share out their work, which
// released_shape_test does not vary. Skipped without a usable device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/mirrored_ops.h"
#include "kernels/ops_test_records.h"
#include "kernels/plain/quantise.h"

namespace galley::kernels {
namespace {

// Records of one kind on pages in a shuffled order, as a cache lays them: every 8th starts at a
// multiple of 16 bytes.
struct AlignedPages {
  AlignedPages(Random& random, const RecordKind& kind, int64_t width, int64_t count)
      : record_bytes(kind.bytes(width)) {
    const int64_t pages = (count + kPerPage - 1) / kPerPage;
    bytes.resize(static_cast<size_t>(pages * kPerPage * record_bytes), 0xFF);
    for (int64_t p = 0; p < pages; ++p) table.push_back(static_cast<int32_t>(p));
    for (int64_t p = pages - 1; p > 0; --p) {
      std::swap(table[static_cast<size_t>(p)], table[static_cast<size_t>(random.below(p + 1))]);
    }
    for (int64_t j = 0; j < count; ++j) {
      uint8_t* record = view().record(j);
      if (j % 11 == 10) {  // some are equal: ties
        std::copy_n(view().record(j - 7), record_bytes, record);
      } else {
        kind.write(random.bf16(width).data(), width, record);
      }
    }
  }
  PagedRecords view() {
    return {bytes.data(), kPerPage * record_bytes, table.data(), kPerPage,
            static_cast<int32_t>(record_bytes)};
  }

  static constexpr int32_t kPerPage = 64;
  int64_t record_bytes;
  std::vector<uint8_t> bytes;
  std::vector<int32_t> table;
};

class CudaReleasedRows : public testing::Test {
 protected:
  void SetUp() override {
    auto made = cuda::make_cuda_ops(0);
    if (!made) GTEST_SKIP() << made.error().message;
    device_ = *std::move(made);
    ops_ = make_mirrored_ops(*device_);
  }

  std::unique_ptr<Ops> device_;
  std::unique_ptr<Ops> ops_;
};

// Folded projections take other kernels from 3, 9, 33 or 65 rows on, and others again for many
// strips; where sums have eight parts, from as many rows on as clusters have no room for. Many rows
// take tiles of 64 or 128 rows by 32 to 256 outputs, by what fills the chip; the last tiles of a
// matrix overlap.
TEST_F(CudaReleasedRows, ProjectionsDoNotSeeOtherRows) {
  Random random(80);
  constexpr int64_t kRows = 1700;
  for (const auto& [out, in] : {std::pair<int64_t, int64_t>{512, 5120},
                                {1280, 5120},
                                {5120, 2304},
                                {4608, 1280},
                                {16384, 1280}}) {
    const std::vector<Bf16> x = random.bf16(kRows * in);
    const StoredWeight weight(random, WeightFormat::kFp8Tile32, out, in);
    const auto run = [&, out = out](int64_t begin, int64_t count) {
      std::vector<Bf16> y(static_cast<size_t>(count * out));
      const Product product{weight.view(), true, as_rows(y, count), {}};
      ops_->linear(as_rows(x, kRows).slice(begin, count), {&product, 1});
      return bytes_of(y);
    };
    const std::vector<uint8_t> all = run(0, kRows);
    const int64_t row_bytes = std::ssize(all) / kRows;
    for (const int64_t count : {1,   2,   3,   8,   9,   32,  33,  64,  65,  100,  128, 129,
                                192, 256, 257, 384, 385, 512, 600, 768, 900, 1100, 1300}) {
      const int64_t begin = (kRows - count) / 3;
      const std::vector<uint8_t> part = run(begin, count);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + begin * row_bytes))
          << out << " outputs, " << count << " rows from " << begin;
    }
  }
}

// Matrices of one input share a launch: the outputs of each are what it has alone.
TEST_F(CudaReleasedRows, ProjectionsDoNotSeeOtherMatrices) {
  Random random(81);
  constexpr int64_t kRows = 1100;
  for (const auto& [in, outs] :
       {std::pair<int64_t, std::vector<int64_t>>{5120, {1280, 512}}, {1280, {4096, 8192, 4608}}}) {
    const std::vector<Bf16> x = random.bf16(kRows * in);
    std::vector<StoredWeight> weights;
    for (const int64_t out : outs) weights.emplace_back(random, WeightFormat::kFp8Tile32, out, in);
    for (const int64_t count : {3, 64, 128, 300, 700, 1100}) {
      const Rows<const Bf16> rows = as_rows(x, kRows).slice(0, count);
      std::vector<std::vector<Bf16>> together;
      for (const int64_t out : outs) together.emplace_back(static_cast<size_t>(count * out));
      std::vector<Product> products;
      for (size_t i = 0; i < outs.size(); ++i) {
        products.push_back({weights[i].view(), true, as_rows(together[i], count), {}});
      }
      ops_->linear(rows, products);
      for (size_t i = 0; i < outs.size(); ++i) {
        std::vector<Bf16> alone(together[i].size());
        const Product product{weights[i].view(), true, as_rows(alone, count), {}};
        ops_->linear(rows, {&product, 1});
        EXPECT_EQ(bytes_of(alone), bytes_of(together[i]))
            << outs[i] << " x " << in << ", " << count << " rows";
      }
    }
  }
}

// Experts take other forms of plan, quantisers and products as choices become more: 8, 800 and
// 4,096 of them, and 6 for which sums are unrolled. From 102 rows on the experts' products have
// blocks of up to 128 rows, from 150 on of up to 256, in seven and ten sizes, of which rows that
// are chosen unevenly take most; of 1,700 rows experts with more than 128 take row tiles. 1,700
// rows of the shared expert are its widest tiles.
TEST_F(CudaReleasedRows, ExpertsDoNotSeeOtherRows) {
  Random random(83);
  constexpr int64_t kExperts = 8;
  constexpr int64_t kRows = 1700;
  constexpr int64_t kHidden = 5120;
  constexpr int64_t kInner = 2304;
  std::vector<StoredWeight> stored;
  for (int64_t e = 0; e <= kExperts; ++e) {
    const auto format = e < kExperts ? WeightFormat::kFp4Row32 : WeightFormat::kFp8Tile32;
    stored.emplace_back(random, format, kInner, kHidden);
    stored.emplace_back(random, format, kInner, kHidden);
    stored.emplace_back(random, format, kHidden, kInner);
  }
  std::vector<ExpertWeights> experts;
  for (size_t at = 0; at < stored.size(); at += 3) {
    experts.push_back({stored[at].view(), stored[at + 1].view(), stored[at + 2].view()});
  }
  MoeWeights weights;
  weights.shared = experts.back();
  experts.pop_back();
  weights.experts = experts;
  const std::vector<Bf16> x = random.bf16(kRows * kHidden);
  for (const int64_t top_k : {6, 4}) {
    std::vector<int32_t> chosen;
    for (int64_t row = 0; row < kRows; ++row) {
      // Unevenly: all but a few of the last ones, rotated by a random amount now and then; of four
      // choices some experts have few rows beside others with many.
      const int64_t often = top_k == 6 ? 3 : 9;
      const auto shift =
          static_cast<int32_t>(random.below(often) == 0 ? random.below(kExperts) : 0);
      std::vector<int32_t> ids;
      for (int32_t k = 0; k < top_k; ++k) ids.push_back((k + shift) % int32_t{kExperts});
      std::sort(ids.begin(), ids.end());
      chosen.insert(chosen.end(), ids.begin(), ids.end());
    }
    std::vector<float> factors = random.f32(kRows * top_k);
    for (float& factor : factors) factor = std::fabs(factor) * 0.2F;
    const auto run = [&](int64_t begin, int64_t count) {
      std::vector<Bf16> y(static_cast<size_t>(count * kHidden));
      ops_->moe(as_rows(x, kRows).slice(begin, count), weights,
                as_rows(std::as_const(chosen), kRows).slice(begin, count),
                as_rows(std::as_const(factors), kRows).slice(begin, count), as_rows(y, count));
      return bytes_of(y);
    };
    const std::vector<uint8_t> all = run(0, kRows);
    const int64_t row_bytes = std::ssize(all) / kRows;
    for (const int64_t count :
         {1, 2, 3, 4, 5, 8, 9, 103, 112, 124, 130, 140, 190, 216, 230, 280, 330, 420, 700}) {
      const int64_t begin = (kRows - count) / 3;
      const std::vector<uint8_t> part = run(begin, count);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + begin * row_bytes))
          << top_k << " choices, " << count << " rows from " << begin;
    }
  }
}

// The router's product is mma.sync's with splits on different blocks up to 128 rows, wgmma's with
// splits on different clusters up to 512, and with whole sums and 32, 64 or 128 tokens above that,
// 2,112 and 4,224; the choice is another kernel from 1,025 rows on.
TEST_F(CudaReleasedRows, RouterDoesNotSeeOtherRows) {
  Random random(85);
  constexpr int64_t kRows = 4300;
  constexpr int64_t kIn = 5120;
  constexpr int32_t kTopK = 6;
  const std::vector<Bf16> x = random.bf16(kRows * kIn);
  for (const int64_t experts : {384, 200}) {
    const StoredWeight gate(random, WeightFormat::kBf16, experts, kIn);
    const std::vector<float> bias = random.f32(experts, 0.1);
    const auto run = [&](int64_t begin, int64_t count) {
      std::vector<int32_t> chosen(static_cast<size_t>(count * kTopK));
      std::vector<float> weights(static_cast<size_t>(count * kTopK));
      std::vector<float> margin(static_cast<size_t>(count));
      const std::vector<const float*> biases(static_cast<size_t>(count), bias.data());
      ops_->route(as_rows(x, kRows).slice(begin, count), gate.view(), biases,
                  {.top_k = kTopK, .scale = 1.5F, .gate_temperature = 1.0F}, as_rows(chosen, count),
                  as_rows(weights, count), margin.data());
      std::vector<std::vector<uint8_t>> rows(static_cast<size_t>(count));
      for (int64_t row = 0; row < count; ++row) {
        std::vector<uint8_t>& bytes = rows[static_cast<size_t>(row)];
        append_bytes(bytes, chosen.data() + row * kTopK, kTopK);
        append_bytes(bytes, weights.data() + row * kTopK, kTopK);
        append_bytes(bytes, margin.data() + row, 1);
      }
      return rows;
    };
    const auto all = run(0, kRows);
    for (const int64_t count :
         {1, 9, 64, 65, 128, 129, 200, 257, 384, 512, 513, 1024, 1025, 2112, 2113}) {
      const int64_t begin = (kRows - count) / 3;
      const auto part = run(begin, count);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + begin))
          << experts << " experts, " << count << " rows from " << begin;
    }
  }
}

// A group is a block's up to 512 of them, a warp's above.
TEST_F(CudaReleasedRows, CompressorDoesNotSeeOtherGroups) {
  Random random(86);
  constexpr int64_t kGroups = 1300;
  constexpr int64_t kRatio = 2;
  constexpr int64_t kWidth = 512;
  const std::vector<float> kv = random.f32(kGroups * kRatio * kWidth);
  const std::vector<float> gate = random.f32(kGroups * kRatio * kWidth, 2.0);
  const std::vector<Bf16> norm = random.bf16(kWidth);
  const auto run = [&](int64_t begin, int64_t count) {
    std::vector<Bf16> latent(static_cast<size_t>(count * kWidth));
    ops_->compress(as_rows(kv, kGroups * kRatio).slice(begin * kRatio, count * kRatio),
                   as_rows(gate, kGroups * kRatio).slice(begin * kRatio, count * kRatio), kRatio,
                   norm.data(), 1e-6F, as_rows(latent, count));
    return bytes_of(latent);
  };
  const std::vector<uint8_t> all = run(0, kGroups);
  for (const int64_t count : {1, 3, 64, 512, 513}) {
    const int64_t begin = (kGroups - count) / 3;
    const std::vector<uint8_t> part = run(begin, count);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + begin * kWidth * 2))
        << count << " groups from " << begin;
  }
}

// Compressors and the indexer's head weights, together as a layer asks for them: other kernels from
// 9 and 129 rows on. Each sum is also close to the exact one.
TEST_F(CudaReleasedRows, NarrowExactProductsDoNotSeeOtherRows) {
  Random random(84);
  constexpr int64_t kRows = 300;
  constexpr int64_t kIn = 5120;
  const std::vector<Bf16> x = random.bf16(kRows * kIn);
  const StoredWeight wide[2] = {{random, WeightFormat::kBf16, 512, kIn},
                                {random, WeightFormat::kBf16, 512, kIn}};
  const StoredWeight heads(random, WeightFormat::kBf16, 32, kIn);
  struct Results {
    std::vector<float> a, b;
    std::vector<Bf16> c;
  };
  const auto run = [&](int64_t begin, int64_t count) {
    Results y{std::vector<float>(static_cast<size_t>(count * 512)),
              std::vector<float>(static_cast<size_t>(count * 512)),
              std::vector<Bf16>(static_cast<size_t>(count * 32))};
    const Product products[3] = {{wide[0].view(), false, {}, as_rows(y.a, count)},
                                 {wide[1].view(), false, {}, as_rows(y.b, count)},
                                 {heads.view(), false, as_rows(y.c, count), {}}};
    ops_->linear(as_rows(x, kRows).slice(begin, count), products);
    return y;
  };
  const Results all = run(0, kRows);
  for (int64_t row = 0; row < kRows; row += 37) {
    for (int64_t out = 0; out < 512; out += 73) {
      double exact = 0.0;
      double magnitudes = 0.0;
      for (int64_t i = 0; i < kIn; ++i) {
        const double term =
            static_cast<double>(to_f32(x[static_cast<size_t>(row * kIn + i)])) * wide[1].at(out, i);
        exact += term;
        magnitudes += std::fabs(term);
      }
      EXPECT_NEAR(static_cast<double>(all.b[static_cast<size_t>(row * 512 + out)]), exact,
                  0x1p-16 * magnitudes);
    }
  }
  for (const int64_t count : {1, 8, 9, 32, 33, 64, 256, 257}) {
    const int64_t begin = (kRows - count) / 3;
    const Results part = run(begin, count);
    EXPECT_TRUE(std::equal(part.a.begin(), part.a.end(), all.a.begin() + begin * 512)) << count;
    EXPECT_TRUE(std::equal(part.b.begin(), part.b.end(), all.b.begin() + begin * 512)) << count;
    EXPECT_EQ(std::memcmp(part.c.data(), all.c.data() + begin * 32, part.c.size() * sizeof(Bf16)),
              0)
        << count;
  }
}

// wo_a and head: other tiles from 9, 33, 49, 65, 81, 97, 129, 161, 193, 257, 321 rows on, and by
// what fills the chip above.
TEST_F(CudaReleasedRows, WideProductsDoNotSeeOtherRows) {
  Random random(86);
  constexpr int64_t kRows = 530;
  const auto check = [&](const char* what, int64_t out, const auto& run) {
    const auto all = run(0, kRows);
    for (const int64_t count : {1,   8,   9,   32,  33,  48,  49,  64,  65,  80,  81,  96,  97,
                                128, 129, 160, 161, 192, 193, 256, 257, 320, 321, 384, 385, 512}) {
      const int64_t begin = (kRows - count) / 3;
      const auto part = run(begin, count);
      EXPECT_EQ(std::memcmp(part.data(), all.data() + begin * out, part.size() * sizeof(part[0])),
                0)
          << what << ", " << count << " rows from " << begin;
    }
  };
  {
    constexpr int64_t kIn = 4096;
    constexpr int64_t kOut = 8 * 1024;
    const StoredWeight weight(random, WeightFormat::kFp8Tile32, kOut, kIn);
    const std::vector<Bf16> x = random.bf16(kRows * 8 * kIn);
    check("wo_a", kOut, [&](int64_t begin, int64_t count) {
      std::vector<Bf16> y(static_cast<size_t>(count * kOut));
      ops_->grouped_linear(as_rows(x, kRows).slice(begin, count), weight.view(), 8,
                           as_rows(y, count));
      return y;
    });
  }
  {
    constexpr int64_t kIn = 5120;
    constexpr int64_t kOut = 8192 + 64;  // the last tile is not whole
    const StoredWeight weight(random, WeightFormat::kBf16, kOut, kIn);
    const std::vector<Bf16> x = random.bf16(kRows * kIn);
    check("head", kOut, [&](int64_t begin, int64_t count) {
      std::vector<float> y(static_cast<size_t>(count * kOut));
      const Product product{weight.view(), false, {}, as_rows(y, count)};
      ops_->linear(as_rows(x, kRows).slice(begin, count), {&product, 1});
      return y;
    });
  }
}

TEST_F(CudaReleasedRows, AttentionDoesNotSeeOtherRows) {
  Random random(81);
  constexpr int64_t kRows = 71;  // more than the multiprocessors can take two blocks each of
  constexpr int64_t kWidth = 512;
  constexpr int64_t kFirst = 300;
  const AttentionShape shape{.heads = 64, .head_dim = 512, .window = 128, .selected_max = 512};
  const int64_t record = window_record_bytes(kWidth);
  std::vector<uint8_t> window(static_cast<size_t>((kFirst + kRows) * record));
  for (int64_t t = 0; t < kFirst + kRows; ++t) {
    plain::write_window_record(random.bf16(kWidth).data(), kWidth, window.data() + t * record);
  }
  AlignedPages pages(random, global_kind(), kWidth, 900);
  // So large that later keys often move what the softmax subtracts.
  const std::vector<Bf16> q = random.bf16(kRows * 64 * kWidth, 8.0);
  const std::vector<float> sink = random.f32(64);
  const StoredAngles angles(kFirst, kRows, 64);
  std::vector<std::vector<int32_t>> selected;
  std::vector<int32_t> counts;
  for (int64_t r = 0; r < kRows; ++r) {
    std::vector<int32_t>& list = selected.emplace_back();
    const int64_t wanted = r % 5 == 0 ? 512 : random.below(513);
    for (int32_t j = 0; j < 900 && std::ssize(list) < wanted; ++j) {
      if (random.below(4) != 0) list.push_back(j);
    }
    counts.push_back(static_cast<int32_t>(list.size()));
    list.push_back(0);  // never empty
  }
  const auto run = [&](int64_t begin, int64_t count) {
    std::vector<AttentionRow> rows;
    for (int64_t r = begin; r < begin + count; ++r) {
      AttentionRow row;
      row.position = kFirst + r;
      row.window_begin = row.position - (r % 7 == 3 ? r : 127);
      row.ring = window.data();
      row.ring_slots = kFirst;
      row.chunk = window.data() + kFirst * record;
      row.chunk_begin = kFirst;
      row.global = pages.view();
      row.selected = selected[static_cast<size_t>(r)].data();
      row.selected_count = &counts[static_cast<size_t>(r)];
      rows.push_back(row);
    }
    std::vector<Bf16> o(static_cast<size_t>(count * 64 * kWidth));
    ops_->attention(as_rows(q, kRows).slice(begin, count), sink.data(), shape,
                    angles.view(begin, count), rows, as_rows(o, count));
    return bytes_of(o);
  };
  const std::vector<uint8_t> all = run(0, kRows);
  EXPECT_TRUE(run(0, kRows) == all) << "a second run differs";
  const int64_t row_bytes = std::ssize(all) / kRows;
  for (const int64_t count : {1, 9, 12, 13, 15, 16, 40, 66}) {
    for (int64_t begin = 0; begin + count <= kRows; begin += std::max<int64_t>(count, 13)) {
      const std::vector<uint8_t> part = run(begin, count);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + begin * row_bytes))
          << count << " rows from " << begin;
    }
  }
}

// Queries that turn on their way into attention: the bits of rope() and then attention().
TEST_F(CudaReleasedRows, AttentionTurnsQueriesAsRopeDoes) {
  Random random(83);
  constexpr int64_t kRows = 150;  // more than one for each multiprocessor
  constexpr int64_t kWidth = 512;
  constexpr int64_t kFirst = 700;
  const AttentionShape shape{.heads = 64, .head_dim = 512, .window = 128, .selected_max = 512};
  const int64_t record = window_record_bytes(kWidth);
  std::vector<uint8_t> window(static_cast<size_t>(kRows * record));
  for (int64_t t = 0; t < kRows; ++t) {
    plain::write_window_record(random.bf16(kWidth).data(), kWidth, window.data() + t * record);
  }
  const std::vector<Bf16> q = random.bf16(kRows * 64 * kWidth);
  const std::vector<float> sink = random.f32(64);
  const StoredAngles angles(kFirst, kRows, 64);
  Memory& memory = device_->memory();
  const auto on_device = [&](const void* data, int64_t bytes) {
    MemoryBlock block = MemoryBlock::create(memory, bytes, "a test").value();
    memory.write(block.data(), data, bytes);
    return block;
  };
  const MemoryBlock window_block = on_device(window.data(), std::ssize(window));
  const MemoryBlock sink_block = on_device(sink.data(), 64 * 4);
  const MemoryBlock q_block = MemoryBlock::create(memory, std::ssize(q) * 2, "a test").value();
  for (const int64_t count : {1, 16, 17, 66, 150}) {
    std::vector<AttentionRow> rows;
    for (int64_t r = 0; r < count; ++r) {
      AttentionRow row;
      row.position = kFirst + r;
      row.window_begin = std::max(kFirst, row.position - 127);
      row.chunk = reinterpret_cast<const uint8_t*>(window_block.data());
      row.chunk_begin = kFirst;
      rows.push_back(row);
    }
    const auto bytes = static_cast<size_t>(count * 64 * kWidth * 2);
    const auto run = [&](bool apart) {
      memory.write(q_block.data(), q.data(), static_cast<int64_t>(bytes));
      const Rows<Bf16> x(reinterpret_cast<Bf16*>(q_block.data()), count, 64 * kWidth);
      const auto staged_angles = [&] {
        device_->begin_step();
        RopeAngles staged = angles.view(0, count);
        const int64_t angle_bytes = count * staged.cos.stride * int64_t{sizeof(float)};
        staged.cos.data = static_cast<const float*>(device_->stage(staged.cos.data, angle_bytes));
        staged.sin.data = static_cast<const float*>(device_->stage(staged.sin.data, angle_bytes));
        return staged;
      };
      RopeAngles turn = staged_angles();
      device_->rope(x, 64, turn, false);
      if (apart) {
        EXPECT_TRUE(device_->finish());
        turn = staged_angles();
      }
      device_->attention(x, reinterpret_cast<const float*>(sink_block.data()), shape, turn, rows,
                         x);
      EXPECT_TRUE(device_->finish());
      std::vector<uint8_t> o(bytes);
      memory.read(o.data(), q_block.data(), static_cast<int64_t>(bytes));
      return o;
    };
    EXPECT_TRUE(run(false) == run(true)) << count << " rows";
  }
}

TEST_F(CudaReleasedRows, IndexerChoosesTheBestByItsScores) {
  Random random(82);
  constexpr int64_t kEntries = 9000;
  constexpr int64_t kWidth = 128;
  const IndexShape shape{
      .heads = 32, .head_dim = 128, .top_k = 512, .pool_blocks = 150, .pool_block_size = 8};
  AlignedPages keys(random, index_kind(), kWidth, kEntries);
  const std::vector<int64_t> visible = {9000, 0, 1, 512, 513, 8999, 1200, 1201, 4097, 9000};
  const int64_t rows = std::ssize(visible);
  std::vector<Bf16> queries = random.bf16(rows * shape.heads * kWidth);
  std::vector<uint8_t> record(static_cast<size_t>(index_record_bytes(kWidth)));
  std::vector<float> simulated(static_cast<size_t>(kWidth));
  for (int64_t at = 0; at < rows * shape.heads; ++at) {  // as index_queries leaves them
    Bf16* query = queries.data() + at * kWidth;
    plain::write_index_record(query, kWidth, record.data());
    plain::read_index_record(record.data(), kWidth, simulated.data());
    for (int64_t i = 0; i < kWidth; ++i) {
      query[i] = to_bf16(at / shape.heads == 9 ? 0.0F : simulated[static_cast<size_t>(i)]);
    }
  }
  const std::vector<Bf16> head_weights = random.bf16(rows * shape.heads, 3.0);
  struct Choice {
    std::vector<int32_t> selected;
    std::vector<int32_t> pool;
    std::vector<float> scores;
    bool operator==(const Choice&) const = default;
  };
  const auto run = [&](int64_t begin, int64_t count) {
    std::vector<Choice> choices(static_cast<size_t>(count));
    std::vector<int32_t> counts(static_cast<size_t>(2 * count), -1);
    std::vector<IndexRow> index_rows;
    for (int64_t r = 0; r < count; ++r) {
      Choice& choice = choices[static_cast<size_t>(r)];
      choice.selected.resize(static_cast<size_t>(shape.top_k));
      choice.pool.resize(static_cast<size_t>(shape.pool_blocks));
      IndexRow row;
      row.visible = visible[static_cast<size_t>(begin + r)];
      choice.scores.resize(static_cast<size_t>(row.visible));
      row.keys = keys.view();
      row.selected = choice.selected.data();
      row.selected_count = &counts[static_cast<size_t>(2 * r)];
      row.built_pool = choice.pool.data();
      row.built_pool_count = &counts[static_cast<size_t>(2 * r + 1)];
      row.scores = choice.scores.data();
      index_rows.push_back(row);
    }
    ops_->index_select(as_rows(queries, rows).slice(begin, count),
                       as_rows(head_weights, rows).slice(begin, count), shape, index_rows);
    for (int64_t r = 0; r < count; ++r) {
      choices[static_cast<size_t>(r)].selected.resize(
          static_cast<size_t>(std::max(0, counts[static_cast<size_t>(2 * r)])));
      choices[static_cast<size_t>(r)].pool.resize(
          static_cast<size_t>(std::max(0, counts[static_cast<size_t>(2 * r + 1)])));
    }
    return choices;
  };
  const std::vector<Choice> all = run(0, rows);
  for (int64_t r = 0; r < rows; ++r) {
    const Choice& choice = all[static_cast<size_t>(r)];
    std::vector<int32_t> ids(choice.scores.size());
    for (size_t j = 0; j < ids.size(); ++j) ids[j] = static_cast<int32_t>(j);
    std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
      return choice.scores[static_cast<size_t>(a)] > choice.scores[static_cast<size_t>(b)];
    });
    ids.resize(std::min<size_t>(ids.size(), static_cast<size_t>(shape.top_k)));
    std::sort(ids.begin(), ids.end());
    EXPECT_EQ(choice.selected, ids) << "row " << r;
  }
  for (const int64_t count : {1, 3, 7}) {
    for (int64_t begin = 0; begin + count <= rows; begin += count) {
      const std::vector<Choice> part = run(begin, count);
      for (int64_t r = 0; r < count; ++r) {
        EXPECT_TRUE(part[static_cast<size_t>(r)] == all[static_cast<size_t>(begin + r)])
            << count << " rows from " << begin << ", row " << r;
      }
    }
  }
}

}  // namespace
}  // namespace galley::kernels
