#include "serve/api_batches.h"

#include <algorithm>
#include <array>
#include <utility>

#include "serve/api_pages.h"
#include "serve/api_request_fields.h"
#include "serve/batch_line.h"
#include "serve/python_json.h"
#include "serve/request_fields.h"

namespace galley::serve {
namespace {

constexpr std::array<std::string_view, 3> kEndpoints = {"/v1/chat/completions", "/v1/completions",
                                                        "/v1/responses"};
// By BatchStatus, with the field that tells when it began.
constexpr std::array<std::pair<const char*, const char*>, kBatchStatusCount> kStatusNames = {{
    {"validating", nullptr},
    {"failed", "failed_at"},
    {"in_progress", "in_progress_at"},
    {"finalizing", "finalizing_at"},
    {"completed", "completed_at"},
    {"expired", "expired_at"},
    {"cancelling", "cancelling_at"},
    {"cancelled", "cancelled_at"},
}};

struct ParsedLine {
  std::string custom_id;
  std::string body;
};

Result<ParsedLine> parse_line(std::string_view line, std::string_view endpoint) {
  const JsonDocument document = TRY(parse_body(line));
  const JsonValue root = document.root();
  ParsedLine parsed;
  parsed.custom_id = TRY(read_string(root, "custom_id"));
  if (parsed.custom_id.empty() || parsed.custom_id.size() > kCustomIdBytesMax) {
    return Error{ErrorCode::kInvalid,
                 "custom_id: must have 1 to " + std::to_string(kCustomIdBytesMax) + " bytes"};
  }
  const std::string method = TRY(read_string(root, "method"));
  if (method != "POST") return Error{ErrorCode::kInvalid, "method: must be POST"};
  const std::string url = TRY(read_string(root, "url"));
  if (url != endpoint) {
    return Error{ErrorCode::kInvalid,
                 "url: must be the batch's endpoint, " + std::string(endpoint)};
  }
  const JsonValue body = TRY(root.at("body"));
  if (!body.is_object()) return body.error("must be an object");
  if (TRY(read_bool(body, "stream", false))) {
    return body.at("stream")->error("cannot be true in a batch");
  }
  parsed.body = python_json(body);
  if (!body.find("priority")) {
    parsed.body.insert(parsed.body.size() - 1,
                       body.size() == 0 ? R"("priority": "batch")" : R"(, "priority": "batch")");
  }
  return parsed;
}

// Up to sixteen short texts under short names.
Result<std::string> read_metadata(const JsonValue& body) {
  constexpr size_t kPairsMax = 16;
  const auto metadata = given(body, "metadata");
  if (!metadata) return std::string("null");
  if (!metadata->is_object()) return metadata->error("must be an object of texts");
  if (metadata->size() > kPairsMax) {
    return metadata->error("has more than " + std::to_string(kPairsMax) + " entries");
  }
  for (const std::string& key : metadata->keys()) {
    const JsonValue value = TRY(metadata->at(key));
    if (!value.is_string() || key.size() > kNameBytesMax ||
        TRY(value.as_string()).size() > kNameBytesMax) {
      return metadata->error("may only hold texts of at most " + std::to_string(kNameBytesMax) +
                             " bytes");
    }
  }
  return python_json(*metadata);
}

Json errors_json(const ApiBatch& batch) {
  if (batch.errors.empty()) return nullptr;
  Json json;
  json["object"] = "list";
  json["data"] = Json::array();
  for (const BatchLineError& error : batch.errors) {
    Json entry;
    entry["code"] = "invalid_line";
    entry["message"] = error.message;
    entry["param"] = nullptr;
    entry["line"] = nullptr;
    if (error.line > 0) entry["line"] = error.line;
    json["data"].push_back(std::move(entry));
  }
  return json;
}

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

Json batch_json(const ApiBatch& batch) {
  Json json;
  json["id"] = batch.id;
  json["object"] = "batch";
  json["endpoint"] = batch.create.endpoint;
  json["errors"] = errors_json(batch);
  json["input_file_id"] = batch.create.input_file_id;
  json["completion_window"] = "24h";
  json["status"] = kStatusNames[static_cast<size_t>(batch.status)].first;
  json["output_file_id"] = text_or_null(batch.output_file_id);
  json["error_file_id"] = text_or_null(batch.error_file_id);
  json["created_at"] = batch.created_at;
  json["expires_at"] = batch.created_at + kBatchWindowSeconds;
  for (size_t i = 0; i < kStatusNames.size(); ++i) {
    if (kStatusNames[i].second == nullptr) continue;
    const auto began = batch.since.find(static_cast<BatchStatus>(i));
    json[kStatusNames[i].second] = nullptr;
    if (began != batch.since.end()) json[kStatusNames[i].second] = began->second;
  }
  json["request_counts"] = {
      {"total", batch.total}, {"completed", batch.completed}, {"failed", batch.failed}};
  json["metadata"] = Json::parse(batch.create.metadata_json, nullptr, false);
  return json;
}

}  // namespace

Result<BatchCreate> parse_batch_create(std::string_view text) {
  const JsonDocument document = TRY(parse_body(text));
  const JsonValue body = document.root();
  BatchCreate create;
  const JsonValue file = TRY(body.at("input_file_id"));
  create.input_file_id = TRY(file.as_string());
  const JsonValue endpoint = TRY(body.at("endpoint"));
  create.endpoint = TRY(endpoint.as_string());
  if (std::find(kEndpoints.begin(), kEndpoints.end(), create.endpoint) == kEndpoints.end()) {
    return unsupported(endpoint, "must be /v1/chat/completions, /v1/completions or /v1/responses");
  }
  const JsonValue window = TRY(body.at("completion_window"));
  if (TRY(window.as_string()) != "24h") return unsupported(window, "must be 24h");
  create.metadata_json = TRY(read_metadata(body));
  return create;
}

std::string batch_body(const ApiBatch& batch) { return json_text(batch_json(batch)); }

std::string batches_body(std::span<const ApiBatch> batches, const ListQuery& query) {
  return page_body(batches, query, batch_json);
}

std::string_view batch_status_name(BatchStatus status) {
  return kStatusNames[static_cast<size_t>(status)].first;
}

BatchRun BatchRun::resume(ApiBatch batch, Answered answered) {
  BatchRun run(std::move(batch));
  ApiBatch& resumed = run.batch_;
  if (resumed.status == BatchStatus::kValidating) {
    resumed.total = 0;
    resumed.errors.clear();
  }
  // All lines were begun; those without an answer are begun again.
  if (resumed.status == BatchStatus::kFinalizing) resumed.status = BatchStatus::kInProgress;
  run.files_written_ =
      run.ended() && (resumed.status != BatchStatus::kExpired || answered.in_files);
  if (!run.ended()) {
    resumed.completed = answered.completed;
    resumed.failed = answered.failed;
  }
  run.answered_ = std::move(answered.custom_ids);
  return run;
}

void BatchRun::enter(BatchStatus status, int64_t now) {
  batch_.status = status;
  batch_.since[status] = now;
}

void BatchRun::check_line(std::string_view line) {
  if (batch_.status != BatchStatus::kValidating) return;
  ++batch_.total;
  const auto wrong = [&](std::string message) {
    if (batch_.errors.size() < kBatchErrorsMax) {
      batch_.errors.push_back({batch_.total, std::move(message)});
    }
  };
  if (batch_.total > kBatchLinesMax) {
    if (batch_.total == kBatchLinesMax + 1) {
      wrong("the input has more than " + std::to_string(kBatchLinesMax) + " lines");
    }
    return;
  }
  Result<ParsedLine> parsed = parse_line(line, batch_.create.endpoint);
  if (!parsed) return wrong(parsed.error().message);
  if (!custom_ids_.insert(parsed->custom_id).second) wrong("custom_id: is on an earlier line too");
}

void BatchRun::checked(int64_t now) {
  if (batch_.status != BatchStatus::kValidating) return;
  custom_ids_.clear();
  if (batch_.total == 0) batch_.errors.push_back({0, "the input has no line"});
  enter(batch_.errors.empty() ? BatchStatus::kInProgress : BatchStatus::kFailed, now);
}

std::optional<BatchCall> BatchRun::begin_line(std::string_view line, int64_t now) {
  tick(now);
  if (batch_.status != BatchStatus::kInProgress) return std::nullopt;
  Result<ParsedLine> parsed = parse_line(line, batch_.create.endpoint);
  // Validated before: only a file that changed meanwhile comes here.
  if (!parsed) {
    ++batch_.failed;
    return std::nullopt;
  }
  if (answered_.erase(parsed->custom_id) > 0) return std::nullopt;
  ++in_flight_;
  return BatchCall{std::move(parsed->custom_id), std::move(parsed->body)};
}

std::string BatchRun::end_request(const BatchCall& call, std::string_view request_id,
                                  int32_t http_status, std::string_view response_body) {
  CHECK(in_flight_ > 0);
  --in_flight_;
  const bool good = http_status >= 200 && http_status < 300;
  ++(good ? batch_.completed : batch_.failed);
  // The body is JSON already: it goes in as it is.
  std::string line = R"({"id":"batch_req_)";
  line.append(request_id).append(R"(","custom_id":)").append(python_json_string(call.custom_id));
  line.append(R"(,"response":{"status_code":)").append(std::to_string(http_status));
  line.append(R"(,"request_id":")").append(request_id).append(R"(","body":)");
  line.append(response_body).append(R"(},"error":null})").append("\n");
  return line;
}

void BatchRun::input_ended(int64_t now) {
  if (batch_.status == BatchStatus::kInProgress) enter(BatchStatus::kFinalizing, now);
}

bool BatchRun::wants_files() const {
  const bool stopped = batch_.status == BatchStatus::kCancelling ||
                       batch_.status == BatchStatus::kExpired ||
                       batch_.status == BatchStatus::kFinalizing;
  return stopped && in_flight_ == 0 && !files_written_;
}

void BatchRun::files_written(std::string output_file_id, std::string error_file_id, int64_t now) {
  files_written_ = true;
  batch_.output_file_id = std::move(output_file_id);
  batch_.error_file_id = std::move(error_file_id);
  if (batch_.status == BatchStatus::kFinalizing) enter(BatchStatus::kCompleted, now);
  if (batch_.status == BatchStatus::kCancelling) enter(BatchStatus::kCancelled, now);
}

Result<void> BatchRun::cancel(int64_t now) {
  const bool runs = batch_.status == BatchStatus::kValidating ||
                    batch_.status == BatchStatus::kInProgress ||
                    batch_.status == BatchStatus::kFinalizing;
  if (runs) {
    enter(BatchStatus::kCancelling, now);
    return {};
  }
  if (batch_.status == BatchStatus::kCancelling) return {};
  return Error{ErrorCode::kInvalid, "the batch cannot be cancelled: it is " +
                                        std::string(batch_status_name(batch_.status))};
}

void BatchRun::tick(int64_t now) {
  const bool late = now >= batch_.created_at + kBatchWindowSeconds;
  if (late && !ended() && batch_.status != BatchStatus::kCancelling) {
    enter(BatchStatus::kExpired, now);
  }
}

bool BatchRun::ended() const {
  return batch_.status == BatchStatus::kFailed || batch_.status == BatchStatus::kCompleted ||
         batch_.status == BatchStatus::kExpired || batch_.status == BatchStatus::kCancelled;
}

}  // namespace galley::serve
