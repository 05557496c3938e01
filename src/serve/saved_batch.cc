#include "serve/saved_batch.h"

#include <utility>

#include "base/json.h"
#include "base/shown_text.h"
#include "serve/api_json.h"
#include "serve/request_fields.h"

namespace galley::serve {
namespace {

constexpr int32_t kVersion = 1;

Result<JsonDocument> parse_saved(std::string_view text) {
  JsonDocument document = TRY(JsonDocument::parse(text));
  const JsonValue version = TRY(document.root().at("version"));
  if (TRY(version.as_integer()) != kVersion)
    return version.error("is not the one that is read here");
  return document;
}

Result<std::string> text_of(const JsonValue& object, std::string_view key) {
  const JsonValue field = TRY(object.at(key));
  return std::string(TRY(field.as_string()));
}

Result<int64_t> number_of(const JsonValue& object, std::string_view key) {
  const JsonValue field = TRY(object.at(key));
  return field.as_integer(0);
}

Result<BatchStatus> status_of(const JsonValue& field, std::string_view name) {
  for (int32_t i = 0; i < kBatchStatusCount; ++i) {
    const auto status = static_cast<BatchStatus>(i);
    if (name == batch_status_name(status)) return status;
  }
  return field.error("names no status: " + shown_text(name));
}

}  // namespace

std::string saved_file_text(const SavedFile& file) {
  Json json;
  json["version"] = kVersion;
  json["owner"] = file.owner;
  json["id"] = file.record.id;
  json["bytes"] = file.record.bytes;
  json["created_at"] = file.record.created_at;
  json["filename"] = file.record.filename;
  json["purpose"] = file.record.purpose;
  return json_text(json) + "\n";
}

Result<SavedFile> parse_saved_file(std::string_view text) {
  const JsonDocument document = TRY(parse_saved(text));
  const JsonValue root = document.root();
  SavedFile file;
  file.owner = TRY(text_of(root, "owner"));
  file.record.id = TRY(text_of(root, "id"));
  file.record.bytes = TRY(number_of(root, "bytes"));
  file.record.created_at = TRY(number_of(root, "created_at"));
  file.record.filename = TRY(text_of(root, "filename"));
  file.record.purpose = TRY(text_of(root, "purpose"));
  return file;
}

std::string saved_batch_text(const SavedBatch& saved) {
  const ApiBatch& batch = saved.batch;
  Json json;
  json["version"] = kVersion;
  json["owner"] = saved.owner;
  json["id"] = batch.id;
  json["input_file_id"] = batch.create.input_file_id;
  json["endpoint"] = batch.create.endpoint;
  json["metadata"] = batch.create.metadata_json;
  json["status"] = batch_status_name(batch.status);
  json["since"] = Json::object();
  for (const auto& [status, time] : batch.since) {
    json["since"][std::string(batch_status_name(status))] = time;
  }
  json["created_at"] = batch.created_at;
  json["output_file_id"] = batch.output_file_id;
  json["error_file_id"] = batch.error_file_id;
  json["total"] = batch.total;
  json["completed"] = batch.completed;
  json["failed"] = batch.failed;
  json["errors"] = Json::array();
  for (const BatchLineError& error : batch.errors) {
    json["errors"].push_back({{"line", error.line}, {"message", error.message}});
  }
  return json_text(json) + "\n";
}

Result<SavedBatch> parse_saved_batch(std::string_view text) {
  const JsonDocument document = TRY(parse_saved(text));
  const JsonValue root = document.root();
  SavedBatch saved;
  ApiBatch& batch = saved.batch;
  saved.owner = TRY(text_of(root, "owner"));
  batch.id = TRY(text_of(root, "id"));
  batch.create.input_file_id = TRY(text_of(root, "input_file_id"));
  batch.create.endpoint = TRY(text_of(root, "endpoint"));
  batch.create.metadata_json = TRY(text_of(root, "metadata"));
  const JsonValue status = TRY(root.at("status"));
  const std::string_view status_name = TRY(status.as_string());
  batch.status = TRY(status_of(status, status_name));
  const JsonValue since = TRY(root.at("since"));
  for (const std::string& name : since.keys()) {
    const BatchStatus entered = TRY(status_of(since, name));
    batch.since[entered] = TRY(number_of(since, name));
  }
  batch.created_at = TRY(number_of(root, "created_at"));
  batch.output_file_id = TRY(text_of(root, "output_file_id"));
  batch.error_file_id = TRY(text_of(root, "error_file_id"));
  batch.total = TRY(number_of(root, "total"));
  batch.completed = TRY(number_of(root, "completed"));
  batch.failed = TRY(number_of(root, "failed"));
  for (const JsonValue& error : TRY(read_list(root, "errors", kBatchErrorsMax))) {
    BatchLineError told;
    told.line = TRY(number_of(error, "line"));
    told.message = TRY(text_of(error, "message"));
    batch.errors.push_back(std::move(told));
  }
  return saved;
}

std::optional<std::string> answered_custom_id(std::string_view line) {
  // Own text, of one response: as long as a response may be.
  JsonLimits limits;
  limits.bytes_max = size_t{256} << 20;
  const Result<JsonDocument> document = JsonDocument::parse(line, limits);
  if (!document) return std::nullopt;
  Result<std::string> id = text_of(document->root(), "custom_id");
  if (!id || !document->root().find("response")) return std::nullopt;
  return *std::move(id);
}

}  // namespace galley::serve
