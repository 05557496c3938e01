// A layer between its sites at the released width, as a step calls it: sites that make x in Q8
// along with x, a route in one launch with the plan of its choices and with their codes' way to the
// experts, and the sum of the experts in the next site have the bits of one operation after the
// other, for every number of rows.
//
// Each operation is finished before the next one in one run, so that nothing rides along; all are
// handed over together in the other, which is what a step does. Skipped without a usable device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/device_fixture.h"
#include "kernels/ops_test_cases.h"
#include "kernels/plain/quantise.h"

namespace galley::kernels {
namespace {

constexpr int64_t kHidden = 5120;
constexpr int64_t kInner = 1024;
constexpr int64_t kOut = 512;
constexpr int32_t kExperts = 10;
constexpr int64_t kRouted = 384;  // of the wider router
constexpr int32_t kTopK = 6;
constexpr int64_t kRowsMax = 1100;

struct Layer {
  HcWeights site;
  const Bf16* norm;
  WeightView project, gate;
  MoeWeights moe;
  std::vector<const float*> bias;
  Rows<Bf16> streams, y, x, projected;
  Rows<float> pre, post, comb, expert_weights;
  Rows<int32_t> experts;
  // What the experts compute: the router's choices, or others.
  Rows<int32_t> planned;
  Rows<float> planned_weights;

  Layer first(int64_t rows) const {
    Layer part = *this;
    for (Rows<Bf16> Layer::*at : {&Layer::streams, &Layer::y, &Layer::x, &Layer::projected}) {
      part.*at = (this->*at).slice(0, rows);
    }
    for (Rows<float> Layer::*at : {&Layer::pre, &Layer::post, &Layer::comb, &Layer::expert_weights,
                                   &Layer::planned_weights}) {
      part.*at = (this->*at).slice(0, rows);
    }
    part.experts = experts.slice(0, rows);
    part.planned = planned.slice(0, rows);
    part.bias.resize(static_cast<size_t>(rows));
    return part;
  }
};

// What a layer begins with.
struct Inputs {
  explicit Inputs(Random& random)
      : streams(random.bf16(kRowsMax * 4 * kHidden)),
        y(random.bf16(kRowsMax * kHidden)),
        carried(random.f32(kRowsMax * 4)),
        post(random.f32(kRowsMax * 4)),
        comb(random.f32(kRowsMax * 16)) {}

  // Into the rows of the layer.
  void put(Memory& memory, const Layer& l) const {
    const auto put_rows = [&]<class T>(Rows<T> to, const std::vector<T>& from) {
      memory.write(to.data, from.data(), to.rows * to.cols * int64_t{sizeof(T)});
    };
    put_rows(l.streams, streams);
    put_rows(l.y, y);
    put_rows(l.x, y);
    put_rows(l.pre, carried);
    put_rows(l.post, post);
    put_rows(l.comb, comb);
    put_rows(l.projected, y);
  }

  std::vector<Bf16> streams, y;
  std::vector<float> carried, post, comb;
};

class CudaReleasedLayer : public DeviceFixture {
 protected:
  template <class T>
  Rows<T> placed_rows(const std::vector<T>& host) {
    return Rows<T>(placed(host), kRowsMax, std::ssize(host) / kRowsMax);
  }
  // step(next) gives a step's bits and calls `next` behind each operation: the same ones when it
  // goes in one list as when each waits for the one before.
  template <class Step>
  void expect_as_apart(const Step& step) {
    const std::vector<Bf16> expected = step([&] {
      ASSERT_TRUE(ops_->finish());
      ops_->begin_step();
    });
    for (int time = 0; time < 12; ++time) {
      const std::vector<Bf16> ours = step([] {});
      EXPECT_EQ(std::memcmp(ours.data(), expected.data(), ours.size() * sizeof(Bf16)), 0)
          << "time " << time;
    }
  }
  // kExperts of them and the shared one.
  MoeWeights folded_experts(Random& random) {
    MoeWeights raw;
    for (int32_t e = 0; e <= kExperts; ++e) {
      const auto format = e < kExperts ? WeightFormat::kFp4Row32 : WeightFormat::kFp8Tile32;
      experts_.push_back({placed(StoredWeight(random, format, kInner, kHidden)),
                          placed(StoredWeight(random, format, kInner, kHidden)),
                          placed(StoredWeight(random, format, kHidden, kInner))});
    }
    raw.shared = experts_.back();
    raw.experts = std::span(experts_).first(kExperts);
    std::byte* to = room(ops_->folds()->experts_bytes(raw));
    for (int32_t e = 0; e <= kExperts; ++e) {
      ops_->folds()->fold_expert(raw, e, experts_[static_cast<size_t>(e)], to);
    }
    EXPECT_EQ(ops_->folds()->take_counts().value().misfits, 0);
    for (ExpertWeights& one : experts_) {
      one = {folded_view(one.w1, to), folded_view(one.w3, to), folded_view(one.w2, to)};
    }
    raw.shared = experts_.back();
    raw.experts = std::span(experts_).first(kExperts);
    return raw;
  }

  void place_site(Layer& layer, Random& random) {
    layer.site = {placed(random.f32(24 * 4 * kHidden, 0.01)), placed(random.f32(24, 0.5)),
                  placed(std::vector<float>{0.6F, 0.5F, 0.7F})};
    layer.norm = placed(random.bf16(kHidden));
  }
  // Rows of a layer, as many as there may be.
  void place(Layer& layer, const Inputs& inputs) {
    layer.streams = placed_rows(inputs.streams);
    layer.y = placed_rows(inputs.y);
    layer.x = placed_rows(inputs.y);
    layer.pre = placed_rows(inputs.carried);
    layer.post = placed_rows(inputs.post);
    layer.comb = placed_rows(inputs.comb);
    layer.projected = placed_rows(std::vector<Bf16>(kRowsMax * kOut));
    layer.experts = placed_rows(std::vector<int32_t>(kRowsMax * kTopK));
    layer.expert_weights = placed_rows(std::vector<float>(kRowsMax * kTopK));
  }

  std::vector<ExpertWeights> experts_;
};

// Of two layers' halves: a site and a product, a site and the experts, a site and a product.
// next() stands between operations.
template <class Next>
void run(Ops& ops, const Layer& l, const Next& next) {
  const HcMix mix{l.pre, l.post, l.comb};
  const auto pass_site = [&] {
    ops.hc_leave(l.y, mix.post, mix.comb, 4, l.streams);
    next();
    ops.hc_enter(l.streams, l.site, HcOptions{}, mix.pre, l.norm, mix, l.x);
    next();
  };
  const Product product{.weight = l.project, .quantise_input = true, .y = l.projected, .y_f32 = {}};
  pass_site();
  ops.linear(l.x, {&product, 1});
  next();
  pass_site();
  ops.route(l.x, l.gate, l.bias, {.top_k = kTopK, .scale = 1.5F, .gate_temperature = 1.0F},
            l.experts, l.expert_weights, nullptr);
  next();
  ops.moe(l.x, l.moe, l.planned, l.planned_weights, l.y);
  next();
  pass_site();
  ops.linear(l.x, {&product, 1});
  next();
}

TEST_F(CudaReleasedLayer, TogetherIsOneAfterTheOther) {
  Random random(91);
  Layer layer{};
  place_site(layer, random);
  layer.project = folded(StoredWeight(random, WeightFormat::kFp8Tile32, kOut, kHidden));
  layer.gate = placed(StoredWeight(random, WeightFormat::kBf16, kExperts, kHidden));
  layer.moe = folded_experts(random);
  const std::vector<const float*> bias(kRowsMax, placed(random.f32(kExperts, 0.1)));
  const WeightView wide_gate = placed(StoredWeight(random, WeightFormat::kBf16, kRouted, kHidden));
  std::vector<const float*> wide_bias(kRowsMax, placed(random.f32(kRouted, 0.1)));
  const float* const other_bias = placed(random.f32(kRouted, 0.1));
  for (size_t row = 1; row < wide_bias.size(); row += 3) wide_bias[row] = other_bias;
  const WeightView gate = layer.gate;
  const Inputs inputs(random);
  place(layer, inputs);
  std::vector<int32_t> drawn;
  for (int64_t row = 0; row < kRowsMax; ++row) {
    for (int32_t k = 0; k < kTopK; ++k) drawn.push_back(k + static_cast<int32_t>(row * 7 % 5));
  }
  const Rows<int32_t> drawn_experts = placed_rows(drawn);
  const Rows<float> drawn_weights = placed_rows(random.f32(kRowsMax * kTopK));

  // Other launches above 8 (a cluster's tile, experts without a plan), 32 (routes along with their
  // plan), 56 (clusters at a time), 170 (choices of a plan by one block), 512 (graphs) and 1,024
  // rows. The narrow router has blocks for 16 rows.
  struct Case {
    int64_t rows;
    bool wide;  // router, and experts that it did not choose
  };
  std::vector<Case> cases;
  for (const int64_t rows : {1, 2, 3, 8, 9, 16, 33, 56, 57, 64, 130, 171, 512, 513, 1100}) {
    cases.push_back({rows, false});
  }
  for (const int64_t rows : {32, 1, 9, 2, 20, 8, 33}) cases.push_back({rows, true});
  for (const auto [rows, wide] : cases) {
    SCOPED_TRACE(std::to_string(rows) + (wide ? " rows, 384 experts" : " rows"));
    layer.gate = wide ? wide_gate : gate;
    layer.bias = wide ? wide_bias : bias;
    layer.planned = wide ? drawn_experts : layer.experts;
    layer.planned_weights = wide ? drawn_weights : layer.expert_weights;
    const Layer l = layer.first(rows);
    const auto begin_again = [&] {
      inputs.put(ops_->memory(), l);
      ops_->begin_step();
    };
    const auto results = [&] {
      std::vector<uint8_t> bytes;
      const auto add = [&]<class T>(Rows<T> from) {
        std::vector<T> host(static_cast<size_t>(rows * from.cols));
        ops_->memory().read(host.data(), from.data,
                            std::ssize(host) * static_cast<int64_t>(sizeof(T)));
        append_bytes(bytes, host.data(), std::ssize(host));
      };
      add(l.streams);
      add(l.y);
      add(l.x);
      add(l.projected);
      add(l.pre);
      add(l.post);
      add(l.comb);
      add(l.experts);
      add(l.expert_weights);
      return bytes;
    };
    begin_again();
    run(*ops_, l, [&] {
      ASSERT_TRUE(ops_->finish());
      ops_->begin_step();
    });
    ASSERT_TRUE(ops_->finish());
    const std::vector<uint8_t> expected = results();
    // The first one may not know yet what is wanted of sites, and steps take turns in two sets of
    // places: the last two are graphs that came before.
    for (int time = 0; time < 6; ++time) {
      begin_again();
      run(*ops_, l, [] {});
      ASSERT_TRUE(ops_->finish());
      EXPECT_TRUE(results() == expected) << "time " << time;
    }
  }
}

// Layers take turns in the same rooms, so what one chose lies where the one before chose, and
// kernels of both are in work close to each other: each sees its own.
TEST_F(CudaReleasedLayer, LayersOfAStepSeeTheirOwn) {
  constexpr int kLayers = 12;
  constexpr size_t kGates = 5;
  Random random(92);
  Layer layer{};
  place_site(layer, random);
  layer.moe = folded_experts(random);
  std::vector<WeightView> gates;
  for (size_t i = 0; i < kGates; ++i) {
    gates.push_back(placed(StoredWeight(random, WeightFormat::kBf16, kExperts, kHidden)));
  }
  const std::vector<const float*> bias(kRowsMax, placed(random.f32(kExperts, 0.1)));
  const Inputs inputs(random);
  place(layer, inputs);
  layer.bias = bias;
  layer.planned = layer.experts;
  layer.planned_weights = layer.expert_weights;
  for (const int64_t rows : {4, 8, 2, 6, 1, 3, 16, 40, 64, 130, 400}) {
    SCOPED_TRACE(std::to_string(rows) + " rows");
    const Layer l = layer.first(rows);
    const auto step = [&](const auto& next) {
      inputs.put(ops_->memory(), l);
      const HcMix mix{l.pre, l.post, l.comb};
      ops_->begin_step();
      for (size_t i = 0; i < kLayers; ++i) {
        ops_->hc_leave(l.y, mix.post, mix.comb, 4, l.streams);
        next();
        ops_->hc_enter(l.streams, l.site, HcOptions{}, mix.pre, l.norm, mix, l.x);
        next();
        ops_->route(l.x, gates[i % kGates], l.bias,
                    {.top_k = kTopK, .scale = 1.5F, .gate_temperature = 1.0F}, l.experts,
                    l.expert_weights, nullptr);
        next();
        ops_->moe(l.x, l.moe, l.experts, l.expert_weights, l.y);
        next();
      }
      EXPECT_TRUE(ops_->finish());
      std::vector<Bf16> bits(static_cast<size_t>(rows * kHidden));
      ops_->memory().read(bits.data(), l.y.data, std::ssize(bits) * int64_t{sizeof(Bf16)});
      return bits;
    };
    expect_as_apart(step);
  }
}

// A site's mixes beside attention, between the site and the next: the bits of one after the other.
TEST_F(CudaReleasedLayer, AttentionTakesMixesAlong) {
  constexpr int64_t kRows = 16;
  constexpr int64_t kWidth = 512;
  constexpr int32_t kHeads = 64;
  constexpr int64_t kWindow = 128;
  Random random(93);
  Layer layer{};
  place_site(layer, random);
  layer.project = folded(StoredWeight(random, WeightFormat::kFp8Tile32, kOut, kHidden));
  const Inputs inputs(random);
  place(layer, inputs);
  layer.planned = layer.experts;
  layer.planned_weights = layer.expert_weights;
  const int64_t record = window_record_bytes(kWidth);
  std::vector<uint8_t> records(static_cast<size_t>(kWindow * record));
  for (int64_t t = 0; t < kWindow; ++t) {
    plain::write_window_record(random.bf16(kWidth).data(), kWidth, records.data() + t * record);
  }
  const uint8_t* const ring = placed(records);
  const Rows<Bf16> q(placed(random.bf16(kRows * kHeads * kWidth)), kRows, kHeads * kWidth);
  const Rows<Bf16> o(placed(std::vector<Bf16>(kRows * kHeads * kWidth)), kRows, kHeads * kWidth);
  const float* const sink = placed(random.f32(kHeads));
  const Rows<float> cos(placed(random.f32(kRows * 32)), kRows, 32);
  const Rows<float> sin(placed(random.f32(kRows * 32)), kRows, 32);
  for (const int64_t rows : {1, 3, 4, 8, 9, 16, 2}) {
    SCOPED_TRACE(std::to_string(rows) + " rows");
    const Layer l = layer.first(rows);
    std::vector<AttentionRow> attended;
    for (int64_t r = 0; r < rows; ++r) {
      AttentionRow& one = attended.emplace_back();
      one.position = kWindow + r;
      one.window_begin = 1 + r * 5;
      one.ring = ring;
      one.ring_slots = kWindow;
      one.chunk = ring;
      one.chunk_begin = kWindow + kRows;
    }
    const Product product{
        .weight = l.project, .quantise_input = true, .y = l.projected, .y_f32 = {}};
    const auto step = [&](const auto& next) {
      inputs.put(ops_->memory(), l);
      const HcMix mix{l.pre, l.post, l.comb};
      ops_->begin_step();
      for (int i = 0; i < 6; ++i) {
        ops_->hc_leave(l.y, mix.post, mix.comb, 4, l.streams);
        next();
        ops_->hc_enter(l.streams, l.site, HcOptions{}, mix.pre, l.norm, mix, l.x);
        next();
        ops_->linear(l.x, {&product, 1});
        next();
        ops_->attention(q.slice(0, rows), sink,
                        {.heads = kHeads, .head_dim = 512, .window = 128, .selected_max = 512},
                        {cos.slice(0, rows), sin.slice(0, rows)}, attended, o.slice(0, rows));
        next();
        if (i % 2 != 0) {  // somebody asks for mixes at once
          const RowCopy copy{l.pre.data, l.post.data, l.pre.rows * 4 * int64_t{sizeof(float)}};
          ops_->copy({&copy, 1});
          next();
        }
      }
      EXPECT_TRUE(ops_->finish());
      std::vector<Bf16> bits(static_cast<size_t>(rows * 6 * kHidden + rows * 48));
      const auto take = [&](size_t at, const void* from, int64_t bytes) {
        ops_->memory().read(bits.data() + at, from, bytes);
      };
      const auto count = static_cast<size_t>(rows);
      take(0, l.streams.data, rows * 4 * kHidden * 2);
      take(count * 4 * kHidden, l.x.data, rows * kHidden * 2);
      take(count * 5 * kHidden, l.projected.data, rows * std::min<int64_t>(kOut, kHidden) * 2);
      take(count * 6 * kHidden, l.pre.data, rows * 16);
      take(count * (6 * kHidden + 8), l.post.data, rows * 16);
      take(count * (6 * kHidden + 16), l.comb.data, rows * 64);
      return bits;
    };
    expect_as_apart(step);
  }
}

}  // namespace
}  // namespace galley::kernels
