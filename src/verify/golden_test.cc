// Shows that a golden directory is read as its README describes it, and that
// whatever is missing or malformed in it is named in one line.
#include "verify/golden.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace galley::verify {
namespace {

namespace fs = std::filesystem;

const std::string kGolden = std::string(GALLEY_SOURCE_DIR) + "/tests/golden/g2-micro-full";

// A copy of the golden model that a test may damage.
class DamagedGolden : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = testing::TempDir() + "golden_test";
    fs::remove_all(directory_);
    fs::copy(kGolden, directory_, fs::copy_options::recursive);
    for (const auto& entry : fs::recursive_directory_iterator(directory_)) {
      fs::permissions(entry.path(), fs::perms::owner_write, fs::perm_options::add);
    }
  }
  void TearDown() override { fs::remove_all(directory_); }

  std::string expected(const char* file) const { return directory_ + "/expected/" + file; }
  void write(const char* file, const std::string& text) const {
    std::ofstream(expected(file)) << text;
  }
  // One line that names `part`.
  void expect_refused(const std::string& part) const {
    const auto golden = open_golden(directory_);
    ASSERT_FALSE(golden);
    EXPECT_NE(golden.error().message.find(part), std::string::npos) << golden.error().message;
    EXPECT_EQ(golden.error().message.find('\n'), std::string::npos);
  }

  std::string directory_;
};

TEST(Golden, ReadsCasesAndTraces) {
  const auto golden = open_golden(kGolden);
  ASSERT_TRUE(golden) << golden.error().message;
  EXPECT_EQ(golden->name, "g2-micro-full");
  EXPECT_EQ(golden->model, "g2-micro-full");
  EXPECT_EQ(golden->trace_lengths, std::vector<int64_t>{71});
  ASSERT_NE(golden->text_case(71), nullptr);
  EXPECT_EQ(golden->text_case(71)->tokens.size(), 71U);
  EXPECT_EQ(golden->text_case(64), nullptr);  // the image case is none of text
  const GoldenCase& image = golden->cases.back();
  EXPECT_TRUE(image.is_image());
  EXPECT_EQ(image.token_types[21], 0);
  EXPECT_EQ(image.draft_steps, 2);
}

TEST(Golden, TensorsAreWidenedAndChecked) {
  const auto golden = open_golden(kGolden);
  ASSERT_TRUE(golden);
  const auto logits = golden->expected.floats("len33.logits_all", {33, 512});
  ASSERT_TRUE(logits && *logits);
  EXPECT_EQ((*logits)->rows(), 33);
  EXPECT_EQ((*logits)->cols(), 512);
  const auto experts = golden->trace->integers("trace71.layer3.router_experts", {71, kAny});
  ASSERT_TRUE(experts && *experts);
  EXPECT_EQ((*experts)->cols(), 2);
  const auto absent = golden->expected.floats("len34.logits_all", {34, 512});
  ASSERT_TRUE(absent);
  EXPECT_FALSE(*absent);
  EXPECT_FALSE(golden->expected.floats("len33.logits_all", {33, 511}));
  EXPECT_FALSE(golden->expected.floats("len33.logits_all", {33}));
  EXPECT_FALSE(golden->expected.integers("len33.logits_all", {33, 512}));
}

TEST_F(DamagedGolden, MissingFiles) {
  fs::remove(expected("trace.safetensors"));
  expect_refused("trace.safetensors");
  fs::remove(expected("expected.safetensors"));
  expect_refused("expected.safetensors");
  fs::remove(expected("cases.json"));
  expect_refused("cases.json");
  fs::remove_all(directory_ + "/checkpoint");
  expect_refused("checkpoint");
}

TEST_F(DamagedGolden, TruncatedTensors) {
  fs::resize_file(expected("expected.safetensors"), 5000);
  expect_refused("expected.safetensors");
}

TEST_F(DamagedGolden, MalformedCases) {
  for (const char* text :
       {"", "[1]", "{}", R"({"cases": []})", R"({"cases": [3]})", R"({"cases": [{"name": "a"}]})",
        R"({"cases": [{"name": "a", "tokens": []}]})",
        R"({"cases": [{"name": "a", "tokens": ["x"]}]})",
        R"({"cases": [{"name": "a", "tokens": [1], "length": 2}]})",
        R"({"cases": [{"name": "a", "tokens": [1], "kind": "image"}]})",
        R"({"cases": [{"name": "a", "tokens": [1], "kind": "image", "token_types": [1, 1]}]})",
        R"({"cases": [{"name": "a", "tokens": [99999999999]}]})",
        R"({"cases": [{"name": "a", "tokens": [1]}], "trace_cases": 5})"}) {
    write("cases.json", text);
    expect_refused("cases.json");
  }
}

}  // namespace
}  // namespace galley::verify
