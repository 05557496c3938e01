// The smallest fleet of the released model, from a checkpoint of full size whose tensors are
// holes: 4 H200 or 8 H100 with the Engram tables in host memory, by arithmetic that closes.
#include "model/fleet.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "model/checkpoint.h"
#include "model/released_config.h"
#include "model/sparse_checkpoint.h"

namespace galley::model {
namespace {

constexpr FleetLoad kLoad = {.context = 65'536, .sequences = 64};

const CardKind& card(const std::string& name) {
  for (const CardKind& kind : known_cards()) {
    if (kind.name == name) return kind;
  }
  return known_cards().front();
}

class ReleasedFleet : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = std::filesystem::path(testing::TempDir()) / "galley_fleet_test";
    std::filesystem::create_directories(directory_);
    const auto plan = CheckpointPlan::of_config(released_config_json(), 48);
    ASSERT_TRUE(plan);
    if (!plan->write(directory_)) GTEST_SKIP() << "no room for sparse files";
    const auto checkpoint = Checkpoint::open(directory_);
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    config_ = checkpoint->config();
    size_ = footprint(config_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::filesystem::path directory_;
  Config config_;
  Footprint size_;
};

TEST_F(ReleasedFleet, IsFourH200OrEightH100) {
  const auto h200 = smallest_fleet(config_, size_, card("H200"), kLoad);
  ASSERT_TRUE(h200);
  EXPECT_EQ(h200->cards, 4);
  EXPECT_EQ(smallest_fleet(config_, size_, card("H100"), kLoad)->cards, 8);
  EXPECT_EQ(h200->expert_bytes, 288'777'830'400 / 4);
  EXPECT_EQ(h200->cache_bytes, 16 * (2'703'360 + 3 * 4096 + int64_t{65'536} * 890));
  EXPECT_EQ(h200->host_bytes, size_.table_bytes);
  // Every byte of the checkpoint is somewhere.
  EXPECT_EQ(4 * h200->expert_bytes + h200->other_bytes + h200->host_bytes, size_.bytes);
  EXPECT_GT(h200->half_as_many_bytes, h200->card.memory_bytes);
  EXPECT_NEAR(h200->load_s, static_cast<double>(h200->expert_bytes + h200->other_bytes) / 55e9,
              1e-9);
}

TEST_F(ReleasedFleet, GrowsWithTheCache) {
  FleetLoad load = {.context = 1'048'576, .sequences = 512};  // 478 GB of cache
  const auto more = smallest_fleet(config_, size_, card("H200"), load);
  ASSERT_TRUE(more);
  EXPECT_EQ(more->cards, 8);
  load.sequences = 1'000'000;
  EXPECT_FALSE(smallest_fleet(config_, size_, card("H200"), load));
}

TEST_F(ReleasedFleet, IsSaidInOneLine) {
  const auto fleet = smallest_fleet(config_, size_, card("H200"), kLoad);
  ASSERT_TRUE(fleet);
  const std::string line = fleet_line(*fleet, kLoad);
  EXPECT_NE(line.find("4 x H200: each holds 72.19 GB of experts"), std::string::npos) << line;
  EXPECT_NE(line.find("(2 would need "), std::string::npos) << line;
  EXPECT_EQ(line.find('\n'), std::string::npos);
}

}  // namespace
}  // namespace galley::model
