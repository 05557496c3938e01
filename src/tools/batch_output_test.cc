// The output of a batch: what a killed run leaves is repaired, what is done is
// known, and what is not a batch's output is left alone.
#include "tools/batch_output.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "base/file.h"
#include "serve/batch_line.h"

namespace galley::tools {
namespace {

class BatchOutputTest : public testing::Test {
 protected:
  void SetUp() override { std::remove(path_.c_str()); }

  std::string content() const { return read_file(path_, 1 << 20).value(); }

  std::string path_ = testing::TempDir() + "batch_output_test.jsonl";
  std::string answer_ = serve::answer_line("a", {});
  std::string error_ = serve::error_line(std::nullopt, 3, 77, "bad");
};

TEST_F(BatchOutputTest, RemembersWhatIsDone) {
  {
    BatchOutput output = BatchOutput::open(path_).value();
    EXPECT_EQ(output.found_count(), 0);
    ASSERT_TRUE(output.append(answer_).has_value());
    ASSERT_TRUE(output.append(error_).has_value());
    ASSERT_TRUE(output.sync().has_value());
  }
  const BatchOutput output = BatchOutput::open(path_).value();
  EXPECT_EQ(output.found_count(), 2);
  EXPECT_FALSE(output.repaired());
  EXPECT_TRUE(output.holds_answer("a"));
  EXPECT_FALSE(output.holds_answer("b"));
  EXPECT_TRUE(output.holds_failure(3, 77));
  EXPECT_FALSE(output.holds_failure(3, 78));  // the line was changed
  EXPECT_FALSE(output.holds_failure(4, 77));
}

TEST_F(BatchOutputTest, ATornLineIsCutAtEveryByte) {
  for (size_t kept = 0; kept < answer_.size(); ++kept) {
    ASSERT_TRUE(write_file_atomic(path_, error_ + answer_.substr(0, kept)).has_value());
    BatchOutput output = BatchOutput::open(path_).value();
    EXPECT_EQ(output.repaired(), kept > 0);
    EXPECT_EQ(output.found_count(), 1);
    EXPECT_FALSE(output.holds_answer("a"));
    ASSERT_TRUE(output.append(answer_).has_value());
    EXPECT_EQ(content(), error_ + answer_);
  }
}

TEST_F(BatchOutputTest, OtherFilesAreRefused) {
  ASSERT_TRUE(write_file_atomic(path_, "hello\n" + answer_).has_value());
  const Error error = BatchOutput::open(path_).error();
  EXPECT_EQ(error.code, ErrorCode::kCorrupt);
  EXPECT_NE(error.message.find("line 1"), std::string::npos);
  EXPECT_EQ(content(), "hello\n" + answer_);
  EXPECT_EQ(BatchOutput::open("/nonexistent/out").error().code, ErrorCode::kNotFound);
  EXPECT_FALSE(BatchOutput::open("/dev/null").has_value());
}

TEST_F(BatchOutputTest, OneRunAtATime) {
  const BatchOutput output = BatchOutput::open(path_).value();
  EXPECT_FALSE(BatchOutput::open(path_).has_value());
  EXPECT_TRUE(output.is_same_file(path_));
  EXPECT_FALSE(output.is_same_file("/dev/null"));
}

}  // namespace
}  // namespace galley::tools
