// What doctor says that serve takes is what an engine with the same settings holds, and its
// advice fits.
#include "tools/serving_needs.h"

#include <gtest/gtest.h>

#include "model/released_config.h"

namespace galley::tools {
namespace {

TEST(ServingNeeds, TheReleasedModelAsServed) {
  const model::Config config = *model::parse_config(model::released_config_json());
  EngineSettings settings;
  settings.sequences = 32;
  settings.prefix_cache = "bounded";
  const ServingNeeds needs = *serving_needs(config, settings, 4096);
  EXPECT_EQ(needs.context, kDefaultContext);
  EXPECT_EQ(needs.page_bytes, 32 * (16384 / 128) * 113'920);
  // Whole blocks of a page's size, at most what was asked for.
  EXPECT_LE(needs.snapshot_bytes, int64_t{256} << 20);
  EXPECT_GT(needs.snapshot_bytes, (int64_t{256} << 20) - 113'920);
  EXPECT_GT(needs.slot_bytes, 32 * model::footprint(config).kv_bytes_per_sequence);
  EXPECT_GT(needs.workspace_bytes, int64_t{32} * config.vocab_size * 4);
  EXPECT_EQ(needs.connection_bytes, int64_t{4096} * (160 << 10));

  settings.snapshot_memory_mib = 0;
  const ServingNeeds none = *serving_needs(config, settings, 1);
  EXPECT_EQ(none.snapshot_bytes, 0);
  EXPECT_LT(none.slot_bytes, needs.slot_bytes);  // rings need not reach back a page
  settings.context = config.positions_max + 1;
  EXPECT_FALSE(serving_needs(config, settings, 1));
}

// The engine that serve builds has just this cache and workspace.
TEST(ServingNeeds, IsWhatTheEngineHolds) {
  const auto loaded = LoadedModel::open({.model = GALLEY_SOURCE_DIR "/models/nano", .threads = 1});
  ASSERT_TRUE(loaded) << loaded.error().message;
  const model::Config& config = (*loaded)->config();
  EngineSettings settings;
  settings.sequences = 3;
  settings.context = 512;
  settings.prefix_cache = "exact";
  settings.snapshot_memory_mib = 4;
  const engine::GeneratorOptions options = *engine_options(config, settings);
  const ServingNeeds needs = *serving_needs(config, settings, 1);
  const model::KvOptions kv = engine::kv_options(config, options);
  const auto cache = *model::KvCache::create(config, kv, options.page_count, options.sequences_max,
                                             kernels::host_memory());
  const model::StepOptions step_of = engine::step_options(kv, options);
  EXPECT_EQ(step_of.held_rows_max, options.window);
  const auto step = *model::Step::create((*loaded)->model(), *cache, (*loaded)->ops(), step_of);
  EXPECT_EQ(needs.workspace_bytes, step->workspace_bytes());
  EXPECT_EQ(needs.page_bytes, cache->page_count() * cache->layout().page_stride);
  EXPECT_EQ(needs.slot_bytes, cache->slot_count() * cache->layout().slot_bytes);
}

TEST(ServingNeeds, AdviceFits) {
  ServingNeeds needs;
  needs.sequences = 10;
  needs.page_bytes = 900;
  needs.slot_bytes = 100;
  EXPECT_EQ(sequences_that_fit(needs, 1000, 0), 10);
  EXPECT_EQ(sequences_that_fit(needs, 10'000, 0), 10);
  EXPECT_EQ(sequences_that_fit(needs, 999, 0), 9);
  EXPECT_EQ(sequences_that_fit(needs, 999, 500), 4);
  EXPECT_EQ(sequences_that_fit(needs, 99, 0), 0);
  EXPECT_EQ(sequences_that_fit(needs, 100, 200), 0);
}

}  // namespace
}  // namespace galley::tools
