// What survives the process: files and batches in a directory of their own.
//
//   lock                        held while a server uses the directory
//   files/ID.json, ID.data      a file is there when its .json is
//   batches/ID.json             a batch as it last was
//   batches/ID.output, .errors  its answers so far, one line each, appended
//
// Every write leaves the old content or the new one, whenever the process ends:
// records go through a temporary file, a line torn by the end is cut off when it
// is read again. Records and contents survive the machine too when the call that
// keeps them returns; answers do after sync(), and nobody should be told of them
// before. Knows no HTTP and no scheduling. One thread, except where said.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "base/result.h"
#include "serve/saved_batch.h"

namespace galley::server {

class StateDirectory {
 public:
  enum class Journal : uint8_t { kOutput, kErrors };
  struct KeptFile {
    serve::SavedFile saved;
    std::string content;
  };
  struct KeptBatch {
    serve::SavedBatch saved;
    std::string output;  // whole lines
    std::string errors;
    bool has_journals = false;
  };

  // Makes it if need be, locks it and proves that it can be written.
  static Result<std::unique_ptr<StateDirectory>> open(const std::string& path,
                                                      Files& files = system_files());
  StateDirectory(const StateDirectory&) = delete;
  StateDirectory& operator=(const StateDirectory&) = delete;

  // Oldest first. What cannot be read is left where it is, with a line in `problems`.
  std::vector<KeptFile> files(std::vector<std::string>& problems) const;
  // What is read of answers is synced.
  std::vector<KeptBatch> batches(std::vector<std::string>& problems) const;

  // Any thread, each file by one at a time.
  Result<void> save_file(const serve::SavedFile& file, std::string_view content);
  Result<void> remove_file(const std::string& id);
  Result<void> save_batch(const serve::SavedBatch& batch);
  // All of the line or nothing of it; survives the machine after sync().
  Result<void> append(const std::string& batch_id, Journal journal, std::string_view line);
  // Any thread. After an error the journal has to be written again, as a whole.
  Result<void> sync(const std::string& batch_id, Journal journal);
  Result<void> replace(const std::string& batch_id, Journal journal, std::string_view lines);
  // The lines are in files now.
  void remove_journals(const std::string& batch_id);
  void remove_batch(const std::string& batch_id);

  const std::string& path() const { return path_; }

 private:
  StateDirectory(std::string path, Files& files, std::unique_ptr<Files::Lock> lock)
      : path_(std::move(path)), files_(&files), lock_(std::move(lock)) {}

  std::string file_path(const std::string& id, const char* suffix) const;
  std::string batch_path(const std::string& id, const char* suffix) const;

  // The whole lines of a journal. What a sudden end left behind them is cut off, so that the
  // next line begins at the beginning of one.
  Result<std::string> read_journal(const std::string& path) const;

  std::string path_;
  Files* files_;
  std::unique_ptr<Files::Lock> lock_;
};

}  // namespace galley::server
