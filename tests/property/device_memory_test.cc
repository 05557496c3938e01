// Weights, cache and workspace in a memory that is not the host's: the bits of a step are those on
// the host, what was planned is what is taken, and what does not fit takes nothing at all.
//
// The device is a pretended one, so that kernels of the host compute in it.
#include <gtest/gtest.h>

#include <numeric>

#include "driver.h"
#include "engine/generator.h"
#include "engine/local_executor.h"
#include "kernels/pretended_device.h"
#include "model/device_room.h"
#include "verify/forwarding_ops.h"

namespace galley::testing {
namespace {

constexpr int64_t kPlenty = int64_t{4} << 30;

// Kernels of the host in a device's memory.
class DeviceOps : public verify::ForwardingOps {
 public:
  DeviceOps(kernels::Ops& inner, kernels::Memory& memory) : ForwardingOps(inner), memory_(memory) {}
  kernels::Memory& memory() override { return memory_; }

 private:
  kernels::Memory& memory_;
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
                          {.page_count = options().page_count, .slot_count = 3}, step, device);
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
