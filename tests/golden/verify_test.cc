// Shows that verification bites: sound kernels pass on every golden directory,
// and each deliberate fault is found at the layers that have it and at no other.
#include "verify/verify.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "base/file.h"
#include "base/thread_pool.h"
#include "defective_ops.h"
#include "edited_golden.h"
#include "kernels/fast/fast_ops.h"
#include "kernels/plain/plain_ops.h"
#include "verify/context.h"

namespace galley::golden {
namespace {

const std::string kRoot = std::string(GALLEY_SOURCE_DIR) + "/tests/golden";

ThreadPool& pool() {
  static ThreadPool instance(2);
  return instance;
}

kernels::Ops& plain() {
  static const std::unique_ptr<kernels::Ops> instance = kernels::make_plain_ops(pool());
  return *instance;
}

// Deviating checks, for messages.
std::string deviations(const verify::Report& report) {
  std::string text;
  for (const verify::Check& check : report.checks()) {
    if (check.verdict == verify::Verdict::kDeviates) text += check.subject + "; ";
  }
  return text;
}

void expect_within_limits(const std::string& directory, kernels::Ops& ops) {
  const auto report = verify::verify_directory(directory, ops);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->exit_code(), 0) << ops.name() << ": " << report->table();
}

// Every tensor of the units is compared, and none is missing.
TEST(Verify, PlainChecksAllUnits) {
  const auto report = verify::verify_directory(kRoot + "/units", plain());
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->exit_code(), 0) << report->table();
  for (const verify::Check& check : report->checks()) {
    EXPECT_EQ(check.verdict, verify::Verdict::kOk) << check.subject << ": " << check.note;
  }
}

// Without the fresh prefills of the two longest prompts, nine tenths of the time.
TEST(Verify, PlainIsWithinReferenceRounding) {
  const EditedGolden golden(kRoot + "/g1-micro-text", "plain/g1-micro-text");
  golden.put_beside(kRoot + "/tolerances.json");
  golden.drop("expected", {"len301.reprefill_logits", "len700.reprefill_logits"});
  expect_within_limits(golden.directory(), plain());
  expect_within_limits(kRoot + "/g2-micro-full", plain());
}

const std::vector<std::string> kLongCases = {"len100", "len101", "len301", "len700"};

class EveryIsa : public testing::TestWithParam<kernels::Isa> {};

TEST_P(EveryIsa, FastIsWithinProduction) {
  if (!kernels::machine_has(GetParam())) {
    GTEST_SKIP() << "this machine lacks " << kernels::isa_name(GetParam());
  }
  const auto ops = kernels::make_fast_ops(pool(), GetParam());
  expect_within_limits(kRoot + "/units", *ops);
  expect_within_limits(kRoot + "/g1-micro-text", *ops);
  expect_within_limits(kRoot + "/g2-micro-full", *ops);
}
INSTANTIATE_TEST_SUITE_P(Verify, EveryIsa,
                         testing::Values(kernels::Isa::kAvx512Bf16, kernels::Isa::kAvx2),
                         [](const auto& one) { return std::string(kernels::isa_name(one.param)); });

struct FaultCase {
  const char* name;
  Fault fault;
  std::set<int32_t> layers;  // that must deviate, and no other
};

const std::set<int32_t> kEveryLayer = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};

class EveryFault : public testing::TestWithParam<FaultCase> {};

// g1: layers 0-1 window only, 2 and 4 Full (ratio 2), 6 Full (ratio 1) and candidate source,
// 8 reindexes, the others reuse; Engram at 1 and 4.
TEST_P(EveryFault, IsFoundAtItsLayers) {
  const FaultCase& fault = GetParam();
  DefectiveOps ops(plain(), fault.fault);
  const auto golden = verify::open_golden(kRoot + "/g1-micro-text");
  ASSERT_TRUE(golden);
  const auto model = model::Model::open(golden->checkpoint());
  ASSERT_TRUE(model) << model.error().message;
  const auto limits = verify::find_tolerances(kRoot + "/tolerances.json", {golden->name},
                                              verify::limits_kind(ops.name()));
  ASSERT_TRUE(limits && *limits);
  const auto runner = verify::Runner::create(**model, ops, 71);
  ASSERT_TRUE(runner) << runner.error().message;
  verify::Report report(golden->directory, "plain", (*limits)->source);
  verify::Context context{*golden, **model, **runner, *limits, report};
  const auto checked = verify::check_layers_alone(context);
  ASSERT_TRUE(checked) << checked.error().message;

  std::set<int32_t> layers;
  for (const verify::Check& check : report.checks()) {
    if (check.verdict == verify::Verdict::kDeviates) layers.insert(check.layer.value_or(-1));
  }
  EXPECT_EQ(layers, fault.layers) << deviations(report);
  if (!fault.layers.empty()) {
    EXPECT_EQ(report.exit_code(), 1);
    EXPECT_EQ(report.first_deviating_layer(), *fault.layers.begin());
  }
}
INSTANTIATE_TEST_SUITE_P(
    Verify, EveryFault,
    testing::Values(FaultCase{"None", Fault::kNone, {}},
                    FaultCase{"MixUntransposed", Fault::kMixUntransposed, kEveryLayer},
                    FaultCase{"MixTooLarge", Fault::kMixTooLarge, kEveryLayer},
                    FaultCase{"NoInverseRotation", Fault::kNoInverseRotation, kEveryLayer},
                    FaultCase{"SinkIgnored", Fault::kSinkIgnored, kEveryLayer},
                    FaultCase{"WindowKeysUnrotated", Fault::kWindowKeysUnrotated, kEveryLayer},
                    FaultCase{"EntryPositionOfNext", Fault::kEntryPositionOfNext, {2, 4, 6}},
                    FaultCase{"InputsNotQuantised", Fault::kInputsNotQuantised, kEveryLayer},
                    FaultCase{"ClampIgnored", Fault::kClampIgnored, kEveryLayer},
                    FaultCase{"RouterBiasIgnored", Fault::kRouterBiasIgnored, kEveryLayer},
                    FaultCase{"EngramSkipped", Fault::kEngramSkipped, {1, 4}},
                    FaultCase{"EngramSignLost", Fault::kEngramSignLost, {1, 4}},
                    FaultCase{"IndexWeightsPositive", Fault::kIndexWeightsPositive, {2, 4, 6, 8}},
                    FaultCase{"IndexSeesOneLess", Fault::kIndexSeesOneLess, {2, 4, 6, 8}},
                    FaultCase{"PoolIgnored", Fault::kPoolIgnored, {8}}),
    [](const auto& one) { return one.param.name; });

// g2 stores no streams, so nothing feeds its layers after the first: the sites of the whole run
// point at the layer.
TEST(Verify, AFaultShowsInTheWholeRunToo) {
  DefectiveOps ops(plain(), Fault::kEntryPositionOfNext);
  const EditedGolden golden(kRoot + "/g2-micro-full", "fault/g2-micro-full");
  golden.put_beside(kRoot + "/tolerances.json");
  golden.drop_cases({"len301", "len700"});
  golden.drop("expected", {"len101.reprefill_logits"});
  const auto report = verify::verify_directory(golden.directory(), ops);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->exit_code(), 1);
  EXPECT_EQ(report->first_deviation()->section, verify::kWholeModel);
  EXPECT_EQ(report->first_deviating_layer(), 2);
}

TEST(Verify, WithoutTolerancesThereIsATableAndCodeTwo) {
  const EditedGolden golden(kRoot + "/g1-micro-text", "elsewhere/renamed");
  golden.drop_cases(kLongCases);
  const auto report = verify::verify_directory(golden.directory(), plain());
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->exit_code(), 2);
  EXPECT_NE(report->table().find("no limits"), std::string::npos);
  EXPECT_NE(report->table().find("rel_rms"), std::string::npos);
}

// `name` by the name of its directory or as its cases.json calls it.
TEST(Verify, LimitsStandBesideTheDirectory) {
  const EditedGolden golden(kRoot + "/g1-micro-text", "beside/renamed");
  golden.drop_cases(kLongCases);
  golden.put_beside(kRoot + "/tolerances.json");
  const auto report = verify::verify_directory(golden.directory(), plain());
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->exit_code(), 0) << deviations(*report);
}

TEST(Verify, WhatIsMissingIsAbsentAndNeverPassed) {
  const EditedGolden golden(kRoot + "/g1-micro-text", "missing/g1-micro-text");
  golden.drop_cases(kLongCases);
  golden.put_beside(kRoot + "/tolerances.json");
  golden.drop("expected", {"compressed_ids", "len33.logits_all", "len17.decode_logits"});
  golden.drop("trace", {"trace71.layer3.streams_out", "trace71.layer2.router_margin"});
  const auto report = verify::verify_directory(golden.directory(), plain());
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->exit_code(), 0) << deviations(*report);
  std::set<std::string> absent;
  for (const verify::Check& check : report->checks()) {
    if (check.verdict == verify::Verdict::kAbsent) absent.insert(check.subject);
  }
  for (const char* subject : {"compressed_ids", "len33 logits_all", "len17 decode_logits",
                              "trace71 layer3 streams", "trace71 layer4 inputs"}) {
    EXPECT_TRUE(absent.contains(subject)) << subject;
  }
}

TEST(Verify, ChangedExpectationsDeviate) {
  const EditedGolden golden(kRoot + "/g1-micro-text", "changed/g1-micro-text");
  golden.drop_cases(kLongCases);
  golden.put_beside(kRoot + "/tolerances.json");
  golden.flip_byte("expected", "compressed_ids", 40);
  const auto report = verify::verify_directory(golden.directory(), plain());
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->exit_code(), 1);
  EXPECT_EQ(deviations(*report), "compressed_ids; ");
}

TEST(Verify, DirectoriesAreFoundOneLevelDown) {
  const auto all = verify::golden_directories(kRoot);
  ASSERT_TRUE(all);
  ASSERT_EQ(all->size(), 3U);
  EXPECT_TRUE(all->front().ends_with("/units"));
  EXPECT_FALSE(verify::golden_directories(kRoot + "/nothing"));
  EXPECT_FALSE(verify::golden_directories(std::string(GALLEY_SOURCE_DIR) + "/src"));
}

}  // namespace
}  // namespace galley::golden
