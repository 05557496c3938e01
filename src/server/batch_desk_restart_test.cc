// A desk that is killed and opened again on the same directory, at every moment of a batch: no line
// is lost or doubled, and a disk that is full for a while costs nothing but time.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "server/batch_desk_fixture.h"

namespace galley::server {
namespace {

class RestartTest : public BatchDeskTest {
 protected:
  RestartTest() : path_(testing::TempDir() + "restart_" + std::to_string(::getpid())) {
    std::filesystem::remove_all(path_);
    restart();
  }
  ~RestartTest() override {
    desk_.reset();
    state_.reset();
    std::filesystem::remove_all(path_);
  }

  void restart() {
    open();
    state_.reset();  // lets go of the lock
    state_ = *StateDirectory::open(path_);
    problems_.clear();
    desk_->restore(*state_, problems_);
  }

  // Answers one of what is asked; false when nothing is.
  bool answer_one() {
    run_later();
    if (asked_.empty()) return false;
    const auto exchange = asked_.front();
    asked_.erase(asked_.begin());
    const Json body = Json::parse(exchange->request().body);
    ++answers_;
    exchange->respond(body["prompt"] == "3" ? net::HttpResponse{400, {}, R"({"error":{}})"}
                                            : good(body));
    run_later();
    return true;
  }

  void finish() {
    desk_->tick();
    while (answer_one()) {
    }
    desk_->tick();
  }

  // The custom_ids of both files, each once.
  std::set<std::string> ids_of(const Json& done) {
    std::set<std::string> ids;
    for (const char* field : {"output_file_id", "error_file_id"}) {
      const std::string text = *desk_->file_content("me", done[field]);
      for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
        const Json line = Json::parse(text.substr(at, text.find('\n', at) - at));
        EXPECT_TRUE(ids.insert(line["custom_id"]).second) << line;
      }
    }
    return ids;
  }

  std::string path_;
  std::unique_ptr<StateDirectory> state_;
  std::vector<std::string> problems_;
  int answers_ = 0;
};

TEST_F(RestartTest, AtEveryMoment) {
  for (int before = 0; before <= 6; ++before) {
    const std::string file = upload("me", lines(6));
    const std::string id = create("me", file);
    answers_ = 0;
    for (int i = 0; i < before; ++i) ASSERT_TRUE(answer_one());
    restart();
    EXPECT_TRUE(problems_.empty());
    // Those of the first process are not asked again.
    finish();
    EXPECT_EQ(answers_, 6) << before;
    const Json done = batch(id);
    EXPECT_EQ(done["status"], "completed") << before;
    EXPECT_EQ(done["request_counts"].dump(), R"({"completed":5,"failed":1,"total":6})");
    EXPECT_EQ(ids_of(done).size(), 6U) << before;
    restart();  // after its end too
    EXPECT_EQ(batch(id), done);
    EXPECT_EQ(ids_of(done).size(), 6U);
    EXPECT_TRUE(desk_->idle());
    for (const std::string& name : {file, done["output_file_id"].get<std::string>(),
                                    done["error_file_id"].get<std::string>()}) {
      EXPECT_TRUE(desk_->remove_file("me", name));
    }
    restart();
    EXPECT_EQ(desk_->file_count(), 0U);
  }
}

TEST_F(RestartTest, ATornLineIsAnsweredAgain) {
  const std::string id = create("me", upload("me", lines(6)));
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(answer_one());
  {
    std::ofstream journal(path_ + "/batches/" + id + ".output", std::ios::app);
    journal << R"({"id":"batch_req_9","custom_id":"l2","resp)";
  }
  restart();
  finish();
  EXPECT_EQ(ids_of(batch(id)).size(), 6U);
  EXPECT_EQ(batch(id)["request_counts"]["completed"], 5);
}

TEST_F(RestartTest, CancelledStaysCancelled) {
  const std::string id = create("me", upload("me", lines(6)));
  ASSERT_TRUE(answer_one());
  ASSERT_TRUE(desk_->cancel("me", id));
  restart();
  finish();
  const Json done = batch(id);
  EXPECT_EQ(done["status"], "cancelled");
  EXPECT_EQ(done["request_counts"]["completed"], 1);
  EXPECT_FALSE(done["output_file_id"].is_null());
}

TEST_F(RestartTest, AnswersWaitForAFullDisk) {
  const std::string id = create("me", upload("me", lines(6)));
  ASSERT_TRUE(answer_one());
  // A folder in the journal's place: nothing can be written to it.
  const std::string journal = path_ + "/batches/" + id + ".output";
  const std::string aside = journal + ".aside";
  std::filesystem::rename(journal, aside);
  ASSERT_EQ(::mkdir(journal.c_str(), 0700), 0);
  while (answer_one()) {
  }
  EXPECT_LE(answers_, 3);  // two were on their way, and no more are begun
  EXPECT_GT(troubles_, 0);
  EXPECT_EQ(batch(id)["status"], "in_progress");
  std::filesystem::remove(journal);
  std::filesystem::rename(aside, journal);
  finish();
  finish();
  EXPECT_EQ(batch(id)["status"], "completed");
  EXPECT_EQ(ids_of(batch(id)).size(), 6U);
  EXPECT_EQ(answers_, 6);
}

TEST_F(RestartTest, WhatIsNoRecordIsNamedAndLeft) {
  const std::string file = upload("me", lines(1));
  const std::string other = path_ + "/files/file-x.json";
  std::ofstream(other) << "{}";
  restart();
  EXPECT_EQ(desk_->file_count(), 1U);
  ASSERT_EQ(problems_.size(), 1U);
  EXPECT_NE(problems_[0].find("file-x.json: version: missing"), std::string::npos);
  EXPECT_TRUE(std::filesystem::exists(other));
}

}  // namespace
}  // namespace galley::server
