// Graphs that take over each other: what the kernels then write is what they write launched one by
// one, in whatever clusters the list before had them.
//
// Skipped without a usable device.
#include "kernels/cuda/graph_cache.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/expert_plan.h"
#include "kernels/cuda/step_lane.h"

namespace galley::kernels::cuda {
namespace {

constexpr int32_t kExperts = 12;
constexpr int64_t kChoicesMax = 8000;

// A plan's one launch has a cluster of eight blocks where there are many choices, else none.
void plan(Stream stream, Rows<const int32_t> experts, const float* weights, int32_t* place,
          float* row_weight, TokenBlock* blocks, PlanTotals* totals) {
  plan_experts(stream, experts.data, weights, experts.rows, kExperts, 8,
               {.place = place, .row_weight = row_weight, .blocks = blocks, .totals = totals});
}

class CudaGraphCache : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto device = open_device(0); !device) GTEST_SKIP() << device.error().message;
    streams_ = StepStreams::create().value();
    memory_ = make_device_memory(streams_.kernels, [] {});
    std::vector<int32_t> chosen(kChoicesMax);
    for (size_t i = 0; i < chosen.size(); ++i) chosen[i] = static_cast<int32_t>(i * i % 11);
    chosen_ = chosen;
    ids_ = block(kChoicesMax * 4);
    memory_->write(ids_.data(), chosen.data(), ids_.bytes());
    factors_ = block(kChoicesMax * 4);
    place_ = block(kChoicesMax * 4);
    const int64_t places = plan_places(kChoicesMax, kExperts);
    row_weight_ = block((places + 256) * 4);
    blocks_ =
        block(plan_blocks(kChoicesMax, kExperts, 8) * static_cast<int64_t>(sizeof(TokenBlock)));
    totals_ = block(sizeof(PlanTotals));
  }
  void TearDown() override {
    if (memory_ == nullptr) return;
    cudaStreamSynchronize(streams_.kernels);
    cudaStreamDestroy(streams_.copies);
    cudaStreamDestroy(streams_.kernels);
  }

  MemoryBlock block(int64_t bytes) {
    return MemoryBlock::create(*memory_, bytes, "a test").value();
  }

  // A list of `times` plans of the first `choices`, run; then the places it left.
  void run(GraphCache& graphs, int64_t choices, int times = 1) {
    SCOPED_TRACE(std::to_string(choices) + " choices, " + std::to_string(times) + " times");
    std::vector<int32_t> ours(kChoicesMax, -7);
    memory_->write(place_.data(), ours.data(), place_.bytes());
    CommandList list(1 << 16);
    for (int i = 0; i < times; ++i) {
      list.add_first(
          plan, Rows<const int32_t>(reinterpret_cast<const int32_t*>(ids_.data()), choices, 1),
          reinterpret_cast<const float*>(factors_.data()),
          reinterpret_cast<int32_t*>(place_.data()), reinterpret_cast<float*>(row_weight_.data()),
          reinterpret_cast<TokenBlock*>(blocks_.data()),
          reinterpret_cast<PlanTotals*>(totals_.data()));
    }
    ASSERT_TRUE(graphs.run(list, streams_.kernels));
    const auto ended = cudaStreamSynchronize(streams_.kernels);
    ASSERT_EQ(ended, cudaSuccess) << cudaGetErrorString(ended);
    memory_->read(ours.data(), place_.data(), place_.bytes());
    std::vector<int32_t> next(kExperts);
    for (int32_t e = 0, begin = 0; e < kExperts; ++e) {
      next[static_cast<size_t>(e)] = begin;
      const auto count = std::count(chosen_.begin(), chosen_.begin() + choices, e);
      begin += static_cast<int32_t>((count + 7) / 8 * 8);
    }
    for (int64_t i = 0; i < kChoicesMax; ++i) {
      const auto at = static_cast<size_t>(i);
      const int32_t expected = i < choices ? next[static_cast<size_t>(chosen_[at])]++ : -7;
      ASSERT_EQ(ours[at], expected) << "choice " << i;
    }
  }

  StepStreams streams_;
  std::unique_ptr<Memory> memory_;
  std::vector<int32_t> chosen_;
  MemoryBlock ids_, factors_, place_, row_weight_, blocks_, totals_;
};

TEST_F(CudaGraphCache, OnlyGraphsOfTheSameClustersAreTakenOver) {
  GraphCache graphs(8);
  const auto leave_alone = [&] {
    for (int i = 0; i < 4; ++i) run(graphs, 100, 2);
  };
  for (int i = 0; i < 3; ++i) run(graphs, 60);
  EXPECT_EQ(graphs.replay_count(), 2);
  leave_alone();
  EXPECT_EQ(graphs.takeover_count(), 0);
  run(graphs, 7000);  // a cluster, where the graph that is free has none
  EXPECT_EQ(graphs.takeover_count(), 0);
  leave_alone();
  run(graphs, 200);  // takes over the one of 60
  EXPECT_EQ(graphs.takeover_count(), 1);
  leave_alone();
  run(graphs, 6000);  // and the one of 7,000
  EXPECT_EQ(graphs.takeover_count(), 2);
  for (int i = 0; i < 2; ++i) {
    leave_alone();
    run(graphs, 60);
    run(graphs, 7000);
  }
}

}  // namespace
}  // namespace galley::kernels::cuda
