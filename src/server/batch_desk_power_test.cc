// The power of a desk's disk is cut at random moments: nothing that a client was told is taken
// back, and every line still has one answer. GALLEY_SEED begins elsewhere.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <set>

#include "server/batch_desk_fixture.h"
#include "server/power_cut_files.h"

namespace galley::server {
namespace {

constexpr int kLines = 150;  // more than are synced at once
constexpr int kRuns = 300;

class PowerCutTest : public BatchDeskTest {
 protected:
  ~PowerCutTest() override { desk_.reset(); }

  void plug_in(uint64_t seed) {
    random_.seed(seed);
    desk_.reset();
    state_.reset();
    disk_ = std::make_unique<PowerCutFiles>(seed);
    restart();
  }

  void restart() {
    later_.clear();
    asked_.clear();
    desk_.emplace(parts(), BatchLimits{.bytes_max = 1 << 20, .in_flight_max = 4});
    state_.reset();
    state_ = *StateDirectory::open("state", *disk_);
    std::vector<std::string> problems;
    desk_->restore(*state_, problems);
    EXPECT_TRUE(problems.empty()) << problems.front();
  }

  int draw(int below) { return std::uniform_int_distribution<int>(0, below - 1)(random_); }

  // One thing of those that could happen now.
  void happen() {
    const int what = draw(20);
    if (what == 0) return desk_->tick();
    if (what < 12 && !asked_.empty()) {
      const size_t which = static_cast<size_t>(draw(static_cast<int>(asked_.size())));
      const auto exchange = asked_[which];
      asked_.erase(asked_.begin() + static_cast<int64_t>(which));
      const Json body = Json::parse(exchange->request().body);
      return exchange->respond(body["prompt"] == "3" ? net::HttpResponse{400, {}, R"({"no":1})"}
                                                     : good(body));
    }
    if (later_.empty()) return;
    const auto work = later_.front();
    later_.erase(later_.begin());
    work();
  }

  // The lines of the batch's files by custom_id, each once.
  std::set<std::string> answers(const Json& batch) {
    std::set<std::string> ids;
    for (const char* field : {"output_file_id", "error_file_id"}) {
      if (batch[field].is_null()) continue;
      const auto text = desk_->file_content("me", batch[field]);
      EXPECT_TRUE(text) << batch;
      for (size_t at = 0; text && at < text->size(); at = text->find('\n', at) + 1) {
        const Json line = Json::parse(text->substr(at, text->find('\n', at) - at));
        EXPECT_TRUE(ids.insert(line["custom_id"]).second) << line;
      }
    }
    return ids;
  }

  static int64_t count(const Json& batch) {
    return batch["request_counts"]["completed"].get<int64_t>() +
           batch["request_counts"]["failed"].get<int64_t>();
  }

  // Nothing is taken back of what was told: `before` by this process, `after` by the next one.
  void compare(const Json& before, const Json& after) {
    EXPECT_GE(count(after), count(before)) << before << after;
    if (before["output_file_id"].is_null()) return;
    EXPECT_EQ(after["output_file_id"], before["output_file_id"]);
    EXPECT_EQ(answers(after).size(), static_cast<size_t>(kLines));
  }

  void run_until_end(const std::string& id) {
    for (int i = 0; i < 20'000 && batch(id)["status"] != "completed"; ++i) happen();
    const Json done = batch(id);
    EXPECT_EQ(done["status"], "completed");
    EXPECT_EQ(count(done), kLines);
    EXPECT_EQ(answers(done).size(), static_cast<size_t>(kLines));
  }

  std::mt19937_64 random_;
  std::unique_ptr<PowerCutFiles> disk_;
  std::unique_ptr<StateDirectory> state_;
};

TEST_F(PowerCutTest, WhatWasToldStays) {
  const char* const seed_text = std::getenv("GALLEY_SEED");
  const uint64_t first = seed_text != nullptr ? std::strtoull(seed_text, nullptr, 10) : 1;
  int cuts_with_answers = 0;
  for (uint64_t seed = first; seed < first + kRuns; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    plug_in(seed);
    const std::string id = create("me", upload("me", lines(kLines)));
    for (int cut = 0; cut < 3; ++cut) {
      for (int i = draw(900); i > 0; --i) happen();
      if (draw(2) == 0) restart();  // first the process ends alone
      const Json before = batch(id);
      cuts_with_answers += count(before) > 0 ? 1 : 0;
      disk_->cut_power();
      restart();
      compare(before, batch(id));
    }
    run_until_end(id);
    const Json before = batch(id);
    disk_->cut_power();
    restart();
    // Its end may be told before its record is kept: it is then reached again from its answers.
    run_until_end(id);
    compare(before, batch(id));
    if (HasFailure()) return;
  }
  EXPECT_GT(cuts_with_answers, kRuns / 2);  // else this shows nothing
}

TEST_F(PowerCutTest, AFailedSyncIsWrittenAgain) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    plug_in(seed);
    const std::string id = create("me", upload("me", lines(kLines)));
    for (int i = 200 + draw(200); i > 0; --i) happen();
    disk_->sync_fails = true;
    for (int i = draw(300); i > 0; --i) happen();
    disk_->sync_fails = false;
    for (int i = draw(300); i > 0; --i) happen();
    const Json before = batch(id);
    disk_->cut_power();
    restart();
    compare(before, batch(id));
    run_until_end(id);
  }
  EXPECT_GT(troubles_, 0);
}

TEST_F(PowerCutTest, AFullDiskIsWaitedFor) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    plug_in(seed);
    const std::string id = create("me", upload("me", lines(kLines)));
    for (int i = draw(900); i > 0; --i) happen();
    disk_->full = true;
    for (int i = draw(900); i > 0; --i) happen();
    const Json before = batch(id);
    if (draw(2) == 0) {
      disk_->cut_power();
      disk_->full = false;
      restart();
      compare(before, batch(id));
    }
    disk_->full = false;
    run_until_end(id);
  }
  EXPECT_GT(troubles_, 0);
}

}  // namespace
}  // namespace galley::server
