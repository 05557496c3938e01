// The desk with a scripted front door: a batch from its upload to its output
// file, lines that are turned away and asked again, owners kept apart, and bounds.
#include "server/batch_desk.h"

#include <gtest/gtest.h>

#include "server/batch_desk_fixture.h"

namespace galley::server {
namespace {

TEST_F(BatchDeskTest, FromUploadToOutput) {
  const std::string file = upload("me", lines(5) + "\n");
  const std::string id = create("me", file);
  EXPECT_EQ(batch(id)["status"], "validating");
  serve_all([&](const Json& body) {
    EXPECT_EQ(body["priority"], "batch");
    return body["prompt"] == "3"
               ? net::HttpResponse{400, {{"X-Request-Id", "named"}}, R"({"error":{}})"}
               : good(body);
  });
  EXPECT_EQ(most_, 2U);
  const Json done = batch(id);
  EXPECT_EQ(done["status"], "completed");
  EXPECT_EQ(done["request_counts"].dump(), R"({"completed":4,"failed":1,"total":5})");
  EXPECT_TRUE(desk_->idle());
  std::vector<std::string> custom_ids;
  const std::string output = *desk_->file_content("me", done["output_file_id"]);
  for (size_t at = 0; at < output.size(); at = output.find('\n', at) + 1) {
    const Json line = Json::parse(output.substr(at, output.find('\n', at) - at));
    EXPECT_EQ(std::string("l").append(line["response"]["body"]["text"]), line["custom_id"]);
    custom_ids.push_back(line["custom_id"]);
  }
  EXPECT_EQ(custom_ids, (std::vector<std::string>{"l0", "l1", "l2", "l4"}));
  const Json wrong = Json::parse(*desk_->file_content("me", done["error_file_id"]));
  EXPECT_EQ(wrong["custom_id"], "l3");
  EXPECT_EQ(wrong["response"]["request_id"], "named");  // as in the log
}

TEST_F(BatchDeskTest, TurnedAwayIsAskedAgain) {
  const std::string id = create("me", upload("me", lines(4)));
  int refusals = 0;
  const auto busy = [&](const Json& /*body*/) {
    ++refusals;
    return net::HttpResponse{refusals % 2 == 0 ? 429 : 503, {}, "{}"};
  };
  for (int i = 0; i < 3; ++i) {
    serve_all(busy);
    desk_->tick();
  }
  EXPECT_EQ(refusals, 6);  // two lines, three times: no more are begun meanwhile
  EXPECT_FALSE(desk_->idle());
  serve_all(good);
  EXPECT_EQ(batch(id)["request_counts"].dump(), R"({"completed":4,"failed":0,"total":4})");
  EXPECT_EQ(most_, 2U);
}

TEST_F(BatchDeskTest, OwnersAreKeptApart) {
  const std::string file = upload("me", lines(1));
  EXPECT_EQ(create("you", file), "there is no file " + file);
  const std::string id = create("me", file);
  EXPECT_FALSE(desk_->file("you", file));
  EXPECT_FALSE(desk_->batch("you", id));
  EXPECT_FALSE(desk_->cancel("you", id));
  EXPECT_EQ(Json::parse(*desk_->files("you", ""))["data"].size(), 0U);
  EXPECT_EQ(Json::parse(*desk_->batches("me", "limit=1"))["data"][0]["id"], id);
  EXPECT_EQ(desk_->file("me", "x").error().code, ErrorCode::kNotFound);
}

TEST_F(BatchDeskTest, CancelKeepsWhatWasDone) {
  const std::string id = create("me", upload("me", lines(4)));
  run_later();
  ASSERT_EQ(asked_.size(), 2U);
  EXPECT_EQ(Json::parse(*desk_->cancel("me", id))["status"], "cancelling");
  serve_all(good);
  const Json done = batch(id);
  EXPECT_EQ(done["status"], "cancelled");
  EXPECT_EQ(done["request_counts"]["completed"], 2);
  EXPECT_FALSE(done["output_file_id"].is_null());
}

TEST_F(BatchDeskTest, WrongInputNeverRuns) {
  const std::string id = create("me", upload("me", lines(1) + "nonsense\n"));
  run_later();
  EXPECT_TRUE(asked_.empty());
  EXPECT_EQ(batch(id)["status"], "failed");
  EXPECT_EQ(batch(id)["errors"]["data"][0]["line"], 2);
}

TEST_F(BatchDeskTest, Bounds) {
  EXPECT_EQ(upload("me", std::string(5000, 'x')),
            "the server keeps no more files; delete some and try again");
  const std::string file = upload("me", lines(2));
  const std::string id = create("me", file);
  run_later();
  EXPECT_EQ(desk_->remove_file("me", file).error().message, id + " is still reading this file");
  serve_all([](const Json& /*body*/) {
    return net::HttpResponse{200, {}, std::string(5000, '1')};
  });
  EXPECT_EQ(batch(id)["request_counts"]["failed"], 2);  // answers that do not fit are no success
  EXPECT_TRUE(desk_->remove_file("me", file));
}

TEST_F(BatchDeskTest, AnswersMayComeAfterTheDesk) {
  auto short_lived = std::make_unique<BatchDesk>(parts());
  const std::string form =
      "--x\r\nContent-Disposition: form-data; name=purpose\r\n\r\nbatch\r\n"
      "--x\r\nContent-Disposition: form-data; name=file\r\n\r\n" +
      lines(1) + "\r\n--x--\r\n";
  const std::string file =
      Json::parse(*short_lived->upload("me", "multipart/form-data; boundary=x", form))["id"];
  ASSERT_TRUE(short_lived->create("me", R"({"input_file_id":")" + file +
                                            R"(","endpoint":"/v1/completions","completion_window":)"
                                            R"("24h"})"));
  run_later();
  ASSERT_EQ(asked_.size(), 1U);
  asked_[0]->respond({200, {}, "{}"});
  short_lived.reset();
  run_later();
}

}  // namespace
}  // namespace galley::server
