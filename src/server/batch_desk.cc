#include "server/batch_desk.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "server/batch_job.h"

namespace galley::server {
namespace {

constexpr int kLinesAtOnce = 64;  // of a batch that is checked, before others have their turn
constexpr size_t kBytesAtOnce = size_t{256} << 10;
// Answers that a failure of the machine may take, besides those of the last tick and those that
// come while a sync is on its way.
constexpr int64_t kUnsyncedLinesMax = 64;
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

BatchDesk::BatchDesk(Parts parts, BatchLimits limits) : parts_(std::move(parts)), limits_(limits) {}
BatchDesk::~BatchDesk() = default;

// --- Files ---

Result<std::string> BatchDesk::upload(const std::string& owner, std::string_view content_type,
                                      std::string_view body) {
  const serve::FileUpload upload = TRY(serve::parse_file_upload(content_type, body));
  if (files_.size() >= limits_.files_max || !has_room(upload.content.size())) {
    return Error{ErrorCode::kExhausted,
                 "the server keeps no more files; delete some and try again"};
  }
  serve::FileRecord record;
  record.id = "file-" + parts_.fresh_id();
  record.filename = upload.filename;
  record.purpose = "batch";
  record.bytes = static_cast<int64_t>(upload.content.size());
  record.created_at = parts_.now();
  if (state_ != nullptr) {
    const Result<void> kept = state_->save_file({owner, record}, upload.content);
    if (!kept) {
      parts_.trouble(kept.error());
      return Error{ErrorCode::kExhausted, "the server cannot keep the file now; try again later"};
    }
  }
  files_.push_back({owner, record, std::make_shared<const std::string>(upload.content)});
  bytes_ += upload.content.size();
  return serve::file_body(record);
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
  if (state_ != nullptr) {
    const Result<void> removed = state_->remove_file(id);
    if (!removed) {
      parts_.trouble(removed.error());
      return Error{ErrorCode::kIo, "the file could not be removed; the server's log says more"};
    }
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

Result<std::string> BatchDesk::create(const std::string& owner, std::string_view body) {
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
    if (state_ != nullptr) state_->remove_batch((*ended)->run.batch().id);
    jobs_.erase(ended);
  }
  batch.id = "batch_" + parts_.fresh_id();
  batch.created_at = parts_.now();
  auto job = std::make_unique<Job>(owner, serve::BatchRun(std::move(batch)));
  if (!keep(*job)) {
    return Error{ErrorCode::kExhausted, "the server cannot keep the batch now; try again later"};
  }
  job->input = input->content;
  jobs_.push_back(std::move(job));
  check_later(*jobs_.back());
  return serve::batch_body(jobs_.back()->run.batch());
}

// Some lines at a time: the loop has others to serve.
void BatchDesk::check_later(Job& job) {
  parts_.later([this, &job, alive = std::weak_ptr<bool>(alive_)] {
    if (alive.expired()) return;
    const size_t begin = job.offset;
    for (int i = 0; i < kLinesAtOnce && job.offset - begin < kBytesAtOnce; ++i) {
      const auto line = job.next_line();
      if (line) {
        job.run.check_line(*line);
        continue;
      }
      job.run.checked(parts_.now());
      job.offset = 0;
      job.at_end = job.run.batch().status != serve::BatchStatus::kInProgress;
      if (job.run.ended()) job.input.reset();
      keep(job);
      return pump();
    }
    check_later(job);
  });
}

Result<std::string> BatchDesk::batches(const std::string& owner, std::string_view query) const {
  const serve::ListQuery list = TRY(serve::parse_list_query(query));
  std::vector<serve::ApiBatch> own;
  for (const std::unique_ptr<Job>& job : jobs_) {
    if (job->owner == owner) own.push_back(told(*job));
  }
  order(own, list);
  return serve::batches_body(own, list);
}

Result<std::string> BatchDesk::batch(const std::string& owner, const std::string& id) const {
  return serve::batch_body(told(*TRY(find_job(owner, id))));
}

Result<std::string> BatchDesk::cancel(const std::string& owner, const std::string& id) {
  Job* const job = TRY(find_job(owner, id));
  TRY(job->run.cancel(parts_.now()));
  keep(*job);
  pump();
  return serve::batch_body(told(*job));
}

// --- Running ---

// Asks until enough is in flight, and ends what has nothing left. Answers may come while it
// asks: they wait for `later`.
void BatchDesk::pump() {
  if (std::exchange(pumping_, true)) return;
  for (const std::unique_ptr<Job>& job : jobs_) {
    if (job->run.batch().status == serve::BatchStatus::kValidating) continue;
    int passed_over = 0;  // lines that are answered already
    while (in_flight_ < limits_.in_flight_max && !job->at_end && job->turned_away.empty() &&
           job->unkept.empty()) {
      const auto line = job->next_line();
      if (!line) {
        job->at_end = true;
        job->run.input_ended(parts_.now());
        break;
      }
      std::optional<serve::BatchCall> call = job->run.begin_line(*line, parts_.now());
      if (job->run.batch().status != serve::BatchStatus::kInProgress) job->at_end = true;
      if (!call && ++passed_over >= kLinesAtOnce) {
        pump_later();
        break;
      }
      if (!call) continue;
      ++in_flight_;
      ask(*job, *std::move(call));
    }
    if (job->run.wants_files()) write_files(*job);
  }
  pumping_ = false;
}

void BatchDesk::pump_later() {
  parts_.later([this, alive = std::weak_ptr<bool>(alive_)] {
    if (!alive.expired()) pump();
  });
}

void BatchDesk::ask(Job& job, serve::BatchCall call) {
  net::HttpRequest request;
  request.method = "POST";
  request.path = job.run.batch().create.endpoint;
  request.fields = {{"Content-Type", "application/json"}};
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
  parts_.ask(job.owner, std::make_shared<LineExchange>(std::move(request), std::move(done)));
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
  std::string line = job.run.end_request(call, id, status, body.empty() ? "null" : body);
  const bool good = status >= 200 && status < 300;
  (good ? job.output : job.errors) += line;
  bytes_ += line.size();
  if (state_ != nullptr) {
    using Journal = StateDirectory::Journal;
    job.unkept.push_back({good ? Journal::kOutput : Journal::kErrors, std::move(line)});
    keep_answers(job);
    if (job.journaled.all() - job.on_disk.all() >= kUnsyncedLinesMax) sync_later();
  }
  pump();
}

void BatchDesk::tick() {
  for (const std::unique_ptr<Job>& job : jobs_) {
    job->run.tick(parts_.now());
    if (job->torn) mend(*job);
    keep_answers(*job);
    keep(*job);
    std::deque<serve::BatchCall> again = std::exchange(job->turned_away, {});
    for (serve::BatchCall& call : again) ask(*job, std::move(call));
  }
  if (state_ != nullptr) sync_later();
  pump();
}

bool BatchDesk::idle() const {
  return std::all_of(jobs_.begin(), jobs_.end(), [](const auto& job) { return job->run.ended(); });
}

}  // namespace galley::server
