// Weights, cache and workspace in a memory that is not the host's: the bits of a step are those on
// the host, what was planned is what is taken, and what does not fit takes nothing at all.
//
// The device is a pretended one, so that kernels of the host compute in it.
#include <gtest/gtest.h>

#include <deque>
#include <numeric>
#include <utility>
#include <vector>

#include "driver.h"
#include "engine/generator.h"
#include "engine/local_executor.h"
#include "kernels/forwarding_ops.h"
#include "kernels/pretended_device.h"
#include "model/device_room.h"
#include "model/placed_weights.h"

namespace galley::testing {
namespace {

constexpr int64_t kPlenty = int64_t{4} << 30;

// Kernels of the host in a device's memory.
class DeviceOps : public kernels::ForwardingOps {
 public:
  DeviceOps(kernels::Ops& inner, kernels::Memory& memory) : ForwardingOps(inner), memory_(memory) {}
  kernels::Memory& memory() override { return memory_; }

 private:
  kernels::Memory& memory_;
};

// A backend's own order: the stored bytes, each one more. Unfolded again where it is computed.
class PretendedFolds : public kernels::WeightFolds {
 public:
  // `misfit`: how many folds from now on one does not fit; never, if it is negative.
  explicit PretendedFolds(int misfit) : misfit_(misfit) {}

  int64_t matrix_bytes(const kernels::WeightView& weight) const override {
    const bool fits = weight.format == kernels::WeightFormat::kFp8Tile32 && !weight.folded;
    return fits ? bytes_of(weight) : 0;
  }
  int64_t experts_bytes(const kernels::MoeWeights& layer) const override {
    if (layer.experts[0].w1.folded) return 0;
    return std::ssize(layer.experts) * bytes_of(layer.experts[0]) + bytes_of(layer.shared);
  }
  void fold_matrix(const kernels::WeightView& raw, void* to) override {
    append(raw, static_cast<uint8_t*>(to));
    count();
  }
  void fold_expert(const kernels::MoeWeights& layer, int32_t expert,
                   const kernels::ExpertWeights& raw, void* to) override {
    uint8_t* at = static_cast<uint8_t*>(to) + expert * bytes_of(layer.experts[0]);
    for (const kernels::WeightView* view : {&raw.w1, &raw.w3, &raw.w2}) at = append(*view, at);
    if (expert == std::ssize(layer.experts)) count();
  }
  Result<kernels::FoldCounts> take_counts() override {
    return kernels::FoldCounts{.misfits = std::exchange(misfits_, 0), .rounded = 3};
  }

  // The stored form of a folded weight, whose bytes begin at `at`, and where the next one does.
  kernels::WeightView unfold(kernels::WeightView view, const uint8_t*& at) {
    std::vector<uint8_t>& bytes = unfolded_.emplace_back(at, at + bytes_of(view));
    for (uint8_t& byte : bytes) --byte;
    at += bytes_of(view);
    view.data = bytes.data();
    view.scale = bytes.data() + view.data_bytes();
    view.folded = false;
    return view;
  }
  int folds() const { return folds_; }

 private:
  static int64_t bytes_of(const kernels::WeightView& view) {
    return view.data_bytes() + view.scale_bytes();
  }
  static int64_t bytes_of(const kernels::ExpertWeights& one) {
    return bytes_of(one.w1) + bytes_of(one.w3) + bytes_of(one.w2);
  }
  static uint8_t* append(const kernels::WeightView& view, uint8_t* to) {
    const auto* codes = static_cast<const uint8_t*>(view.data);
    for (int64_t i = 0; i < view.data_bytes(); ++i) *to++ = static_cast<uint8_t>(codes[i] + 1);
    for (int64_t i = 0; i < view.scale_bytes(); ++i) {
      *to++ = static_cast<uint8_t>(view.scale[i] + 1);
    }
    return to;
  }
  void count() {
    ++folds_;
    if (misfit_-- == 0) misfits_ = 1;
  }

  int misfit_;
  int64_t misfits_ = 0;
  int folds_ = 0;
  std::deque<std::vector<uint8_t>> unfolded_;
};

class FoldingOps : public DeviceOps {
 public:
  FoldingOps(kernels::Ops& inner, kernels::Memory& memory, int misfit)
      : DeviceOps(inner, memory), folds_(misfit) {}
  PretendedFolds* folds() override { return &folds_; }

  void linear(kernels::Rows<const kernels::Bf16> x,
              std::span<const kernels::Product> products) override {
    std::vector<kernels::Product> list(products.begin(), products.end());
    for (kernels::Product& product : list) {
      if (!product.weight.folded) continue;
      EXPECT_TRUE(product.quantise_input);
      const auto* at = static_cast<const uint8_t*>(product.weight.data);
      product.weight = folds_.unfold(product.weight, at);
      ++folded_products;
    }
    inner().linear(x, list);
  }
  void norm_linear(kernels::Rows<kernels::Bf16> x, const kernels::Bf16* weight, float eps,
                   std::span<const kernels::Product> products) override {
    Ops::norm_linear(x, weight, eps, products);
  }
  void moe(kernels::Rows<const kernels::Bf16> x, const kernels::MoeWeights& weights,
           kernels::Rows<const int32_t> experts, kernels::Rows<const float> expert_weights,
           kernels::Rows<kernels::Bf16> y) override {
    if (!weights.experts[0].w1.folded) return inner().moe(x, weights, experts, expert_weights, y);
    const auto* at = static_cast<const uint8_t*>(weights.experts[0].w1.data);
    std::vector<kernels::ExpertWeights> list(weights.experts.begin(), weights.experts.end());
    list.push_back(weights.shared);
    for (kernels::ExpertWeights& one : list) {
      EXPECT_EQ(one.w2.data, weights.experts[0].w1.data);
      for (kernels::WeightView* view : {&one.w1, &one.w3, &one.w2}) {
        *view = folds_.unfold(*view, at);
      }
    }
    ++folded_layers;
    const kernels::MoeWeights raw{.experts = std::span(list).first(list.size() - 1),
                                  .shared = list.back(),
                                  .swiglu_limit = weights.swiglu_limit};
    inner().moe(x, raw, experts, expert_weights, y);
  }

  int folded_products = 0;
  int folded_layers = 0;

 private:
  PretendedFolds folds_;
};

class DeviceMemory : public ::testing::Test {
 protected:
  DeviceMemory() : model_(golden_model("g2-micro-full")), ops_(make_ops("plain", pool_)) {}

  std::vector<float> prefill(kernels::Ops& ops) {
    auto cache = model::KvCache::create(model_->config(), {.page_tokens = 32}, 4, 1, ops.memory());
    EXPECT_TRUE(cache);
    auto step = model::Step::create(*model_, **cache, ops, {.rows_max = 100, .sequences_max = 1});
    EXPECT_TRUE(step) << step.error().message;
    std::vector<int32_t> tokens(100);
    std::iota(tokens.begin(), tokens.end(), 5);
    const std::vector<int32_t> pages = {2, 0, 3, 1};
    model::SequencePlan plan;
    plan.tokens = tokens;
    plan.page_table = pages;
    plan.logits_begin = 99;
    const auto result = (*step)->run({&plan, 1});
    EXPECT_TRUE(result) << result.error().message;
    return {result->logits.data, result->logits.data + result->logits.cols};
  }

  engine::GeneratorOptions options() const {
    return engine::generator_options(model_->config(), 3, 64, 256);
  }

  ThreadPool pool_{2};
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<kernels::Ops> ops_;
};

TEST_F(DeviceMemory, TheBitsAreTheHosts) {
  kernels::PretendedDevice device(kPlenty);
  DeviceOps ops(*ops_, device);
  EXPECT_EQ(prefill(ops), prefill(*ops_));
}

TEST_F(DeviceMemory, FoldedWeightsTakeThePlaceOfStoredOnes) {
  kernels::PretendedDevice plain_device(kPlenty);
  DeviceOps stored(*ops_, plain_device);
  kernels::PretendedDevice device(kPlenty);
  FoldingOps folding(*ops_, device, -1);
  EXPECT_EQ(prefill(folding), prefill(*ops_));
  EXPECT_EQ(folding.folded_layers, model_->config().layers);
  EXPECT_GT(folding.folded_products, 4 * model_->config().layers);
  // No byte lies there twice: the sizes are the same but for what is rounded up to whole blocks.
  const int64_t folded_bytes = model::placed_bytes(*model_, folding, {});
  const int64_t stored_bytes = model::placed_bytes(*model_, stored, {});
  EXPECT_LT(folded_bytes, stored_bytes + stored_bytes / 4);  // room for what is folded next
}

TEST_F(DeviceMemory, WhatDoesNotFoldStaysAsStored) {
  // The first, one in the middle, and the last one.
  kernels::PretendedDevice all(kPlenty);
  FoldingOps folding(*ops_, all, -1);
  const std::vector<float> expected = prefill(*ops_);
  EXPECT_EQ(prefill(folding), expected);
  const int folds = folding.folds()->folds();
  ASSERT_GT(folds, 10);
  for (int misfit = 0; misfit < folds; misfit += std::max(1, folds / 7)) {
    kernels::PretendedDevice device(kPlenty);
    FoldingOps ops(*ops_, device, misfit);
    EXPECT_EQ(prefill(ops), expected) << misfit;
    EXPECT_EQ(ops.folded_layers + ops.folded_products,
              folding.folded_layers + folding.folded_products - 1)
        << misfit;
  }
}

TEST_F(DeviceMemory, WhatWasPlannedIsTaken) {
  kernels::PretendedDevice device(kPlenty);
  DeviceOps ops(*ops_, device);
  model::StepOptions step;
  step.rows_max = 64;
  step.sequences_max = 3;
  step.logit_rows_max = 3;
  step.positions_max = 256;
  const auto needs =
      model::device_needs(*model_, engine::kv_options(model_->config(), options()),
                          {.page_count = options().page_count, .slot_count = 3}, step, ops);
  ASSERT_TRUE(needs);
  int64_t uploaded = 0;
  engine::GeneratorOptions with = options();
  with.on_upload = [&](int64_t done, int64_t /*total*/) {
    uploaded = done;
    return true;
  };
  const auto executor = engine::LocalExecutor::create(*model_, ops, with);
  ASSERT_TRUE(executor) << executor.error().message;
  EXPECT_EQ(device.bytes(), needs->total());
  EXPECT_GT(uploaded, 0);
  EXPECT_LE(uploaded, needs->weights);
}

TEST_F(DeviceMemory, ARankPlacesItsOwnExpertsAlone) {
  kernels::PretendedDevice device(kPlenty);
  DeviceOps ops(*ops_, device);
  const int32_t experts = model_->config().routed_experts;
  const int32_t half = experts / 2;
  // Every tensor begins at a multiple of 256 bytes.
  int64_t expert_bytes = 0;
  const auto add = [&](int64_t bytes) { expert_bytes += (bytes + 255) / 256 * 256; };
  for (const model::LayerWeights& layer : model_->weights().views().layers) {
    for (const kernels::ExpertWeights& one : layer.experts) {
      for (const kernels::WeightView& view : {one.w1, one.w3, one.w2}) {
        add(view.data_bytes());
        add(view.scale_bytes());
      }
    }
  }
  const int64_t all = model::placed_bytes(*model_, ops, {});
  EXPECT_GT(expert_bytes, 0);
  EXPECT_EQ(model::placed_bytes(*model_, ops, {0, half}), all - expert_bytes / 2);
  EXPECT_EQ(model::placed_bytes(*model_, ops, {half, half}), all - expert_bytes / 2);
  model::StepOptions options;
  options.expert_first = half;
  options.expert_count = half + 1;
  const auto cache = model::KvCache::create(model_->config(), {}, 1, 1, device).value();
  EXPECT_FALSE(model::Step::create(*model_, *cache, ops, options));
}

TEST_F(DeviceMemory, WhatDoesNotFitTakesNothing) {
  kernels::PretendedDevice device(int64_t{257} << 20);  // the driver's part, and a little
  DeviceOps ops(*ops_, device);
  const auto executor = engine::LocalExecutor::create(*model_, ops, options());
  ASSERT_FALSE(executor);
  EXPECT_EQ(executor.error().code, ErrorCode::kExhausted);
  EXPECT_EQ(device.allocations(), 0);
}

TEST_F(DeviceMemory, AnUploadCanBeStopped) {
  kernels::PretendedDevice device(kPlenty);
  DeviceOps ops(*ops_, device);
  engine::GeneratorOptions with = options();
  with.on_upload = [](int64_t, int64_t) { return false; };
  const auto executor = engine::LocalExecutor::create(*model_, ops, with);
  ASSERT_FALSE(executor);
  EXPECT_EQ(executor.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(device.bytes(), 0);
}

}  // namespace
}  // namespace galley::testing
