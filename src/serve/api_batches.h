// Bodies of /v1/batches and the life of one batch, without files, clocks or HTTP.
//
//   validating -> in_progress -> finalizing -> completed
//       |             |-> cancelling -> cancelled
//       '-> failed    '-> expired
// The caller reads input lines and hands each to begin_line(), runs the requests
// that come of it, hands each response to end_request() and writes the returned
// lines. Nothing is kept per request but the ids of those in flight.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "serve/api_files.h"

namespace galley::serve {

constexpr int64_t kBatchLinesMax = 50'000;
constexpr int64_t kBatchWindowSeconds = 24 * 3600;
constexpr size_t kBatchErrorsMax = 20;  // told in the batch itself; the counts are whole

struct BatchCreate {
  std::string input_file_id;
  std::string endpoint;  // "/v1/chat/completions", "/v1/completions" or "/v1/responses"
  std::string metadata_json = "null";
};
// POST /v1/batches.
Result<BatchCreate> parse_batch_create(std::string_view body);

enum class BatchStatus : uint8_t {
  kValidating,
  kFailed,
  kInProgress,
  kFinalizing,
  kCompleted,
  kExpired,
  kCancelling,
  kCancelled,
};
constexpr int32_t kBatchStatusCount = 8;
std::string_view batch_status_name(BatchStatus status);

struct BatchLineError {
  int64_t line = 0;  // from 1
  std::string message;
};

// One request out of a batch's input.
struct BatchCall {
  std::string custom_id;
  std::string body;  // JSON text, keys as the client ordered them; of batch priority
};

// A batch as its clients see it.
struct ApiBatch {
  std::string id;  // "batch_..."
  BatchCreate create;
  BatchStatus status = BatchStatus::kValidating;
  std::map<BatchStatus, int64_t> since;  // Unix seconds at which each status began
  int64_t created_at = 0;
  std::string output_file_id;  // once there is one
  std::string error_file_id;
  int64_t total = 0;
  int64_t completed = 0;
  int64_t failed = 0;
  std::vector<BatchLineError> errors;  // of validation, the first kBatchErrorsMax
};

std::string batch_body(const ApiBatch& batch);
std::string batches_body(std::span<const ApiBatch> batches, const ListQuery& query);

// Moves one batch through its life. One thread.
class BatchRun {
 public:
  explicit BatchRun(ApiBatch batch) : batch_(std::move(batch)) {}

  // Lines that have their answer, by custom_id, and how many of them are good.
  struct Answered {
    std::set<std::string> custom_ids;
    int64_t completed = 0;
    int64_t failed = 0;
    bool in_files = false;  // or there are none
  };
  // Goes on with a batch of another process: the caller hands in the lines as if nothing had
  // been, and those that are answered are passed over. `batch` is as it last was.
  static BatchRun resume(ApiBatch batch, Answered answered);

  // Validation: every line of the input once, in order, then the end. A wrong line fails the
  // batch before anything runs.
  void check_line(std::string_view line);
  void checked(int64_t now);

  // Running: the line's request, or nothing when no more may start (cancelled, expired).
  std::optional<BatchCall> begin_line(std::string_view line, int64_t now);
  // The line for the output file, or for the error file when the status is no success.
  std::string end_request(const BatchCall& call, std::string_view request_id, int32_t http_status,
                          std::string_view response_body);
  // All lines were begun.
  void input_ended(int64_t now);
  // Files are written and named; the last state is reached.
  void files_written(std::string output_file_id, std::string error_file_id, int64_t now);

  // Running requests go on; kInvalid when it has ended already.
  Result<void> cancel(int64_t now);
  // Past its window it expires, whatever it did.
  void tick(int64_t now);

  // Nothing is in flight and nothing will start: write the files.
  bool wants_files() const;
  bool ended() const;
  bool files_named() const { return files_written_; }
  int64_t in_flight() const { return in_flight_; }
  const ApiBatch& batch() const { return batch_; }

 private:
  void enter(BatchStatus status, int64_t now);

  ApiBatch batch_;
  std::set<std::string> custom_ids_;  // while validating: each may appear once
  std::set<std::string> answered_;    // before this process
  int64_t in_flight_ = 0;
  bool files_written_ = false;
};

}  // namespace galley::serve
