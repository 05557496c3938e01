// The system's files: appends are whole or not there, removal and folders forgive repetition, and
// every error names the path.
#include "base/files.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

namespace galley {
namespace {

class FilesTest : public testing::Test {
 protected:
  FilesTest() : folder_(testing::TempDir() + "files_test_" + std::to_string(::getpid())) {
    EXPECT_TRUE(files_.make_directory(folder_));
  }
  ~FilesTest() override { std::filesystem::remove_all(folder_); }

  std::string text(const std::string& name) const {
    return *files_.read(folder_ + "/" + name, 1 << 20);
  }

  Files& files_ = system_files();
  std::string folder_;
};

TEST_F(FilesTest, WritesReadsRemoves) {
  const std::string path = folder_ + "/a";
  EXPECT_TRUE(files_.make_directory(folder_));  // again
  EXPECT_FALSE(files_.exists(path));
  ASSERT_TRUE(files_.append(path, "one\n"));
  ASSERT_TRUE(files_.append(path, "two\n"));
  ASSERT_TRUE(files_.sync(path));
  EXPECT_EQ(text("a"), "one\ntwo\n");
  ASSERT_TRUE(files_.truncate(path, 4));
  EXPECT_EQ(text("a"), "one\n");
  ASSERT_TRUE(files_.replace(path, "three"));
  EXPECT_EQ(text("a"), "three");
  ASSERT_TRUE(files_.replace(folder_ + "/b", ""));
  EXPECT_EQ(files_.names(folder_), (std::vector<std::string>{"a", "b"}));
  ASSERT_TRUE(files_.remove(path));
  ASSERT_TRUE(files_.remove(path));  // again
  EXPECT_FALSE(files_.exists(path));
  EXPECT_TRUE(files_.names(folder_ + "/none").empty());
}

TEST_F(FilesTest, ErrorsNameThePath) {
  const std::string path = folder_ + "/none/a";
  for (const Result<void>& result :
       {files_.append(path, "x"), files_.replace(path, "x"), files_.sync(path),
        files_.truncate(path, 0), files_.make_directory(path)}) {
    ASSERT_FALSE(result);
    EXPECT_NE(result.error().message.find(path), std::string::npos) << result.error().message;
  }
  ASSERT_TRUE(files_.append(folder_ + "/a", "x"));
  const auto not_a_folder = files_.make_directory(folder_ + "/a");
  ASSERT_FALSE(not_a_folder);
  EXPECT_EQ(not_a_folder.error().message, folder_ + "/a: Not a directory");
}

TEST_F(FilesTest, OneHoldsALock) {
  auto lock = files_.lock(folder_ + "/lock");
  ASSERT_TRUE(lock);
  const auto second = files_.lock(folder_ + "/lock");
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kInvalid);
  lock->reset();
  EXPECT_TRUE(files_.lock(folder_ + "/lock"));
}

// A limit of a file's size stands for a disk that fills up in the middle of a line.
TEST_F(FilesTest, AnAppendIsWholeOrNotThere) {
  const std::string path = folder_ + "/a";
  ASSERT_TRUE(files_.append(path, "0123456789"));
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 15;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto appended = files_.append(path, "abcdefghij");
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ASSERT_FALSE(appended);
  EXPECT_EQ(appended.error().code, ErrorCode::kExhausted);
  EXPECT_EQ(text("a"), "0123456789");
}

}  // namespace
}  // namespace galley
