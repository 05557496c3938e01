// The desk of /v1/files and /v1/batches: keeps files in memory, and runs a
// batch's lines through the server's own front door, a few at a time.
//
// A line is a request like any other: same limits, same answers; one that is
// turned away for now (429, 503) is asked again. Everybody sees only what came
// with the same key. With a state directory all of it is kept there as well, so
// that the next process goes on where this one ended, however it did: a line's
// answer is on the disk before it counts, and one that is there is not asked
// again. Knows no engine. Belongs to the loop's thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "net/exchange.h"
#include "serve/api_batches.h"
#include "serve/api_files.h"
#include "server/state_directory.h"

namespace galley::server {

struct BatchLimits {
  size_t bytes_max = size_t{256} << 20;  // of all files together
  size_t files_max = 1000;
  size_t batches_max = 100;  // kept, ended or not
  int32_t in_flight_max = 8;
};

class BatchDesk {
 public:
  struct Parts {
    // The front door, for a request of the key of this name.
    std::function<void(const std::string& owner, const std::shared_ptr<net::Exchange>&)> ask;
    std::function<void(std::function<void()>)> later;  // on the loop, not at once; any thread
    // On a thread that may wait for the disk, in order; at most one for each batch and one besides.
    std::function<void(std::function<void()>)> aside;
    std::function<std::string()> fresh_id;
    std::function<int64_t()> now;               // Unix seconds
    std::function<void(const Error&)> trouble;  // something could not be kept
  };

  explicit BatchDesk(Parts parts, BatchLimits limits = {});
  ~BatchDesk();
  BatchDesk(const BatchDesk&) = delete;
  BatchDesk& operator=(const BatchDesk&) = delete;

  // Takes up what a directory holds, and keeps everything there from now on; before anything else
  // is called. The directory outlives the desk. What could not be read is named in `problems`.
  void restore(StateDirectory& state, std::vector<std::string>& problems);
  size_t file_count() const { return files_.size(); }
  size_t batch_count() const { return jobs_.size(); }

  // Bodies to answer with; an Error as serve::api_error reads it. `owner` is the key's name.
  Result<std::string> upload(const std::string& owner, std::string_view content_type,
                             std::string_view body);
  Result<std::string> files(const std::string& owner, std::string_view query) const;
  Result<std::string> file(const std::string& owner, const std::string& id) const;
  Result<std::string> file_content(const std::string& owner, const std::string& id) const;
  Result<std::string> remove_file(const std::string& owner, const std::string& id);

  Result<std::string> create(const std::string& owner, std::string_view body);
  Result<std::string> batches(const std::string& owner, std::string_view query) const;
  Result<std::string> batch(const std::string& owner, const std::string& id) const;
  Result<std::string> cancel(const std::string& owner, const std::string& id);

  // Now and then: asks again what was turned away, keeps what could not be kept, and lets batches
  // expire.
  void tick();
  bool idle() const;  // no batch is on its way

 private:
  struct StoredFile {
    std::string owner;
    serve::FileRecord record;
    std::shared_ptr<const std::string> content;
  };
  struct Job;

  Result<const StoredFile*> find_file(const std::string& owner, const std::string& id) const;
  Result<Job*> find_job(const std::string& owner, const std::string& id) const;
  void restore_job(StateDirectory::KeptBatch kept);
  bool keep(Job& job);
  bool keep_answers(Job& job);
  void sync_later();
  void mend(Job& job);
  serve::ApiBatch told(const Job& job) const;
  void check_later(Job& job);
  void pump();
  void pump_later();
  void ask(Job& job, serve::BatchCall call);
  void answered(Job& job, const serve::BatchCall& call, const net::HttpResponse& response);
  void make_file(Job& job, std::string& answers, const char* what) const;
  void write_files(Job& job);
  void files_kept(Job& job);
  bool has_room(size_t bytes) const { return bytes_ + bytes <= limits_.bytes_max; }

  Parts parts_;
  BatchLimits limits_;
  StateDirectory* state_ = nullptr;        // null: nothing survives the process
  std::deque<StoredFile> files_;           // oldest first
  std::deque<std::unique_ptr<Job>> jobs_;  // oldest first
  size_t bytes_ = 0;                       // of files, and of answers that will be files
  int32_t in_flight_ = 0;
  bool pumping_ = false;
  bool syncing_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // answers may come after the desk
};

}  // namespace galley::server
