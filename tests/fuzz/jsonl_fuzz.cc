// Any bytes as the JSONL files that others hand in: lines of a batch, records of
// an interrupted one, cases of a task set. Each line is an error of one line or
// a value within its bounds, and what the batch would write for it reads back.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "base/line_reader.h"
#include "engine/sampling_options.h"
#include "serve/batch_line.h"
#include "tools/task_check.h"

namespace {

using namespace galley;

constexpr size_t kLineMax = 1000;

void check_message(const Error& error) {
  CHECK(!error.message.empty());
  CHECK(error.message.find('\n') == std::string::npos);
}

void check_request(const Line& line) {
  const uint64_t hash = serve::hash_line(line.text);
  const auto request = serve::parse_batch_line(line.text, {});
  if (!request) {
    check_message(request.error());
    const auto id = serve::custom_id_of(line.text);
    const auto record = serve::parse_batch_record(
        serve::error_line(id, line.number, hash, request.error().message));
    CHECK(record.has_value() && record->failed);
    CHECK(record->line_number == line.number && record->line_hash == hash);
    CHECK(record->custom_id == id.value_or(""));
    return;
  }
  CHECK(!request->custom_id.empty() && request->custom_id.size() <= serve::kCustomIdBytesMax);
  CHECK(serve::custom_id_of(line.text) == request->custom_id);
  CHECK(request->text.has_value() + request->conversation.has_value() + !request->ids.empty() == 1);
  const auto valid = engine::validate(request->sampling, 1000);
  if (!valid) check_message(valid.error());
  serve::BatchAnswer answer;
  answer.text = request->text.value_or("");
  const std::string written = serve::answer_line(request->custom_id, answer);
  CHECK(written.find('\n') == written.size() - 1);
  const auto record = serve::parse_batch_record(written);
  CHECK(record.has_value() && record->custom_id == request->custom_id && !record->failed);
}

void check_case(const Line& line) {
  const auto task = tools::parse_task_case(line.text);
  if (!task) return check_message(task.error());
  for (const std::string_view output : {std::string_view(task->prompt), line.text}) {
    const tools::Verdict verdict = tools::judge(*task, output);
    // What passes has the form that it is asked for.
    CHECK(!verdict.passed || verdict.well_formed.value_or(true) ||
          task->kind == tools::CheckKind::kJson);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const int fd = memfd_create("jsonl", MFD_CLOEXEC);
  CHECK(fd >= 0);
  CHECK(write(fd, data, size) == static_cast<ssize_t>(size));
  CHECK(lseek(fd, 0, SEEK_SET) == 0);
  {
    LineReader reader = LineReader::of(fd, "jsonl", kLineMax);
    int64_t lines = 0;
    while (true) {
      const auto line = reader.next();
      CHECK(line.has_value());
      if (!line->has_value()) break;
      CHECK((*line)->number == ++lines);
      CHECK((*line)->begin <= static_cast<int64_t>(size));
      CHECK((*line)->too_long || (*line)->text.size() <= kLineMax);
      check_request(**line);
      const auto record = serve::parse_batch_record((*line)->text);
      if (!record) check_message(record.error());
      check_case(**line);
    }
  }
  close(fd);
  return 0;
}
