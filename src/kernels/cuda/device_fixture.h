// Tests that call a device's operations themselves, in its own memory, as a step does: several
// before they wait for any.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/ops_test_cases.h"

namespace galley::kernels {

// Skipped without a usable device.
class DeviceFixture : public testing::Test {
 protected:
  void SetUp() override {
    auto made = cuda::make_cuda_ops(0);
    if (!made) GTEST_SKIP() << made.error().message;
    ops_ = *std::move(made);
  }

  // Memory of the device, until the test ends.
  std::byte* room(int64_t bytes) {
    blocks_.push_back(MemoryBlock::create(ops_->memory(), bytes, "a test").value());
    return blocks_.back().data();
  }
  template <class T>
  T* placed(const std::vector<T>& host) {
    const auto bytes = std::ssize(host) * static_cast<int64_t>(sizeof(T));
    std::byte* at = room(bytes);
    ops_->memory().write(at, host.data(), bytes);
    return reinterpret_cast<T*>(at);
  }
  WeightView placed(const StoredWeight& stored) {
    WeightView raw = stored.view();
    const auto* codes = static_cast<const uint8_t*>(raw.data);
    raw.data = placed(std::vector<uint8_t>(codes, codes + raw.data_bytes()));
    if (raw.scale != nullptr) {
      raw.scale = placed(std::vector<uint8_t>(raw.scale, raw.scale + raw.scale_bytes()));
    }
    return raw;
  }
  // As a step's weights are.
  WeightView folded(const StoredWeight& stored) {
    const WeightView raw = placed(stored);
    std::byte* to = room(ops_->folds()->matrix_bytes(raw));
    ops_->folds()->fold_matrix(raw, to);
    EXPECT_EQ(ops_->folds()->take_counts().value().misfits, 0);
    return folded_view(raw, to);
  }

  std::unique_ptr<Ops> ops_;

 private:
  std::vector<MemoryBlock> blocks_;
};

}  // namespace galley::kernels
