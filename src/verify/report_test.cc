// Shows how findings become verdicts, an exit code and the layer to look at first.
#include "verify/report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace galley::verify {
namespace {

Check layer_check(int32_t layer, double value, std::optional<double> limit) {
  Check check;
  check.section = "layer alone";
  check.subject = "trace71 layer" + std::to_string(layer);
  check.layer = layer;
  check.measures = {{"median", value, limit}};
  return check;
}

TEST(Report, WithinLimitsIsZero) {
  Report report("g1", "plain", "t.json");
  EXPECT_FALSE(report.judge(layer_check(0, 0.001, 0.001)));
  EXPECT_EQ(report.exit_code(), 0);
  EXPECT_EQ(report.first_deviation(), nullptr);
}

TEST(Report, OneDeviationIsOneAndNamesTheLowestLayer) {
  Report report("g1", "plain", "t.json");
  report.judge(layer_check(0, 0.0, 0.001));
  report.judge(layer_check(4, 0.02, 0.001));
  report.judge(layer_check(2, 0.03, 0.001));
  EXPECT_EQ(report.exit_code(), 1);
  EXPECT_EQ(report.first_deviating_layer(), 2);
  EXPECT_NE(report.table().find("first deviating layer: 2"), std::string::npos);
}

TEST(Report, SuspectLayersAreNamedOnlyWithoutAJudgedOne) {
  Report report("g2", "plain", "t.json");
  Check suspect = layer_check(3, 0.2, std::nullopt);
  suspect.suspect = true;
  report.inform(suspect);
  EXPECT_EQ(report.first_deviating_layer(), std::nullopt);  // nothing deviates
  Check logits;
  logits.section = "whole model";
  logits.measures = {{"rel_rms", 1.0, 0.5}};
  report.judge(logits);
  EXPECT_EQ(report.first_deviating_layer(), 3);
  report.judge(layer_check(5, 1.0, 0.5));
  EXPECT_EQ(report.first_deviating_layer(), 5);
}

TEST(Report, NanDeviates) {
  Report report("g1", "plain", "t.json");
  EXPECT_TRUE(report.judge(layer_check(0, std::nan(""), 0.001)));
  EXPECT_EQ(report.exit_code(), 1);
}

TEST(Report, WithoutLimitsOnlyExactChecksDeviate) {
  Report report("g9", "plain", "");
  report.judge(layer_check(0, 5.0, std::nullopt));
  EXPECT_EQ(report.exit_code(), 2);
  report.judge_equal("constants", "compressed_ids", 0, 512);
  EXPECT_EQ(report.exit_code(), 2);
  report.judge_equal("constants", "engram.primes", 1, 12);
  EXPECT_EQ(report.exit_code(), 1);
}

TEST(Report, AbsentAndUnlimitedNeverPass) {
  Report report("g1", "plain", "t.json");
  report.absent("state", "trace71 layer2 compress_kv");
  report.not_checked("drafts", "len17");
  EXPECT_EQ(report.exit_code(), 2);
  report.judge(layer_check(0, 0.0, 0.001));
  EXPECT_EQ(report.exit_code(), 0);
  report.judge(layer_check(1, 0.0, std::nullopt));
  EXPECT_EQ(report.exit_code(), 2);
}

TEST(Report, JsonCarriesEveryCheck) {
  Report report("g1", "plain", "t.json");
  report.judge(layer_check(3, 1.0, 0.5));
  report.absent("state", "rings");
  const auto json = report.to_json();
  EXPECT_EQ(json["exit_code"], 1);
  EXPECT_EQ(json["checks"].size(), 2U);
  EXPECT_EQ(json["checks"][0]["verdict"], "DEVIATES");
  EXPECT_EQ(json["checks"][0]["measures"][0]["limit"], 0.5);
  EXPECT_EQ(json["checks"][1]["verdict"], "absent");
  EXPECT_EQ(json["first_deviation"]["layer"], 3);
}

}  // namespace
}  // namespace galley::verify
