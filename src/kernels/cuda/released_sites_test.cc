// Leaving a hyper-connection site and entering the next at the released width: one launch of
// clusters for few rows, one pass for many, and each operation alone. The same bits in every
// company and every way, and plain/'s up to rounding.
//
// Steps here end behind both operations, so that they may meet: mirrored memory would end each.
// Skipped without a usable device.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/ops_test_cases.h"
#include "kernels/plain/plain_ops.h"

namespace galley::kernels {
namespace {

class CudaReleasedSites : public testing::Test {
 protected:
  void SetUp() override {
    auto made = cuda::make_cuda_ops(0);
    if (!made) GTEST_SKIP() << made.error().message;
    device_ = *std::move(made);
  }

  std::unique_ptr<Ops> device_;
};

TEST_F(CudaReleasedSites, SitesDoNotSeeOtherRows) {
  Random random(83);
  constexpr int64_t kRows = 1100;  // several tiles a warp
  constexpr int64_t kHidden = 5120;
  const std::vector<Bf16> streams = random.bf16(kRows * 4 * kHidden);
  const std::vector<Bf16> y = random.bf16(kRows * kHidden);
  const std::vector<float> fn = random.f32(24 * 4 * kHidden, 0.01);
  const std::vector<float> base = random.f32(24, 0.5);
  const std::vector<float> scale = {0.6F, 0.5F, 0.7F};
  const std::vector<Bf16> norm = random.bf16(kHidden);
  const std::vector<float> carried = random.f32(kRows * 4);
  const std::vector<float> post = random.f32(kRows * 4);
  const std::vector<float> comb = random.f32(kRows * 16);
  Memory& memory = device_->memory();
  std::vector<MemoryBlock> blocks;
  const auto place = [&]<class T>(std::span<const T> values) {
    const auto bytes = static_cast<int64_t>(values.size_bytes());
    blocks.push_back(MemoryBlock::create(memory, bytes, "a test").value());
    memory.write(blocks.back().data(), values.data(), bytes);
    return reinterpret_cast<T*>(blocks.back().data());
  };
  const auto place_rows = [&]<class T>(const std::vector<T>& all, int64_t begin, int64_t count) {
    const int64_t cols = std::ssize(all) / kRows;
    return Rows<T>(place(std::span(all).subspan(static_cast<size_t>(begin * cols),
                                                static_cast<size_t>(count * cols))),
                   count, cols);
  };
  const auto read = [&]<class T>(const Rows<T>& rows) {
    std::vector<T> values(static_cast<size_t>(rows.rows * rows.cols));
    memory.read(values.data(), rows.data, static_cast<int64_t>(values.size() * sizeof(T)));
    return values;
  };
  struct Site {
    std::vector<Bf16> streams, x;
    std::vector<float> pre, post, comb;
    std::vector<uint8_t> row(int64_t r) const {
      std::vector<uint8_t> bytes;
      append_bytes(bytes, streams.data() + r * 4 * kHidden, 4 * kHidden);
      append_bytes(bytes, x.data() + r * kHidden, kHidden);
      append_bytes(bytes, pre.data() + r * 4, 4);
      append_bytes(bytes, post.data() + r * 4, 4);
      append_bytes(bytes, comb.data() + r * 16, 16);
      return bytes;
    }
  };
  const auto run = [&](int64_t begin, int64_t count, bool together) {
    blocks.clear();
    const HcWeights weights{place(std::span(fn)), place(std::span(base)), place(std::span(scale))};
    const Bf16* norm_weight = place(std::span(norm));
    // The mixes that are left with are where the new ones go, as in a layer.
    const HcMix mix{place_rows(carried, begin, count), place_rows(post, begin, count),
                    place_rows(comb, begin, count)};
    const Rows<Bf16> left = place_rows(streams, begin, count);
    const Rows<Bf16> from = place_rows(y, begin, count);
    const Rows<Bf16> x = place_rows(y, begin, count);
    device_->begin_step();
    device_->hc_leave(from, mix.post, mix.comb, 4, left);
    if (!together) {
      EXPECT_TRUE(device_->finish());
      device_->begin_step();
    }
    device_->hc_enter(left, weights, HcOptions{}, mix.pre, norm_weight, mix, x);
    EXPECT_TRUE(device_->finish());
    return Site{read(left), read(x), read(mix.pre), read(mix.post), read(mix.comb)};
  };
  const Site all = run(0, kRows, true);
  for (const int64_t count : {1, 3, 8, 9, 16, 64, 65, 129, 300, 512, 513, 1100}) {
    for (const bool together : {true, false}) {
      const int64_t begin = (kRows - count) / 3;
      const Site part = run(begin, count, together);
      int64_t different = 0;
      for (int64_t r = 0; r < count; ++r) different += part.row(r) != all.row(begin + r) ? 1 : 0;
      EXPECT_EQ(different, 0) << count << " rows from " << begin << (together ? "" : ", apart");
    }
  }
  ThreadPool pool{2};
  const std::unique_ptr<Ops> plain = make_plain_ops(pool);
  for (const int64_t r : {int64_t{0}, int64_t{15}, int64_t{700}, kRows - 1}) {
    std::vector<Bf16> left(streams.begin() + r * 4 * kHidden,
                           streams.begin() + (r + 1) * 4 * kHidden);
    std::vector<Bf16> x(y.begin() + r * kHidden, y.begin() + (r + 1) * kHidden);
    std::vector<float> pre(4);
    std::vector<float> new_post(4);
    std::vector<float> new_comb(16);
    plain->hc_leave(as_rows(std::as_const(x), 1), as_rows(post, kRows).slice(r, 1),
                    as_rows(comb, kRows).slice(r, 1), 4, as_rows(left, 1));
    plain->hc_enter(as_rows(std::as_const(left), 1), {fn.data(), base.data(), scale.data()},
                    HcOptions{}, as_rows(carried, kRows).slice(r, 1), norm.data(),
                    {as_rows(pre, 1), as_rows(new_post, 1), as_rows(new_comb, 1)}, as_rows(x, 1));
    const auto at = static_cast<size_t>(r);
    EXPECT_EQ(std::memcmp(left.data(), all.streams.data() + at * 4 * kHidden, 8 * kHidden), 0)
        << "streams of row " << r;
    EXPECT_LE(relative_l2(all.x.data() + at * kHidden, widened(x.data(), kHidden)), 1e-3)
        << "row " << r;
    const auto expect_near = [&](const std::vector<float>& ours, const std::vector<float>& theirs) {
      const size_t count = theirs.size();  // a projection's rounding error enters each exponent
      for (size_t i = 0; i < count; ++i) EXPECT_NEAR(ours[at * count + i], theirs[i], 1e-5F);
    };
    expect_near(all.pre, pre);
    expect_near(all.post, new_post);
    expect_near(all.comb, new_comb);
  }
}

}  // namespace
}  // namespace galley::kernels
