// Shows the released model's sizes as spec/model.md 8.1 and 9 compute them.
#include "model/footprint.h"

#include <gtest/gtest.h>

#include "model/released_config.h"

namespace galley::model {
namespace {

Config released() { return *parse_config(released_config_json()); }

TEST(Footprint, CountsTheReleasedModel) {
  const Footprint size = footprint(released());
  EXPECT_EQ(size.tensors, 96'085);
  EXPECT_EQ(size.bytes, 510'286'023'000);
  EXPECT_EQ(size.part(Part::kEngramTables).parameters, 196'613'849'600);
  EXPECT_EQ(size.part(Part::kRoutedExperts).bytes, 288'777'830'400);
  // 763.20 B in all, 14.23 B of it DSpark and 0.49 B vision.
  EXPECT_NEAR(static_cast<double>(size.parameters), 763.20e9, 1e7);
  EXPECT_NEAR(static_cast<double>(size.part(Part::kDspark).parameters), 14.23e9, 5e6);
  EXPECT_NEAR(static_cast<double>(size.part(Part::kVision).parameters), 0.485e9, 1e6);
  EXPECT_NEAR(static_cast<double>(size.active_parameters), 16.13e9, 5e6);
  // "Other resident weights (no tables)" without draft stages and tower.
  EXPECT_GT(size.always_bytes, 0);
}

TEST(Footprint, CountsTheCache) {
  const Footprint size = footprint(released());
  EXPECT_EQ(size.kv_bytes_per_token, 890);
  EXPECT_EQ(size.kv_bytes_per_sequence, 2'703'360 + 3 * 4096);
}

TEST(Footprint, SaysWhatFits) {
  const Config config = released();
  const Footprint size = footprint(config);
  const Fit none = fit(config, size, int64_t{4} << 30);
  EXPECT_FALSE(none.always);
  EXPECT_EQ(none.context_paged, 0);
  // The weights every token needs, one sequence, and 100,000 tokens.
  const int64_t memory = size.always_bytes + size.kv_bytes_per_sequence + 890 * 100'000;
  const Fit paged = fit(config, size, memory);
  EXPECT_TRUE(paged.always);
  EXPECT_FALSE(paged.weights);
  EXPECT_EQ(paged.context_paged, 100'000);
  EXPECT_EQ(fit(config, size, memory - 1).context_paged, 99'999);
  const Fit all = fit(config, size, int64_t{1} << 40);
  EXPECT_TRUE(all.weights && all.tables);
  EXPECT_EQ(all.context_resident, 1'048'576);
}

}  // namespace
}  // namespace galley::model
