#include "server/batch_desk.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace galley::server {
namespace {

constexpr int kLinesAtOnce = 64;  // of a batch that is checked, before others have their turn
constexpr int kInsufficientStorage = 507;
constexpr std::string_view kFull =
    R"({"error":{"message":"the server keeps no more files; delete some"}})";

Error not_found(std::string_view what, const std::string& id) {
  std::string message = "there is no ";
  message.append(what).append(" ").append(id.substr(0, 64));
  return {ErrorCode::kNotFound, std::move(message)};
}

// One line of a batch on its way through the front door.
class LineExchange : public net::Exchange {
 public:
  using Done = std::function<void(net::HttpResponse)>;

  LineExchange(net::HttpRequest request, Done done)
      : request_(std::move(request)), done_(std::move(done)) {}

  net::HttpRequest& request() override { return request_; }
  void respond(net::HttpResponse response) override {
    if (done_) std::exchange(done_, nullptr)(std::move(response));
  }
  // Lines that ask for a stream were refused before.
  void begin_stream(net::HttpResponse head) override { respond({500, std::move(head.fields), ""}); }
  void write(std::string_view /*bytes*/) override {}
  void end_stream() override {}
  void abort_stream() override {}
  bool has_room() const override { return true; }
  void on_room(std::function<void()> /*then*/) override {}
  void on_gone(std::function<void()> /*then*/) override {}
  bool gone() const override { return false; }

 private:
  net::HttpRequest request_;
  Done done_;
};

// Own entries as the query wants them: newest first unless it says otherwise.
template <class Entry>
void order(std::vector<Entry>& entries, const serve::ListQuery& query) {
  if (!query.ascending) std::reverse(entries.begin(), entries.end());
}

}  // namespace

struct BatchDesk::Job {
  Job(std::string whose, std::vector<net::HttpField> fields, serve::ApiBatch batch)
      : owner(std::move(whose)), credentials(std::move(fields)), run(std::move(batch)) {}

  // The next line of the input that is not empty; nothing at its end.
  std::optional<std::string_view> next_line() {
    const std::string_view text = *input;
    while (offset < text.size()) {
      const size_t end = std::min(text.find('\n', offset), text.size());
      std::string_view line = text.substr(offset, end - offset);
      offset = end + 1;
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (!line.empty()) return line;
    }
    return std::nullopt;
  }

  std::string owner;
  std::vector<net::HttpField> credentials;
  serve::BatchRun run;
  std::shared_ptr<const std::string> input;
  size_t offset = 0;
  bool at_end = false;
  std::deque<serve::BatchCall> turned_away;  // at most in_flight_max
  std::string output;
  std::string errors;
};

BatchDesk::BatchDesk(Parts parts, BatchLimits limits) : parts_(std::move(parts)), limits_(limits) {}
BatchDesk::~BatchDesk() = default;

// --- Files ---

serve::FileRecord BatchDesk::store(const std::string& owner, std::string filename,
                                   std::string_view purpose, std::string content) {
  serve::FileRecord record;
  record.id = "file-" + parts_.fresh_id();
  record.bytes = static_cast<int64_t>(content.size());
  record.created_at = parts_.now();
  record.filename = std::move(filename);
  record.purpose = purpose;
  files_.push_back({owner, record, std::make_shared<const std::string>(std::move(content))});
  return record;
}

Result<std::string> BatchDesk::upload(const std::string& owner, std::string_view content_type,
                                      std::string_view body) {
  const serve::FileUpload upload = TRY(serve::parse_file_upload(content_type, body));
  if (files_.size() >= limits_.files_max || !has_room(upload.content.size())) {
    return Error{ErrorCode::kExhausted,
                 "the server keeps no more files; delete some and try again"};
  }
  bytes_ += upload.content.size();
  return serve::file_body(store(owner, upload.filename, "batch", std::string(upload.content)));
}

Result<const BatchDesk::StoredFile*> BatchDesk::find_file(const std::string& owner,
                                                          const std::string& id) const {
  for (const StoredFile& file : files_) {
    if (file.record.id == id && file.owner == owner) return &file;
  }
  return not_found("file", id);
}

Result<std::string> BatchDesk::files(const std::string& owner, std::string_view query) const {
  const serve::ListQuery list = TRY(serve::parse_list_query(query));
  std::vector<serve::FileRecord> records;
  for (const StoredFile& file : files_) {
    if (file.owner == owner) records.push_back(file.record);
  }
  order(records, list);
  return serve::files_body(records, list);
}

Result<std::string> BatchDesk::file(const std::string& owner, const std::string& id) const {
  return serve::file_body(TRY(find_file(owner, id))->record);
}

Result<std::string> BatchDesk::file_content(const std::string& owner, const std::string& id) const {
  return *TRY(find_file(owner, id))->content;
}

Result<std::string> BatchDesk::remove_file(const std::string& owner, const std::string& id) {
  const StoredFile* const found = TRY(find_file(owner, id));
  for (const std::unique_ptr<Job>& job : jobs_) {
    if (job->input != found->content) continue;
    return Error{ErrorCode::kInvalid, job->run.batch().id + " is still reading this file"};
  }
  bytes_ -= found->content->size();
  files_.erase(std::find_if(files_.begin(), files_.end(),
                            [&](const StoredFile& file) { return &file == found; }));
  return serve::file_deleted_body(id);
}

// --- Batches ---

Result<BatchDesk::Job*> BatchDesk::find_job(const std::string& owner, const std::string& id) const {
  for (const std::unique_ptr<Job>& job : jobs_) {
    if (job->run.batch().id == id && job->owner == owner) return job.get();
  }
  return not_found("batch", id);
}

Result<std::string> BatchDesk::create(const std::string& owner,
                                      std::vector<net::HttpField> credentials,
                                      std::string_view body) {
  serve::ApiBatch batch;
  batch.create = TRY(serve::parse_batch_create(body));
  const StoredFile* const input = TRY(find_file(owner, batch.create.input_file_id));
  if (jobs_.size() >= limits_.batches_max) {
    // The oldest that has ended makes room.
    const auto ended = std::find_if(jobs_.begin(), jobs_.end(), [](const auto& job) {
      return job->run.ended() && job->run.in_flight() == 0 && !job->run.wants_files();
    });
    if (ended == jobs_.end()) {
      return Error{ErrorCode::kExhausted, "there are too many batches already; try again later"};
    }
    jobs_.erase(ended);
  }
  batch.id = "batch_" + parts_.fresh_id();
  batch.created_at = parts_.now();
  auto job = std::make_unique<Job>(owner, std::move(credentials), std::move(batch));
  job->input = input->content;
  jobs_.push_back(std::move(job));
  check_later(*jobs_.back());
  return serve::batch_body(jobs_.back()->run.batch());
}

// Some lines at a time: the loop has others to serve.
void BatchDesk::check_later(Job& job) {
  parts_.later([this, &job, alive = std::weak_ptr<bool>(alive_)] {
    if (alive.expired()) return;
    for (int i = 0; i < kLinesAtOnce; ++i) {
      const auto line = job.next_line();
      if (line) {
        job.run.check_line(*line);
        continue;
      }
      job.run.checked(parts_.now());
      job.offset = 0;
      job.at_end = job.run.batch().status != serve::BatchStatus::kInProgress;
      if (job.run.ended()) job.input.reset();
      return pump();
    }
    check_later(job);
  });
}

Result<std::string> BatchDesk::batches(const std::string& owner, std::string_view query) const {
  const serve::ListQuery list = TRY(serve::parse_list_query(query));
  std::vector<serve::ApiBatch> own;
  for (const std::unique_ptr<Job>& job : jobs_) {
    if (job->owner == owner) own.push_back(job->run.batch());
  }
  order(own, list);
  return serve::batches_body(own, list);
}

Result<std::string> BatchDesk::batch(const std::string& owner, const std::string& id) const {
  return serve::batch_body(TRY(find_job(owner, id))->run.batch());
}

Result<std::string> BatchDesk::cancel(const std::string& owner, const std::string& id) {
  Job* const job = TRY(find_job(owner, id));
  TRY(job->run.cancel(parts_.now()));
  pump();
  return serve::batch_body(job->run.batch());
}

// --- Running ---

// Asks until enough is in flight, and ends what has nothing left. Answers may come while it
// asks: they wait for `later`.
void BatchDesk::pump() {
  if (std::exchange(pumping_, true)) return;
  for (const std::unique_ptr<Job>& job : jobs_) {
    if (job->run.batch().status == serve::BatchStatus::kValidating) continue;
    while (in_flight_ < limits_.in_flight_max && !job->at_end && job->turned_away.empty()) {
      const auto line = job->next_line();
      if (!line) {
        job->at_end = true;
        job->run.input_ended(parts_.now());
        break;
      }
      std::optional<serve::BatchCall> call = job->run.begin_line(*line, parts_.now());
      if (job->run.batch().status != serve::BatchStatus::kInProgress) job->at_end = true;
      if (!call) continue;
      ++in_flight_;
      ask(*job, *std::move(call));
    }
    if (job->run.wants_files()) write_files(*job);
  }
  pumping_ = false;
}

void BatchDesk::ask(Job& job, serve::BatchCall call) {
  net::HttpRequest request;
  request.method = "POST";
  request.path = job.run.batch().create.endpoint;
  request.fields = job.credentials;
  request.body = call.body;
  request.peer = job.run.batch().id;
  // The job cannot go before its answers: create() only drops jobs without any in flight.
  auto done = [this, &job, call = std::move(call),
               alive = std::weak_ptr<bool>(alive_)](net::HttpResponse response) {
    const auto desk = alive.lock();
    if (desk == nullptr) return;
    parts_.later([this, &job, call, alive, response = std::move(response)] {
      if (!alive.expired()) answered(job, call, response);
    });
  };
  parts_.ask(std::make_shared<LineExchange>(std::move(request), std::move(done)));
}

void BatchDesk::answered(Job& job, const serve::BatchCall& call,
                         const net::HttpResponse& response) {
  const bool for_now = response.status == 429 || response.status == 503;
  if (for_now && job.run.batch().status != serve::BatchStatus::kCancelling && !job.run.ended()) {
    job.turned_away.push_back(call);  // and stays in flight
    return;
  }
  --in_flight_;
  const bool fits = has_room(response.body.size());
  const std::string_view body = fits ? std::string_view(response.body) : kFull;
  const int status = fits ? response.status : kInsufficientStorage;
  // The name under which the log has it.
  const auto name = std::find_if(
      response.fields.begin(), response.fields.end(),
      [](const auto& field) { return net::equal_ignoring_case(field.name, "x-request-id"); });
  const std::string id = name != response.fields.end() ? name->value : parts_.fresh_id();
  const std::string line = job.run.end_request(call, id, status, body.empty() ? "null" : body);
  (status >= 200 && status < 300 ? job.output : job.errors) += line;
  bytes_ += line.size();
  pump();
}

void BatchDesk::write_files(Job& job) {
  const auto write = [&](std::string& text, const char* suffix) -> std::string {
    if (text.empty()) return "";
    return store(job.owner, job.run.batch().id + suffix, "batch_output",
                 std::exchange(text, std::string()))
        .id;
  };
  const std::string output = write(job.output, "_output.jsonl");
  const std::string errors = write(job.errors, "_error.jsonl");
  job.run.files_written(output, errors, parts_.now());
  job.input.reset();
  job.at_end = true;
}

void BatchDesk::tick() {
  for (const std::unique_ptr<Job>& job : jobs_) {
    job->run.tick(parts_.now());
    std::deque<serve::BatchCall> again = std::exchange(job->turned_away, {});
    for (serve::BatchCall& call : again) ask(*job, std::move(call));
  }
  pump();
}

bool BatchDesk::idle() const {
  return std::all_of(jobs_.begin(), jobs_.end(), [](const auto& job) { return job->run.ended(); });
}

}  // namespace galley::server
