// Any bytes as an upload's form, a list's query, a batch and the lines of its
// input: an error, or values within their bounds and bodies that are valid JSON.
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/check.h"
#include "serve/api_batches.h"
#include "serve/api_files.h"
#include "serve/multipart.h"

namespace {

using namespace galley::serve;

void check_form(std::string_view bytes) {
  const auto parts = parse_form(bytes, "x");
  if (!parts) {
    CHECK(!parts.error().message.empty());
    return;
  }
  CHECK(parts->size() <= kPartsMax);
  for (const FormPart& part : *parts) {
    CHECK(!part.name.empty());
    CHECK(part.content.data() >= bytes.data());
    CHECK(part.content.data() + part.content.size() <= bytes.data() + bytes.size());
    CHECK(part.content.find("\r\n--x") == std::string_view::npos);
  }
  const auto upload = parse_file_upload("multipart/form-data; boundary=x", bytes);
  if (!upload) return;
  CHECK(upload->filename.size() <= kFilenameBytesMax);
  FileRecord record;
  record.filename = upload->filename;
  CHECK(nlohmann::json::accept(file_body(record)));
}

void check_query(std::string_view bytes) {
  const auto query = parse_list_query(bytes);
  if (!query) return;
  CHECK(query->limit >= 1 && query->limit <= 100);
  const std::vector<FileRecord> files(3, FileRecord{"a", 0, 0, {}, "", ""});
  CHECK(nlohmann::json::accept(files_body(files, *query)));
}

void check_batch(std::string_view bytes) {
  ApiBatch batch;
  if (const auto create = parse_batch_create(bytes)) batch.create = *create;
  if (batch.create.endpoint.empty()) batch.create.endpoint = "/v1/completions";
  BatchRun run(batch);
  size_t at = 0;
  while (at < bytes.size()) {
    const size_t end = std::min(bytes.find('\n', at), bytes.size());
    run.check_line(bytes.substr(at, end - at));
    at = end + 1;
  }
  run.checked(1);
  CHECK(run.batch().errors.size() <= kBatchErrorsMax);
  CHECK(nlohmann::json::accept(batch_body(run.batch())));
  if (run.batch().status != BatchStatus::kInProgress) return;
  // What was validated runs.
  const auto call = run.begin_line(bytes.substr(0, bytes.find('\n')), 2);
  CHECK(call.has_value() && nlohmann::json::accept(call->body));
  CHECK(nlohmann::json::accept(run.end_request(*call, "r", 200, "{}")));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  (void)form_boundary(bytes).has_value();
  check_form(bytes);
  check_query(bytes);
  check_batch(bytes);
  return 0;
}
