// The floor of a step at the released shape against the numbers of spec/model.md 9, which were
// computed apart; and what replay, ranks and peaks do to it.
#include "tools/step_work.h"

#include <gtest/gtest.h>

#include "model/released_config.h"

namespace galley::tools {
namespace {

const model::Config& released() {
  static const model::Config config = *model::parse_config(model::released_config_json());
  return config;
}
const StepWork& step_work() {
  static const StepWork work(released());
  return work;
}

Work decode(int64_t sequences, int64_t context) {
  return step_work().of(
      {.rows = sequences,
       .sequences = sequences,
       .logit_rows = sequences,
       .first_position = context - 1,
       .experts_touched = released().layers *
                          StepWork::distinct_experts(released(), static_cast<double>(sequences))});
}

const PartWork& part(const Work& work, std::string_view name) {
  for (const PartWork& one : work.parts) {
    if (one.name == name) return one;
  }
  return work.parts.front();
}

TEST(StepWork, DecodeReadsWhatTheSpecificationCounts) {
  const Work work = decode(1, 4096);
  EXPECT_NEAR(part(work, "routed experts").bytes, 4.512e9, 1e6);
  EXPECT_NEAR(part(work, "head").bytes, 1.324e9, 1e6);
  // Attention 5.070 and indexers and compressors 0.082; shared 1.417, Engram 0.315, router 0.157,
  // hyper-connections 0.157.
  EXPECT_NEAR(part(work, "attention projections").bytes, 5.152e9, 2e6);
  EXPECT_NEAR(part(work, "shared expert, router, hyper-connections, Engram").bytes, 2.046e9, 2e6);
  EXPECT_NEAR(part(work, "attention core").bytes, 8.3e6, 1e5);
  EXPECT_NEAR(part(work, "indexer").bytes, 1.8e6, 1e5);
  EXPECT_NEAR(part(decode(1, 65'536), "indexer").bytes, 15.6e6, 1e5);
  EXPECT_NEAR(step_work().expert_bytes(), 18'800'640, 0.5);
}

TEST(StepWork, DecodeComputesWhatTheSpecificationCounts) {
  for (const auto& [context, core, indexer] :
       {std::tuple{4096, 3.22e9, 0.22e9}, {65'536, 3.22e9, 1.88e9}, {1'048'576, 3.22e9, 22.01e9}}) {
    const Work work = decode(1, context);
    EXPECT_NEAR(part(work, "attention core").bf16_operations, core, 1e7) << context;
    EXPECT_NEAR(part(work, "indexer").fp8_operations, indexer, 1e7) << context;
    EXPECT_NEAR(work.operations() - core - indexer, 32.26e9, 5e7) << context;
  }
  // Of the products only wo_a, the head, the router and the like are no fp8.
  EXPECT_GT(decode(1, 4096).fp8_operations(), 26e9);
}

TEST(StepWork, PrefillWithReplayIsHalfTheWork) {
  for (const auto& [prompt, all] : {std::pair{int64_t{4096}, 17.7e9}, {16'384, 17.6e9}}) {
    const Work work = step_work().of({.rows = prompt, .tail_rows = 128});
    EXPECT_NEAR(work.operations() / static_cast<double>(prompt), all, 0.15e9) << prompt;
  }
  const Work whole = step_work().of({.rows = 4096});
  EXPECT_NEAR(whole.operations() / 4096, 34.0e9, 0.3e9);
  // A chunk that is not the last one has no tail: layer 20's keys are its last product.
  const Work chunk = step_work().of({.rows = 4096, .tail_rows = 0});
  EXPECT_EQ(part(chunk, "head").bytes, 0);
  EXPECT_NEAR(part(chunk, "attention projections").bytes, 5.152e9 / 2, 0.1e9);
}

TEST(StepWork, SequencesShareWeights) {
  const Work one = decode(1, 4096);
  const Work many = decode(64, 4096);
  EXPECT_EQ(part(many, "attention projections").bytes, part(one, "attention projections").bytes);
  EXPECT_NEAR(part(many, "attention core").bytes, 64 * part(one, "attention core").bytes, 1);
  EXPECT_NEAR(many.operations(), 64 * one.operations(), 1e6);
}

TEST(StepWork, TheFloorIsTheLarger) {
  Work work;
  work.parts = {{.name = "a", .bytes = 4e9, .fp8_operations = 1e12, .bf16_operations = 0},
                {.name = "b", .bytes = 0, .fp8_operations = 0, .bf16_operations = 1e12}};
  const Floor floor = floor_of(
      work, {.bytes_per_s = 4e12, .fp8_operations_per_s = 1e15, .bf16_operations_per_s = 0.5e15});
  EXPECT_DOUBLE_EQ(floor.bytes_s, 1e-3);
  EXPECT_DOUBLE_EQ(floor.operations_s, 3e-3);
  EXPECT_DOUBLE_EQ(floor.s(), 3e-3);
  EXPECT_EQ(floor_of(work, {}).s(), 0);
}

}  // namespace
}  // namespace galley::tools
