// Shows how an entry is found by model name and class, and that what the file
// does not say stays unsaid instead of becoming zero.
#include "verify/tolerances.h"

#include <gtest/gtest.h>

namespace galley::verify {
namespace {

constexpr const char* kText = R"({
  "g1": {"production": {
    "last_logits_short": {"up_to_length": 18, "mean_rel_rms": 0.07, "each_rel_rms": 0.15},
    "row_sets": {"rel_rms": 0.35},
    "isolated_layer": {"median": {"layer0": 0.5, "layer11": 0.25}, "p99": 0.04}}}})";

TEST(Tolerances, ReadsWhatIsThere) {
  const auto found = parse_tolerances(kText, "t.json", {"copy-of-g1", "g1"}, "production");
  ASSERT_TRUE(found && *found);
  const Tolerances& limits = **found;
  EXPECT_EQ(limits.short_up_to_length, 18);
  EXPECT_EQ(limits.short_each_rel_rms, 0.15);
  EXPECT_EQ(limits.rows_rel_rms, 0.35);
  EXPECT_EQ(limits.layer_median.at(11), 0.25);
  EXPECT_FALSE(limits.long_mean_rel_rms);
  EXPECT_FALSE(limits.rows_mean_kl);
  EXPECT_FALSE(limits.layer_row_max);
}

TEST(Tolerances, NoEntryIsNoError) {
  const auto other_model = parse_tolerances(kText, "t.json", {"g7"}, "production");
  ASSERT_TRUE(other_model);
  EXPECT_FALSE(*other_model);
  const auto other_class = parse_tolerances(kText, "t.json", {"g1"}, "reference_rounding");
  ASSERT_TRUE(other_class);
  EXPECT_FALSE(*other_class);
  const auto no_file = find_tolerances("/nonexistent/tolerances.json", {"g1"}, "production");
  ASSERT_TRUE(no_file);
  EXPECT_FALSE(*no_file);
}

TEST(Tolerances, MalformedFilesAreRefusedByName) {
  for (const char* text :
       {"{", "[]", R"({"g1": 3})", R"({"g1": {"production": {"row_sets": 1}}})",
        R"({"g1": {"production": {"row_sets": {"rel_rms": "0.3"}}}})",
        R"({"g1": {"production": {"row_sets": {"rel_rms": -1}}}})",
        R"({"g1": {"production": {"isolated_layer": {"median": {"first": 1}}}}})"}) {
    const auto found = parse_tolerances(text, "t.json", {"g1"}, "production");
    ASSERT_FALSE(found) << text;
    EXPECT_NE(found.error().message.find("t.json"), std::string::npos);
  }
}

}  // namespace
}  // namespace galley::verify
