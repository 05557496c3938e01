// Records come back as they were, one server uses a directory, and what cannot be written is an
// error with the path.
#include "server/state_directory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace galley::server {
namespace {

class StateDirectoryTest : public testing::Test {
 protected:
  StateDirectoryTest() : path_(testing::TempDir() + "state_" + std::to_string(::getpid())) {}
  ~StateDirectoryTest() override { std::filesystem::remove_all(path_); }
  std::string path_;
};

TEST_F(StateDirectoryTest, RecordsComeBack) {
  const auto state = *StateDirectory::open(path_);
  serve::SavedBatch saved;
  saved.owner = "alice";
  serve::ApiBatch& batch = saved.batch;
  batch.id = "batch_1";
  batch.create = {"file-1", "/v1/completions", R"({"a": "b"})"};
  batch.status = serve::BatchStatus::kExpired;
  batch.since = {{serve::BatchStatus::kInProgress, 5}, {serve::BatchStatus::kExpired, 9}};
  batch.created_at = 4;
  batch.output_file_id = "file-1-output";
  batch.total = 3;
  batch.completed = 2;
  batch.failed = 1;
  batch.errors = {{2, "wrong"}};
  ASSERT_TRUE(state->save_batch(saved));
  ASSERT_TRUE(state->save_file({"bob", {"file-1", 3, 7, {}, "in \"x\".jsonl", "batch"}}, "a\nb"));
  std::vector<std::string> problems;
  const auto batches = state->batches(problems);
  const auto files = state->files(problems);
  EXPECT_TRUE(problems.empty());
  ASSERT_EQ(batches.size(), 1U);
  EXPECT_EQ(batches[0].saved.owner, "alice");
  EXPECT_EQ(serve::batch_body(batches[0].saved.batch), serve::batch_body(batch));
  EXPECT_FALSE(batches[0].has_journals);
  ASSERT_EQ(files.size(), 1U);
  EXPECT_EQ(files[0].saved.owner, "bob");
  EXPECT_EQ(files[0].saved.record.filename, "in \"x\".jsonl");
  EXPECT_EQ(files[0].content, "a\nb");
}

TEST_F(StateDirectoryTest, OneServerAtATime) {
  const auto state = *StateDirectory::open(path_);
  const auto second = StateDirectory::open(path_);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().message, path_ + ": another server uses this state directory");
}

TEST_F(StateDirectoryTest, NoDirectory) {
  std::ofstream(path_) << "a file";
  const auto state = StateDirectory::open(path_);
  ASSERT_FALSE(state);
  EXPECT_EQ(state.error().message, path_ + ": Not a directory");
}

TEST_F(StateDirectoryTest, ContentThatChangedIsNamed) {
  const auto state = *StateDirectory::open(path_);
  ASSERT_TRUE(state->save_file({"", {"file-1", 3, 7, {}, "f", "batch"}}, "abc"));
  std::ofstream(path_ + "/files/file-1.data") << "abcd";
  std::vector<std::string> problems;
  EXPECT_TRUE(state->files(problems).empty());
  EXPECT_EQ(problems.size(), 1U);
}

}  // namespace
}  // namespace galley::server
