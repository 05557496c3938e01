// A layer of folded experts shared by two ranks on cards: every row has the bits of the layer on
// one card with all experts, launched as it goes and as a graph, for even and for skewed routing,
// whatever rows the other rank has.
//
// With one card both ranks are on it; with two each has its own. Skipped without one. The host's
// kernels and whole models are in tests/property/expert_parallel_test.cc.
#include "cluster/expert_parallel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include "cluster/local_ranks.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device.h"
#include "kernels/number_formats.h"
#include "kernels/ops.h"

namespace galley::cluster {
namespace {

using kernels::Bf16;
using kernels::ExpertWeights;
using kernels::MemoryBlock;
using kernels::MoeWeights;
using kernels::Rows;
using kernels::WeightFormat;
using kernels::WeightView;

constexpr int64_t kHidden = 1280;
constexpr int64_t kInner = 1152;
constexpr int32_t kExperts = 16;
constexpr int32_t kTopK = 6;

// Random codes with scales that keep sums near one.
struct Matrix {
  Matrix(std::mt19937_64& random, WeightFormat format, int64_t out, int64_t in) {
    view.format = format;
    view.out = out;
    view.in = in;
    data.resize(static_cast<size_t>(view.data_bytes()));
    scale.resize(static_cast<size_t>(view.scale_bytes()));
    const bool fp8 = format == WeightFormat::kFp8Tile32;
    for (uint8_t& code : data) code = static_cast<uint8_t>(random() & (fp8 ? 0xFEU : 0xFFU));
    for (uint8_t& code : scale) code = static_cast<uint8_t>((fp8 ? 115 : 120) + (random() & 1));
    view.data = data.data();
    view.scale = scale.data();
  }
  WeightView view;
  std::vector<uint8_t> data;
  std::vector<uint8_t> scale;
};

struct Layer {
  explicit Layer(uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto expert = [&](WeightFormat format) {
      for (const auto& [out, in] :
           {std::pair{kInner, kHidden}, {kInner, kHidden}, {kHidden, kInner}}) {
        matrices.push_back(std::make_unique<Matrix>(random, format, out, in));
      }
      const size_t at = matrices.size() - 3;
      return ExpertWeights{matrices[at]->view, matrices[at + 1]->view, matrices[at + 2]->view};
    };
    for (int32_t e = 0; e < kExperts; ++e) experts.push_back(expert(WeightFormat::kFp4Row32));
    shared = expert(WeightFormat::kFp8Tile32);
  }
  std::vector<std::unique_ptr<Matrix>> matrices;
  std::vector<ExpertWeights> experts;
  ExpertWeights shared;
};

// Rows and their choices; `low` keeps all choices among the first experts.
struct Input {
  Input(int64_t rows_in, bool low, uint64_t seed) : rows(rows_in) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    std::vector<int32_t> all(low ? kExperts / 2 : kExperts);
    std::iota(all.begin(), all.end(), 0);
    for (int64_t i = 0; i < rows * kHidden; ++i) x.push_back(kernels::to_bf16(normal(random)));
    for (int64_t row = 0; row < rows; ++row) {
      std::ranges::shuffle(all, random);
      experts.insert(experts.end(), all.begin(), all.begin() + kTopK);
      std::sort(experts.end() - kTopK, experts.end());
      for (int32_t k = 0; k < kTopK; ++k) weights.push_back(0.2F + 0.1F * static_cast<float>(k));
    }
  }
  int64_t rows;
  std::vector<Bf16> x;
  std::vector<int32_t> experts;
  std::vector<float> weights;
};

// The layer's experts [first, first + count) on a device.
class PlacedLayer {
 public:
  PlacedLayer(kernels::Ops& ops, const Layer& layer, int32_t first, int32_t count)
      : experts_(layer.experts.begin() + first, layer.experts.begin() + first + count) {
    kernels::Memory& memory = ops.memory();
    const MoeWeights raw{.experts = experts_, .shared = layer.shared, .swiglu_limit = 10.0F};
    const int64_t bytes = ops.folds()->experts_bytes(raw);
    block_ = MemoryBlock::create(memory, bytes, "experts").value();
    for (int32_t e = 0; e <= count; ++e) {
      const ExpertWeights one = e == count ? layer.shared : experts_[static_cast<size_t>(e)];
      std::vector<MemoryBlock> staged;
      const auto stage = [&](WeightView view) {
        staged.push_back(MemoryBlock::create(memory, view.data_bytes(), "codes").value());
        memory.write(staged.back().data(), view.data, view.data_bytes());
        view.data = staged.back().data();
        staged.push_back(MemoryBlock::create(memory, view.scale_bytes(), "scales").value());
        memory.write(staged.back().data(), view.scale, view.scale_bytes());
        view.scale = reinterpret_cast<const uint8_t*>(staged.back().data());
        return view;
      };
      ops.folds()->fold_expert(raw, e, {stage(one.w1), stage(one.w3), stage(one.w2)},
                               block_.data());
      EXPECT_EQ(ops.folds()->take_counts().value().misfits, 0);
    }
    const auto folded = [&](const ExpertWeights& one) {
      return ExpertWeights{kernels::folded_view(one.w1, block_.data()),
                           kernels::folded_view(one.w3, block_.data()),
                           kernels::folded_view(one.w2, block_.data())};
    };
    for (ExpertWeights& one : experts_) one = folded(one);
    weights_ = {.experts = experts_, .shared = folded(layer.shared), .swiglu_limit = 10.0F};
  }
  const MoeWeights& weights() const { return weights_; }

 private:
  std::vector<ExpertWeights> experts_;
  MemoryBlock block_;
  MoeWeights weights_;
};

template <class T>
MemoryBlock upload(kernels::Memory& memory, const std::vector<T>& host) {
  const auto bytes = std::ssize(host) * static_cast<int64_t>(sizeof(T));
  MemoryBlock block = MemoryBlock::create(memory, std::max<int64_t>(bytes, 256), "rows").value();
  memory.write(block.data(), host.data(), bytes);
  return block;
}

// One layer over each input in turn, `times` times; the results of the last time.
std::vector<std::vector<Bf16>> results(kernels::Ops& ops, const MoeWeights& weights,
                                       const std::vector<Input>& inputs, int times) {
  kernels::Memory& memory = ops.memory();
  std::vector<std::vector<Bf16>> results;
  for (const Input& input : inputs) {
    const MemoryBlock x = upload(memory, input.x);
    const MemoryBlock experts = upload(memory, input.experts);
    const MemoryBlock factors = upload(memory, input.weights);
    std::vector<Bf16>& y = results.emplace_back(static_cast<size_t>(input.rows * kHidden));
    const MemoryBlock out = upload(memory, y);
    const MemoryBlock streams =
        MemoryBlock::create(memory, (input.rows + 1) * 4 * kHidden * 2, "streams").value();
    for (int time = 0; time < times; ++time) {
      ops.begin_step();
      // Tells the backend how many rows the step has: graphs are for few.
      const std::vector<kernels::SourceRow> sources(static_cast<size_t>(input.rows),
                                                    {reinterpret_cast<const Bf16*>(x.data())});
      ops.spread(sources, kHidden, 4,
                 Rows<Bf16>(reinterpret_cast<Bf16*>(streams.data()), input.rows, 4 * kHidden));
      ops.moe(
          Rows<const Bf16>(reinterpret_cast<const Bf16*>(x.data()), input.rows, kHidden), weights,
          Rows<const int32_t>(reinterpret_cast<const int32_t*>(experts.data()), input.rows, kTopK),
          Rows<const float>(reinterpret_cast<const float*>(factors.data()), input.rows, kTopK),
          Rows<Bf16>(reinterpret_cast<Bf16*>(out.data()), input.rows, kHidden));
      const auto done = ops.finish();
      EXPECT_TRUE(done) << done.error().message;
      if (!done) return results;
    }
    memory.read(y.data(), out.data(), std::ssize(y) * 2);
  }
  return results;
}

kernels::StepBounds bounds_of(const MoeWeights& weights, int64_t rows) {
  kernels::StepBounds bounds;
  bounds.rows = rows;
  bounds.input_width = kHidden;
  bounds.hidden = kHidden;
  bounds.expert_width = kInner;
  bounds.experts_per_token = kTopK;
  bounds.routed_experts = kExperts;
  bounds.moe = {&weights, 1};
  return bounds;
}

TEST(CudaExpertParallel, TwoRanksHaveTheBitsOfOne) {
  const auto devices = kernels::cuda::list_devices();
  if (!devices) GTEST_SKIP() << devices.error().message;
  const auto device_count = static_cast<int32_t>(devices->size());
  const Layer layer(5);
  // Rank 0 and rank 1 of each round; the third has all choices on one rank, so more results than
  // an even share.
  constexpr int64_t kRows[][2] = {{1, 1}, {37, 5}, {300, 301}, {2048, 700}, {0, 64}, {1024, 0}};
  std::vector<std::vector<Input>> inputs(2);
  int64_t rows_max = 0;
  for (size_t round = 0; round < std::size(kRows); ++round) {
    for (size_t rank = 0; rank < 2; ++rank) {
      inputs[rank].emplace_back(kRows[round][rank], round == 2 || round == 5, 10 * round + rank);
      rows_max = std::max(rows_max, kRows[round][rank]);
    }
  }
  std::vector<std::vector<std::vector<Bf16>>> alone(2);
  {
    const auto ops = kernels::cuda::make_cuda_ops(0).value();
    const PlacedLayer placed(*ops, layer, 0, kExperts);
    ASSERT_TRUE(ops->reserve(bounds_of(placed.weights(), rows_max)));
    for (size_t rank = 0; rank < 2; ++rank) {
      alone[rank] = results(*ops, placed.weights(), inputs[rank], 1);
    }
  }
  LocalRanks group(2);
  std::vector<std::vector<std::vector<Bf16>>> together(2);
  {
    std::vector<std::jthread> threads;
    for (int32_t rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        const auto self = group.join(rank);
        const int32_t device = rank % device_count;
        const auto inner = kernels::cuda::make_cuda_ops(device).value();
        if (device_count > 1) {
          const auto reached = kernels::cuda::reach_device(1 - device);
          ASSERT_TRUE(reached) << reached.error().message;
        }
        const auto ops = ExpertParallelOps::create(*inner, *self, kExperts).value();
        const PlacedLayer placed(*inner, layer, ops->spread().first(), ops->spread().each);
        ASSERT_TRUE(ops->reserve(bounds_of(placed.weights(), rows_max)));
        together[static_cast<size_t>(rank)] =
            results(*ops, placed.weights(), inputs[static_cast<size_t>(rank)], 4);
      });
    }
  }
  for (size_t rank = 0; rank < 2; ++rank) {
    ASSERT_EQ(together[rank].size(), alone[rank].size());
    for (size_t round = 0; round < alone[rank].size(); ++round) {
      const auto& ours = together[rank][round];
      const auto& theirs = alone[rank][round];
      ASSERT_EQ(ours.size(), theirs.size());
      EXPECT_EQ(std::memcmp(ours.data(), theirs.data(), ours.size() * 2), 0)
          << "rank " << rank << ", " << kRows[round][rank] << " rows";
      // A test that cannot fail would compare zeros.
      const bool some = std::ranges::any_of(ours, [](Bf16 value) { return value.bits != 0; });
      EXPECT_EQ(some, kRows[round][rank] > 0);
    }
  }
}

}  // namespace
}  // namespace galley::cluster
