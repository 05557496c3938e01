// The CUDA backend against plain/ at the released widths, where the fast kernels are
// the ones that run (the goldens are micro shapes and never reach them).
//
// Few rows of each operation of a layer; results may differ by the order of sums and
// what one rounding to bf16 makes of it, so whole rows are compared by relative L2.
// Skipped without a usable device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/mirrored_ops.h"
#include "kernels/ops_test_records.h"
#include "kernels/plain/plain_ops.h"
#include "kernels/plain/quantise.h"

namespace galley::kernels {
namespace {

constexpr int64_t kHidden = 5120;
constexpr int64_t kInner = 2304;

class CudaReleasedShape : public testing::Test {
 protected:
  void SetUp() override {
    auto made = cuda::make_cuda_ops(0);
    if (!made) GTEST_SKIP() << made.error().message;
    device_ = *std::move(made);
    ops_ = make_mirrored_ops(*device_);
    plain_ = make_plain_ops(pool_);
  }

  // Both backends' results of `rows` rows of bf16, row by row within `limit`.
  template <class Compute>
  void expect_same(const char* what, int64_t rows, int64_t cols, double limit,
                   const Compute& compute) {
    std::vector<Bf16> ours(static_cast<size_t>(rows * cols));
    std::vector<Bf16> theirs(ours.size());
    compute(*ops_, as_rows(ours, rows));
    compute(*plain_, as_rows(theirs, rows));
    double worst = 0;
    for (int64_t r = 0; r < rows; ++r) {
      const double error =
          relative_l2(ours.data() + r * cols, widened(theirs.data() + r * cols, cols));
      EXPECT_LE(error, limit) << what << " row " << r;
      worst = std::max(worst, error);
    }
    std::printf("%-24s worst relative L2 %.2e\n", what, worst);
  }

  void product(const char* what, WeightFormat format, int64_t out, int64_t in, bool quantise) {
    Random random(static_cast<uint64_t>(out + in));
    const StoredWeight weight(random, format, out, in);
    const std::vector<Bf16> x = random.bf16(3 * in);
    expect_same(what, 3, out, 0.003, [&](Ops& ops, Rows<Bf16> y) {
      const Product one{weight.view(), quantise, y, {}};
      ops.linear(as_rows(x, 3), {&one, 1});
    });
  }

  ThreadPool pool_{usable_cpu_count()};
  std::unique_ptr<Ops> device_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Ops> plain_;
};

TEST_F(CudaReleasedShape, Projections) {
  product("wq_a", WeightFormat::kFp8Tile32, 1280, kHidden, true);
  product("wq_b, an eighth", WeightFormat::kFp8Tile32, 4096, 1280, true);
  product("wkv", WeightFormat::kFp8Tile32, 512, kHidden, true);
  product("wo_b, an eighth", WeightFormat::kFp8Tile32, 640, 8192, true);
  product("indexer.wq_b", WeightFormat::kFp8Tile32, 4096, 1280, true);
  product("indexer.weights_proj", WeightFormat::kBf16, 32, kHidden, false);
  product("compressor.wkv", WeightFormat::kBf16, 512, kHidden, false);
}

// All of its groups, since a part of them is multiplied by other kernels.
TEST_F(CudaReleasedShape, OutputProjectionByGroups) {
  Random random(71);
  const StoredWeight weight(random, WeightFormat::kFp8Tile32, 8 * 1024, 4096);
  const std::vector<Bf16> x = random.bf16(3 * 8 * 4096);
  expect_same("wo_a", 3, 8 * 1024, 0.003, [&](Ops& ops, Rows<Bf16> y) {
    ops.grouped_linear(as_rows(x, 3), weight.view(), 8, y);
  });
}

// Codes and scales that no sane checkpoint has mean what the specification says. A block beyond
// bf16's range is infinite there and here.
TEST_F(CudaReleasedShape, OutputProjectionOfOddWeights) {
  Random random(77);
  constexpr int64_t kIn = 4096;
  constexpr int64_t kOut = 8 * 1024;
  const StoredWeight stored(random, WeightFormat::kFp8Tile32, kOut, kIn);
  WeightView odd = stored.view();
  std::vector<uint8_t> codes(static_cast<const uint8_t*>(odd.data),
                             static_cast<const uint8_t*>(odd.data) + odd.data_bytes());
  std::vector<uint8_t> scale(odd.scale, odd.scale + odd.scale_bytes());
  codes[5 * kIn + 77] = 0x7F;
  codes[4011 * kIn + 4095] = 0xFF;
  scale[20 * (kIn / 32) + 127] = 140;  // 2^13
  scale[200 * (kIn / 32)] = 175;       // 2^48
  scale[255 * (kIn / 32) + 64] = 255;  // NaN
  odd.data = codes.data();
  odd.scale = scale.data();
  for (const int64_t rows : {3, 40}) {
    const std::vector<Bf16> x = random.bf16(rows * 8 * kIn);
    std::vector<Bf16> ours(static_cast<size_t>(rows * kOut));
    std::vector<Bf16> theirs(ours.size());
    ops_->grouped_linear(as_rows(x, rows), odd, 8, as_rows(ours, rows));
    plain_->grouped_linear(as_rows(x, rows), odd, 8, as_rows(theirs, rows));
    int64_t nans = 0;
    for (size_t i = 0; i < ours.size(); ++i) {
      const float a = to_f32(ours[i]);
      const float b = to_f32(theirs[i]);
      ASSERT_EQ(std::isnan(a), std::isnan(b)) << "element " << i;
      nans += std::isnan(b) ? 1 : 0;
      // Sums cancel: the size of an output's terms is what rounding is relative to.
      const size_t tile = i % kOut / 32;
      const double size = tile == 20 ? 0x1p22 : (tile == 200 ? 0x1p57 : 8.0);
      if (std::isnan(b)) continue;
      ASSERT_NEAR(a, b, 0.01 * std::fabs(b) + 1e-5 * size) << "element " << i;
    }
    EXPECT_EQ(nans, rows * (2 + 32));
  }
}

TEST_F(CudaReleasedShape, Head) {
  Random random(78);
  constexpr int64_t kTokens = 8192 + 64;  // a part of the vocabulary, the last tile not whole
  const StoredWeight weight(random, WeightFormat::kBf16, kTokens, kHidden);
  const std::vector<Bf16> x = random.bf16(3 * kHidden);
  std::vector<float> ours(3 * kTokens);
  std::vector<float> theirs(ours.size());
  const auto run = [&](Ops& ops, std::vector<float>& y) {
    const Product one{weight.view(), false, {}, as_rows(y, 3)};
    ops.linear(as_rows(x, 3), {&one, 1});
  };
  run(*ops_, ours);
  run(*plain_, theirs);
  double difference = 0;
  double size = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    difference += std::pow(static_cast<double>(ours[i]) - static_cast<double>(theirs[i]), 2);
    size += std::pow(static_cast<double>(theirs[i]), 2);
  }
  const double error = std::sqrt(difference / size);
  EXPECT_LE(error, 2e-5);  // f32 sums of 5,120 that lose up to their last three bits
  std::printf("%-24s relative L2 %.2e\n", "head", error);
}

TEST_F(CudaReleasedShape, Experts) {
  Random random(72);
  constexpr int32_t kExperts = 12;
  constexpr int64_t kRows = 3;
  std::vector<StoredWeight> stored;
  for (int32_t e = 0; e < kExperts; ++e) {
    stored.emplace_back(random, WeightFormat::kFp4Row32, kInner, kHidden);
    stored.emplace_back(random, WeightFormat::kFp4Row32, kInner, kHidden);
    stored.emplace_back(random, WeightFormat::kFp4Row32, kHidden, kInner);
  }
  for (const auto& [out, in] : {std::pair{kInner, kHidden}, {kInner, kHidden}, {kHidden, kInner}}) {
    stored.emplace_back(random, WeightFormat::kFp8Tile32, out, in);
  }
  std::vector<ExpertWeights> experts;
  for (size_t e = 0; e < kExperts; ++e) {
    experts.push_back({stored[3 * e].view(), stored[3 * e + 1].view(), stored[3 * e + 2].view()});
  }
  MoeWeights weights;
  weights.experts = experts;
  weights.shared = {stored[3 * kExperts].view(), stored[3 * kExperts + 1].view(),
                    stored[3 * kExperts + 2].view()};
  const std::vector<Bf16> x = random.bf16(kRows * kHidden);
  const std::vector<int32_t> chosen = {0, 2, 3, 7, 8, 11, 1, 2, 4, 5, 9, 10, 0, 1, 3, 6, 8, 9};
  std::vector<float> factors = random.f32(kRows * 6);
  for (float& factor : factors) factor = std::fabs(factor) * 0.2F;
  // fp8 sums keep about 14 bits: one in a hundred codes of w2's input then rounds to its
  // neighbour, which is 1.0e-2 of the result (folded_error_test.cc emulates it). The general path
  // has 3e-4.
  expect_same("experts", kRows, kHidden, 0.02, [&](Ops& ops, Rows<Bf16> y) {
    ops.moe(as_rows(x, kRows), weights, as_rows(chosen, kRows), as_rows(factors, kRows), y);
  });
}

TEST_F(CudaReleasedShape, Attention) {
  Random random(73);
  constexpr int64_t kRows = 4;
  constexpr int64_t kWidth = 512;
  const AttentionShape shape{.heads = 64, .head_dim = 512, .window = 128, .selected_max = 512};
  const int64_t record = window_record_bytes(kWidth);
  std::vector<uint8_t> ring(static_cast<size_t>(136 * record));
  std::vector<uint8_t> chunk(static_cast<size_t>(kRows * record));
  for (int64_t t = 0; t < 136; ++t) {
    plain::write_window_record(random.bf16(kWidth).data(), kWidth, ring.data() + t * record);
  }
  for (int64_t t = 0; t < kRows; ++t) {
    plain::write_window_record(random.bf16(kWidth).data(), kWidth, chunk.data() + t * record);
  }
  // As a cache lays them: records start at multiples of 16 bytes.
  constexpr int32_t kPageRecords = 64;
  constexpr int64_t kPages = 14;
  const int64_t entry = global_record_bytes(kWidth);
  std::vector<uint8_t> pages(static_cast<size_t>(kPages * kPageRecords * entry));
  for (int64_t j = 0; j < kPages * kPageRecords; ++j) {
    plain::write_global_record(random.bf16(kWidth).data(), kWidth, pages.data() + j * entry);
  }
  const std::vector<int32_t> table = {7, 2, 13, 0, 1, 3, 4, 12, 5, 6, 8, 11, 9, 10};
  const std::vector<Bf16> q = random.bf16(kRows * 64 * kWidth, 0.3);
  const std::vector<float> sink = random.f32(64);
  const StoredAngles angles(5000, kRows, 64);
  const int32_t counts[kRows] = {512, 0, 77, 512};
  std::vector<std::vector<int32_t>> selected;
  std::vector<AttentionRow> rows;
  for (int64_t r = 0; r < kRows; ++r) {
    std::vector<int32_t>& list = selected.emplace_back();
    for (int32_t i = 0; i < counts[r]; ++i) list.push_back(i + (r == 3 ? i / 2 : 0));
    list.push_back(0);  // never empty
  }
  for (int64_t r = 0; r < kRows; ++r) {
    AttentionRow row;
    row.position = 5000 + r;
    row.window_begin = row.position - (r == 2 ? 40 : 127);
    row.ring = ring.data();
    row.ring_slots = 136;
    row.chunk = chunk.data();
    row.chunk_begin = 5000;
    row.global = {pages.data(), kPageRecords * entry, table.data(), kPageRecords,
                  static_cast<int32_t>(entry)};
    row.selected = selected[static_cast<size_t>(r)].data();
    row.selected_count = &counts[r];
    rows.push_back(row);
  }
  expect_same("attention", kRows, 64 * kWidth, 0.01, [&](Ops& ops, Rows<Bf16> o) {
    ops.attention(as_rows(q, kRows), sink.data(), shape, angles.view(0, kRows), rows, o);
  });
}

TEST_F(CudaReleasedShape, HyperConnections) {
  Random random(74);
  constexpr int64_t kRows = 5;
  const std::vector<Bf16> streams = random.bf16(kRows * 4 * kHidden);
  const std::vector<float> fn = random.f32(24 * 4 * kHidden, 0.01);
  const std::vector<float> base = random.f32(24, 0.1);
  const std::vector<float> scale = {0.5F, 0.5F, 0.5F};
  const std::vector<Bf16> norm = random.bf16(kHidden, 0.2);
  const std::vector<float> carried = random.f32(kRows * 4);
  expect_same("hc_enter and hc_leave", kRows, 4 * kHidden, 0.004, [&](Ops& ops, Rows<Bf16> out) {
    std::vector<float> pre(kRows * 4);
    std::vector<float> post(kRows * 4);
    std::vector<float> comb(kRows * 16);
    std::vector<Bf16> x(static_cast<size_t>(kRows * kHidden));
    ops.hc_enter(as_rows(streams, kRows), {fn.data(), base.data(), scale.data()}, {},
                 as_rows(carried, kRows), norm.data(),
                 {as_rows(pre, kRows), as_rows(post, kRows), as_rows(comb, kRows)},
                 as_rows(x, kRows));
    std::copy(streams.begin(), streams.end(), out.data);
    ops.hc_leave(as_rows(std::as_const(x), kRows), as_rows(std::as_const(post), kRows),
                 as_rows(std::as_const(comb), kRows), 4, out);
  });
}

// Rows of a large table in the order a step asks for them, mostly the same ones: the device keeps
// them, and every call gives the bits of the table.
TEST_F(CudaReleasedShape, EngramHotRows) {
  Random random(75);
  constexpr int64_t kTableRows = 50'000;
  constexpr int64_t kWidth = 256;
  constexpr int64_t kColumns = 24;
  std::vector<uint8_t> codes(kTableRows * kWidth);
  std::vector<uint8_t> scale(kTableRows * kWidth / 32);
  for (uint8_t& code : codes) code = static_cast<uint8_t>(random.below(256) & 0xFE);
  for (uint8_t& one : scale) one = static_cast<uint8_t>(120 + random.below(8));
  const EngramTable table{.codes = codes.data(), .scale = scale.data(), .width = kWidth};
  StepBounds bounds;
  bounds.tables = {&table, 1};
  ASSERT_TRUE(device_->reserve(bounds));
  Memory& memory = device_->memory();
  for (const int64_t rows : {1, 3, 64, 512, 64, 1, 600, 64}) {
    std::vector<int64_t> ids(static_cast<size_t>(rows * kColumns));
    for (int64_t& id : ids) id = random.below(random.below(3) == 0 ? kTableRows : 500);
    std::vector<Bf16> theirs(ids.size() * kWidth);
    plain_->engram_lookup(table, as_rows(std::as_const(ids), rows), as_rows(theirs, rows));
    const auto bytes = static_cast<int64_t>(theirs.size() * sizeof(Bf16));
    const MemoryBlock e = MemoryBlock::create(memory, bytes, "a test").value();
    // Twice: the second one finds all of them, where they are kept.
    for (int run = 0; run < 2; ++run) {
      device_->begin_step();
      device_->engram_lookup(
          table, as_rows(std::as_const(ids), rows),
          Rows<Bf16>(reinterpret_cast<Bf16*>(e.data()), rows, kColumns * kWidth));
      ASSERT_TRUE(device_->finish());
      std::vector<Bf16> ours(theirs.size());
      memory.read(ours.data(), e.data(), bytes);
      EXPECT_EQ(std::memcmp(ours.data(), theirs.data(), static_cast<size_t>(bytes)), 0)
          << rows << " rows, run " << run;
    }
  }
}

// A matrix whose tiles do not fold is multiplied as it is stored.
TEST_F(CudaReleasedShape, ProjectionsThatDoNotFold) {
  Random random(76);
  const StoredWeight stored(random, WeightFormat::kFp8Tile32, 512, kHidden);
  WeightView hollow = stored.view();
  // One block of zeros under a scale far above the others.
  std::vector<uint8_t> codes(static_cast<const uint8_t*>(hollow.data),
                             static_cast<const uint8_t*>(hollow.data) + hollow.data_bytes());
  std::vector<uint8_t> scale(hollow.scale, hollow.scale + hollow.scale_bytes());
  for (int64_t row = 0; row < 32; ++row) {
    std::fill_n(codes.begin() + row * kHidden, 32, uint8_t{0});
  }
  scale[0] = static_cast<uint8_t>(scale[1] + 18);
  hollow.data = codes.data();
  hollow.scale = scale.data();
  const std::vector<Bf16> x = random.bf16(3 * kHidden);
  expect_same("wkv that does not fold", 3, 512, 0.001, [&](Ops& ops, Rows<Bf16> y) {
    const Product one{hollow, true, y, {}};
    ops.linear(as_rows(x, 3), {&one, 1});
  });
}

}  // namespace
}  // namespace galley::kernels
