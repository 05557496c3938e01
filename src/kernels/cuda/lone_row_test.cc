// A layer of one narrow row, as a step calls it: what becomes one launch (held_lone.h) has the bits
// of one operation after the other; so it has for two rows, which take other ways. What does not
// go on as a layer does is still done, in order.
//
// Each operation is finished before the next one in one run, and all are handed over together in
// the other. Skipped without a usable device.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda/device_fixture.h"
#include "kernels/ops_test_records.h"

namespace galley::kernels {
namespace {

struct Shape {
  int64_t hidden;
  int64_t latent;
  int64_t key_width;
  int64_t inner;
  int32_t heads;
  int32_t experts;
  int32_t top_k;
  WeightFormat expert_format;
  bool indexes;      // further products of x, and of the latent
  int64_t commands;  // of a layer of one row and the next one's site, which comes alone
};
constexpr Shape kShapes[] = {
    {256, 128, 64, 96, 8, 8, 3, WeightFormat::kFp4Row32, true,
     7},  // a group of heads is too wide for one launch
    {128, 64, 32, 64, 4, 4, 2, WeightFormat::kFp4Row32, false, 4},
    {64, 32, 32, 32, 4, 5, 1, WeightFormat::kBf16, true, 4},
};
constexpr int64_t kRows = 2;
constexpr int32_t kGroups = 2;
constexpr int64_t kGroupOutputs = 32;
constexpr int64_t kWindow = 16;
constexpr float kEps = 1e-6F;

class CudaLoneRow : public DeviceFixture, public testing::WithParamInterface<Shape> {
 protected:
  void SetUp() override {
    DeviceFixture::SetUp();
    if (ops_ == nullptr) return;
    const Shape s = GetParam();
    const auto fp8 = [&](int64_t out, int64_t in) {
      return placed(StoredWeight(random_, WeightFormat::kFp8Tile32, out, in));
    };
    for (int site = 0; site < 2; ++site) {
      hc_[site] = {placed(random_.f32(24 * 4 * s.hidden, 0.05)), placed(random_.f32(24, 0.5)),
                   placed(random_.f32(3, 0.5))};
      norm_[site] = placed(random_.bf16(s.hidden));
    }
    q_a_ = fp8(s.latent, s.hidden);
    kv_ = fp8(s.key_width, s.hidden);
    q_b_ = fp8(s.heads * s.key_width, s.latent);
    index_b_ = fp8(64, s.latent);
    further_ = placed(StoredWeight(random_, WeightFormat::kBf16, 32, s.hidden));
    o_a_ = fp8(kGroups * kGroupOutputs, s.heads / kGroups * s.key_width);
    o_b_ = fp8(s.hidden, kGroups * kGroupOutputs);
    latent_norm_ = placed(random_.bf16(s.latent));
    key_norm_ = placed(random_.bf16(s.key_width));
    sink_ = placed(random_.f32(s.heads));
    gate_ = placed(StoredWeight(random_, WeightFormat::kBf16, s.experts, s.hidden));
    bias_ = placed(random_.f32(s.experts, 0.2));
    for (int32_t e = 0; e < s.experts; ++e) {
      const auto one = [&](int64_t out, int64_t in) {
        return placed(StoredWeight(random_, s.expert_format, out, in));
      };
      experts_.push_back({one(s.inner, s.hidden), one(s.inner, s.hidden), one(s.hidden, s.inner)});
    }
    moe_ = {
        experts_, {fp8(s.inner, s.hidden), fp8(s.inner, s.hidden), fp8(s.hidden, s.inner)}, 10.0F};
    const StoredAngles angles(100, kRows, 32);
    angles_ = {Rows<const float>(placed(angles.cos), kRows, 16),
               Rows<const float>(placed(angles.sin), kRows, 16)};
    record_bytes_ = window_kind().bytes(s.key_width);
    ring_ = Rows<uint8_t>(reinterpret_cast<uint8_t*>(room(kWindow * record_bytes_)), kWindow,
                          record_bytes_);
    streams_ = made<Bf16>(4 * s.hidden);
    x_ = made<Bf16>(s.hidden);
    y_ = made<Bf16>(s.hidden);
    latent_ = made<Bf16>(s.latent);
    key_ = made<Bf16>(s.key_width);
    q_ = made<Bf16>(s.heads * s.key_width);
    index_q_ = made<Bf16>(64);
    more_ = made<float>(32);
    u_ = made<Bf16>(kGroups * kGroupOutputs);
    keys_ = made<uint8_t>(record_bytes_);
    pre_[0] = made<float>(4);
    pre_[1] = made<float>(4);
    post_ = made<float>(4);
    comb_ = made<float>(16);
    chosen_ = made<int32_t>(s.top_k);
    weights_ = made<float>(s.top_k);
  }

  template <class T>
  Rows<T> made(int64_t cols) {
    const int64_t bytes = kRows * cols * static_cast<int64_t>(sizeof(T));
    auto* data = reinterpret_cast<T*>(room(bytes));
    kept_.push_back({reinterpret_cast<std::byte*>(data), bytes});
    return Rows<T>(data, kRows, cols);
  }

  // As every run begins: streams, mixes and the ring are there, all else is rubbish.
  void prepare() {
    Random random(7);
    const Shape s = GetParam();
    for (const auto& [data, bytes] : kept_) {
      const std::vector<uint8_t> rubbish(static_cast<size_t>(bytes), 0xA5);
      ops_->memory().write(data, rubbish.data(), bytes);
    }
    write(streams_, random.bf16(kRows * 4 * s.hidden));
    write(y_, random.bf16(kRows * s.hidden));
    for (const Rows<float>& rows : {pre_[0], pre_[1], post_, comb_}) {
      write(rows, random.f32(kRows * rows.cols, 0.5));
    }
    std::vector<int32_t> chosen;
    for (int64_t i = 0; i < kRows * s.top_k; ++i) {
      chosen.push_back(static_cast<int32_t>(i % s.top_k));
    }
    write(chosen_, chosen);
    write(weights_, random.f32(kRows * s.top_k));
    std::vector<uint8_t> records;
    for (int64_t i = 0; i < kWindow; ++i) {
      for (int64_t b = 0; b < record_bytes_; ++b) {
        records.push_back(static_cast<uint8_t>(b < s.key_width ? random.below(0x70) : 120));
      }
    }
    ops_->memory().write(ring_.data, records.data(), std::ssize(records));
  }
  template <class T>
  void write(const Rows<T>& rows, const std::vector<T>& host) {
    ops_->memory().write(rows.data, host.data(), std::ssize(host) * int64_t{sizeof(T)});
  }
  // All that operations may have written but for rows past `rows`.
  std::vector<uint8_t> results() {
    std::vector<uint8_t> all;
    for (const auto& [data, bytes] : kept_) {
      std::vector<uint8_t> host(static_cast<size_t>(bytes));
      ops_->memory().read(host.data(), data, bytes);
      all.insert(all.end(), host.begin(), host.end());
    }
    std::vector<uint8_t> ring(static_cast<size_t>(kWindow * record_bytes_));
    ops_->memory().read(ring.data(), ring_.data, std::ssize(ring));
    all.insert(all.end(), ring.begin(), ring.end());
    return all;
  }

  // The operations of a layer and the site of the next.
  std::vector<std::function<void(Ops&)>> layer(int64_t rows) {
    const Shape s = GetParam();
    std::vector<std::function<void(Ops&)>> all;
    const HcOptions options{4, 20, kEps, kEps};
    const auto enter = [=, this](Ops& ops, int site) {
      ops.hc_enter(streams_.slice(0, rows), hc_[site], options, pre_[site].slice(0, rows),
                   norm_[site],
                   {pre_[1 - site].slice(0, rows), post_.slice(0, rows), comb_.slice(0, rows)},
                   x_.slice(0, rows));
    };
    const auto leave = [=, this](Ops& ops) {
      ops.hc_leave(y_.slice(0, rows), post_.slice(0, rows), comb_.slice(0, rows), 4,
                   streams_.slice(0, rows));
    };
    const auto quantised = [rows](const WeightView& weight, Rows<Bf16> y) {
      return Product{.weight = weight, .quantise_input = true, .y = y.slice(0, rows), .y_f32 = {}};
    };
    all.emplace_back(leave);
    all.emplace_back([=](Ops& ops) { enter(ops, 0); });
    all.emplace_back([=, this](Ops& ops) {
      std::vector<Product> products = {quantised(q_a_, latent_), quantised(kv_, key_)};
      if (s.indexes) {
        products.push_back(
            {.weight = further_, .quantise_input = false, .y = {}, .y_f32 = more_.slice(0, rows)});
      }
      ops.linear(x_.slice(0, rows), products);
    });
    const RopeAngles angles = {angles_.cos.slice(0, rows), angles_.sin.slice(0, rows)};
    all.emplace_back([=, this](Ops& ops) {
      ops.window_keys(key_.slice(0, rows), key_norm_, kEps, angles, keys_.slice(0, rows));
    });
    all.emplace_back([=, this](Ops& ops) {
      std::vector<Product> products = {quantised(q_b_, q_)};
      if (s.indexes) products.push_back(quantised(index_b_, index_q_));
      ops.norm_linear(latent_.slice(0, rows), latent_norm_, kEps, products);
    });
    all.emplace_back([=, this](Ops& ops) { ops.rope(q_.slice(0, rows), s.heads, angles, false); });
    all.emplace_back([=, this](Ops& ops) {
      std::vector<AttentionRow> attention(static_cast<size_t>(rows));
      for (int64_t r = 0; r < rows; ++r) {
        AttentionRow& row = attention[static_cast<size_t>(r)];
        row.position = 100 + r;
        row.window_begin = row.position - kWindow + 1;
        row.ring = ring_.data;
        row.ring_slots = kWindow;
        row.chunk = keys_.data;
        row.chunk_begin = 100;
      }
      ops.attention(q_.slice(0, rows), sink_,
                    {s.heads, static_cast<int32_t>(s.key_width), kWindow, 0}, angles, attention,
                    q_.slice(0, rows));
    });
    all.emplace_back([=, this](Ops& ops) {
      std::vector<RowCopy> copies;
      for (int64_t r = 0; r < rows; ++r) {
        copies.push_back({keys_.row(r), ring_.row((100 + r) % kWindow), record_bytes_});
      }
      ops.copy(copies);
    });
    all.emplace_back([=, this](Ops& ops) {
      ops.grouped_linear(q_.slice(0, rows), o_a_, kGroups, u_.slice(0, rows));
    });
    all.emplace_back([=, this](Ops& ops) {
      const Product product = quantised(o_b_, y_);
      ops.linear(u_.slice(0, rows), {&product, 1});
    });
    all.emplace_back(leave);
    all.emplace_back([=](Ops& ops) { enter(ops, 1); });
    all.emplace_back([=, this](Ops& ops) {
      const std::vector<const float*> biases(static_cast<size_t>(rows), bias_);
      ops.route(x_.slice(0, rows), gate_, biases, {s.top_k, 1.5F, 1.0F}, chosen_.slice(0, rows),
                weights_.slice(0, rows), nullptr);
    });
    all.emplace_back([=, this](Ops& ops) {
      ops.moe(x_.slice(0, rows), moe_, chosen_.slice(0, rows), weights_.slice(0, rows),
              y_.slice(0, rows));
    });
    all.emplace_back(leave);
    all.emplace_back([=](Ops& ops) { enter(ops, 0); });
    return all;
  }

  std::vector<uint8_t> run(const std::vector<std::function<void(Ops&)>>& calls, bool apart) {
    prepare();
    ops_->begin_step();
    for (const auto& call : calls) {
      call(*ops_);
      if (!apart) continue;
      EXPECT_TRUE(ops_->finish());
      ops_->begin_step();
    }
    EXPECT_TRUE(ops_->finish());
    return results();
  }

  Random random_{91};
  HcWeights hc_[2];
  const Bf16* norm_[2] = {};
  WeightView q_a_, kv_, q_b_, index_b_, further_, o_a_, o_b_, gate_;
  const Bf16* latent_norm_ = nullptr;
  const Bf16* key_norm_ = nullptr;
  const float* sink_ = nullptr;
  const float* bias_ = nullptr;
  std::vector<ExpertWeights> experts_;
  MoeWeights moe_;
  RopeAngles angles_;
  int64_t record_bytes_ = 0;
  Rows<uint8_t> ring_, keys_;
  Rows<Bf16> streams_, x_, y_, latent_, key_, q_, index_q_, u_;
  Rows<float> more_, pre_[2], post_, comb_, weights_;
  Rows<int32_t> chosen_;
  struct Kept {
    std::byte* data;
    int64_t bytes;
  };
  std::vector<Kept> kept_;  // all but the ring
};

TEST_P(CudaLoneRow, TogetherIsOneAfterTheOther) {
  for (const int64_t rows : {1, 2}) {
    SCOPED_TRACE(std::to_string(rows) + " rows");
    const auto calls = layer(rows);
    const std::vector<uint8_t> expected = run(calls, true);
    // Steps take turns in two sets of places: the last two are graphs of the first two.
    for (int turn = 0; turn < 4; ++turn) {
      EXPECT_TRUE(run(calls, false) == expected) << "run " << turn;
    }
  }
}

// A layer of one row is three commands (four launches), also behind a step of more rows, whose
// products have asked for what they lacked.
TEST_P(CudaLoneRow, IsFewCommands) {
  const auto count = [&](int64_t rows) {
    const int64_t before = cuda::command_count(*ops_);
    run(layer(rows), false);
    return cuda::command_count(*ops_) - before;
  };
  count(1);  // working memory grows
  EXPECT_GT(count(2), GetParam().commands);
  for (int turn = 0; turn < 2; ++turn) EXPECT_EQ(count(1), GetParam().commands);
}

// A layer that ends anywhere, and one that lacks any of its operations.
TEST_P(CudaLoneRow, WhatDoesNotGoOnIsDoneAllTheSame) {
  const auto calls = layer(1);
  for (size_t end = 1; end < calls.size(); ++end) {
    SCOPED_TRACE("the first " + std::to_string(end));
    const std::vector<std::function<void(Ops&)>> part(calls.begin(),
                                                      calls.begin() + static_cast<int64_t>(end));
    EXPECT_TRUE(run(part, false) == run(part, true));
  }
  for (size_t without = 0; without < calls.size(); ++without) {
    SCOPED_TRACE("without " + std::to_string(without));
    std::vector<std::function<void(Ops&)>> rest = calls;
    rest.erase(rest.begin() + static_cast<int64_t>(without));
    EXPECT_TRUE(run(rest, false) == run(rest, true));
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaLoneRow, testing::ValuesIn(kShapes),
                         [](const testing::TestParamInfo<Shape>& shape) {
                           return "Hidden" + std::to_string(shape.param.hidden);
                         });

}  // namespace
}  // namespace galley::kernels
