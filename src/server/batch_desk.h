// The desk of /v1/files and /v1/batches: keeps files in memory, and runs a
// batch's lines through the server's own front door, a few at a time.
//
// A line is a request like any other: same limits, same answers; one that is
// turned away for now (429, 503) is asked again. Everybody sees only what came
// with the same key. Knows no engine. Belongs to the loop's thread; nothing
// survives the process.
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
    net::Handler ask;                                  // the front door
    std::function<void(std::function<void()>)> later;  // on the loop, not at once
    std::function<std::string()> fresh_id;
    std::function<int64_t()> now;  // Unix seconds
  };

  explicit BatchDesk(Parts parts, BatchLimits limits = {});
  ~BatchDesk();
  BatchDesk(const BatchDesk&) = delete;
  BatchDesk& operator=(const BatchDesk&) = delete;

  // Bodies to answer with; an Error as serve::api_error reads it. `owner` is the key's name.
  Result<std::string> upload(const std::string& owner, std::string_view content_type,
                             std::string_view body);
  Result<std::string> files(const std::string& owner, std::string_view query) const;
  Result<std::string> file(const std::string& owner, const std::string& id) const;
  Result<std::string> file_content(const std::string& owner, const std::string& id) const;
  Result<std::string> remove_file(const std::string& owner, const std::string& id);

  // `credentials` are the fields that its requests will carry.
  Result<std::string> create(const std::string& owner, std::vector<net::HttpField> credentials,
                             std::string_view body);
  Result<std::string> batches(const std::string& owner, std::string_view query) const;
  Result<std::string> batch(const std::string& owner, const std::string& id) const;
  Result<std::string> cancel(const std::string& owner, const std::string& id);

  // Now and then: asks again what was turned away, and lets batches expire.
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
  serve::FileRecord store(const std::string& owner, std::string filename, std::string_view purpose,
                          std::string content);
  void check_later(Job& job);
  void pump();
  void ask(Job& job, serve::BatchCall call);
  void answered(Job& job, const serve::BatchCall& call, const net::HttpResponse& response);
  void write_files(Job& job);
  bool has_room(size_t bytes) const { return bytes_ + bytes <= limits_.bytes_max; }

  Parts parts_;
  BatchLimits limits_;
  std::deque<StoredFile> files_;           // oldest first
  std::deque<std::unique_ptr<Job>> jobs_;  // oldest first
  size_t bytes_ = 0;                       // of files, and of answers that will be files
  int32_t in_flight_ = 0;
  bool pumping_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // answers may come after the desk
};

}  // namespace galley::server
