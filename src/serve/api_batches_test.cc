// Uploads, lists, and the life of a batch: bodies letter by letter, every way
// through the states, and what a wrong input is told.
#include "serve/api_batches.h"

#include <gtest/gtest.h>

#include "serve/api_json.h"
#include "serve/multipart.h"

namespace galley::serve {
namespace {

constexpr const char* kType = R"(multipart/form-data; charset=utf-8; boundary="a;b")";

std::string form(std::string_view purpose) {
  return std::string("--a;b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\n")
      .append(purpose)
      .append(
          "\r\n--a;b\r\ncontent-disposition: form-data; filename=\"q\\\"x.jsonl\"; name=file\r\n"
          "Content-Type: application/octet-stream\r\n\r\nline\r\n--a;\r\n\r\n--a;b--\r\n");
}

TEST(ApiFiles, Upload) {
  const std::string body = form("batch");
  const auto upload = parse_file_upload(kType, body);
  ASSERT_TRUE(upload) << upload.error().message;
  EXPECT_EQ(upload->filename, "q\"x.jsonl");
  EXPECT_EQ(upload->content, "line\r\n--a;\r\n");
  EXPECT_EQ(parse_file_upload(kType, form("fine-tune")).error().message,
            "purpose: only \"batch\" is supported");
  EXPECT_EQ(parse_file_upload("text/plain", body).error().message,
            "Content-Type must be multipart/form-data");
  // Every way of being cut off is told, none is believed.
  for (size_t end = 0; end + 4 < body.size(); ++end) {
    EXPECT_FALSE(parse_file_upload(kType, std::string_view(body).substr(0, end)));
  }
  std::string many;
  for (size_t i = 0; i <= kPartsMax; ++i) {
    many += "--x\r\nContent-Disposition: form-data; name=a\r\n\r\n\r\n";
  }
  EXPECT_EQ(parse_form(many + "--x--", "x").error().message, "the form has more than 16 parts");
}

TEST(ApiFiles, Bodies) {
  const std::vector<FileRecord> files = {{"file-1", 5, 17, std::nullopt, "a\"b", "batch"},
                                         {"file-2", 6, 18, 99, "c", "batch_output"}};
  const std::string first =
      R"({"id":"file-1","object":"file","bytes":5,"created_at":17,"filename":"a\"b",)"
      R"("purpose":"batch","status":"processed"})";
  EXPECT_EQ(file_body(files[0]), first);
  EXPECT_EQ(file_deleted_body("file-1"), R"({"id":"file-1","object":"file","deleted":true})");
  EXPECT_EQ(files_body(files, {.limit = 1}),
            R"({"object":"list","data":[)" + first +
                R"(],"first_id":"file-1","last_id":"file-1","has_more":true})");
  EXPECT_EQ(files_body(files, {.after = "file-2"}),
            R"({"object":"list","data":[],"first_id":null,"last_id":null,"has_more":false})");
}

TEST(ApiFiles, ListQuery) {
  const auto query = parse_list_query("limit=5&after=file-9&order=asc&purpose=batch");
  ASSERT_TRUE(query);
  EXPECT_EQ(query->limit, 5);
  EXPECT_EQ(query->after, "file-9");
  EXPECT_TRUE(query->ascending);
  EXPECT_EQ(parse_list_query("limit=101").error().message, "limit: must be an integer in 1..100");
  EXPECT_EQ(parse_list_query("limit=").error().message, "limit: must be an integer in 1..100");
  EXPECT_TRUE(parse_list_query("&&=&"));
}

ApiBatch fresh_batch() {
  ApiBatch batch;
  batch.id = "batch_1";
  batch.created_at = 100;
  batch.create = *parse_batch_create(
      R"({"input_file_id":"file-1","endpoint":"/v1/completions","completion_window":"24h",)"
      R"("metadata":{"b":"1","a":"2"}})");
  return batch;
}

std::string line(std::string_view id) {
  return R"({"custom_id":")" + std::string(id) +
         R"(","method":"POST","url":"/v1/completions","body":{"prompt":"p","n":1}})";
}

TEST(ApiBatches, CreateIsChecked) {
  const auto told = [](std::string_view endpoint, std::string_view window) {
    return parse_batch_create(std::string(R"({"input_file_id":"f","endpoint":")")
                                  .append(endpoint)
                                  .append(R"(","completion_window":")")
                                  .append(window)
                                  .append(R"("})"));
  };
  EXPECT_TRUE(told("/v1/chat/completions", "24h"));
  EXPECT_EQ(told("/v1/embeddings", "24h").error().message,
            "endpoint: must be /v1/chat/completions, /v1/completions or /v1/responses");
  EXPECT_EQ(told("/v1/responses", "1h").error().message, "completion_window: must be 24h");
  EXPECT_EQ(parse_batch_create("{}").error().message, "input_file_id: missing");
}

TEST(ApiBatches, FromStartToEnd) {
  BatchRun run(fresh_batch());
  run.check_line(line("a"));
  run.check_line(line("b"));
  run.checked(101);
  ASSERT_EQ(run.batch().status, BatchStatus::kInProgress);
  const auto first = run.begin_line(line("a"), 102);
  const auto second = run.begin_line(line("b"), 102);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->body, R"({"prompt": "p", "n": 1, "priority": "batch"})");
  run.input_ended(103);
  EXPECT_FALSE(run.wants_files());
  EXPECT_EQ(run.end_request(*first, "r1", 200, R"({"x":1})"),
            R"({"id":"batch_req_r1","custom_id":"a","response":{"status_code":200,)"
            R"("request_id":"r1","body":{"x":1}},"error":null})"
            "\n");
  run.end_request(*second, "r2", 400, R"({"error":{}})");
  ASSERT_TRUE(run.wants_files());
  run.files_written("file-o", "file-e", 104);
  EXPECT_FALSE(run.wants_files());
  EXPECT_TRUE(run.ended());
  EXPECT_EQ(batch_body(run.batch()),
            R"({"id":"batch_1","object":"batch","endpoint":"/v1/completions","errors":null,)"
            R"("input_file_id":"file-1","completion_window":"24h","status":"completed",)"
            R"("output_file_id":"file-o","error_file_id":"file-e","created_at":100,)"
            R"("expires_at":86500,"failed_at":null,"in_progress_at":101,"finalizing_at":103,)"
            R"("completed_at":104,"expired_at":null,"cancelling_at":null,"cancelled_at":null,)"
            R"("request_counts":{"total":2,"completed":1,"failed":1},)"
            R"("metadata":{"b":"1","a":"2"}})");
}

TEST(ApiBatches, WrongLinesFailTheBatchBeforeItRuns) {
  BatchRun run(fresh_batch());
  run.check_line(line("a"));
  run.check_line(line("a"));
  run.check_line("{");
  run.check_line(R"({"custom_id":"c","method":"POST","url":"/v1/embeddings","body":{}})");
  run.check_line(R"({"custom_id":"d","method":"POST","url":"/v1/completions",)"
                 R"("body":{"stream":true}})");
  run.checked(101);
  EXPECT_EQ(run.batch().status, BatchStatus::kFailed);
  std::vector<std::string> told;
  for (const BatchLineError& error : run.batch().errors) {
    told.push_back(std::to_string(error.line) + " " + error.message);
  }
  EXPECT_EQ(told, (std::vector<std::string>{"2 custom_id: is on an earlier line too",
                                            "3 not valid JSON at byte 2",
                                            "4 url: must be the batch's endpoint, /v1/completions",
                                            "5 body.stream: cannot be true in a batch"}));
  EXPECT_FALSE(run.begin_line(line("a"), 102));
  BatchRun empty(fresh_batch());
  empty.checked(101);
  EXPECT_EQ(empty.batch().status, BatchStatus::kFailed);
}

TEST(ApiBatches, CancelLetsRunningRequestsEnd) {
  BatchRun run(fresh_batch());
  run.check_line(line("a"));
  run.check_line(line("b"));
  run.checked(101);
  const auto call = run.begin_line(line("a"), 102);
  ASSERT_TRUE(call);
  EXPECT_TRUE(run.cancel(103));
  EXPECT_TRUE(run.cancel(103));  // twice is once
  EXPECT_FALSE(run.begin_line(line("b"), 104));
  EXPECT_FALSE(run.wants_files());
  run.end_request(*call, "r", 200, "{}");
  ASSERT_TRUE(run.wants_files());
  run.files_written("file-o", "", 105);
  EXPECT_EQ(run.batch().status, BatchStatus::kCancelled);
  EXPECT_EQ(run.cancel(106).error().message, "the batch cannot be cancelled: it is cancelled");
}

TEST(ApiBatches, ExpiresAfterItsWindow) {
  BatchRun run(fresh_batch());
  run.check_line(line("a"));
  run.checked(101);
  EXPECT_FALSE(run.begin_line(line("a"), 100 + kBatchWindowSeconds));
  EXPECT_EQ(run.batch().status, BatchStatus::kExpired);
  ASSERT_TRUE(run.wants_files());
  run.files_written("", "", 1);
  EXPECT_FALSE(run.wants_files());
}

}  // namespace
}  // namespace galley::serve
