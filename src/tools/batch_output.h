// The file that `galley batch` appends to, and what it already holds.
//
// A record is one write of one whole line, so a killed run leaves at most one
// torn line, at the end, which opening cuts off. A lock keeps a second run away.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "base/result.h"

namespace galley::tools {

class BatchOutput {
 public:
  // Creates the file or reads what it holds. kCorrupt names a line that is no record.
  static Result<BatchOutput> open(const std::string& path);

  BatchOutput(BatchOutput&& other) noexcept;
  BatchOutput& operator=(BatchOutput&&) = delete;
  BatchOutput(const BatchOutput&) = delete;
  ~BatchOutput();

  // Lines that were there before this run.
  int64_t found_count() const { return found_count_; }
  bool repaired() const { return repaired_; }

  bool holds_answer(const std::string& custom_id) const { return answered_.contains(custom_id); }
  // The line failed before and has not been changed since.
  bool holds_failure(int64_t line_number, uint64_t line_hash) const;

  // `line` ends with its only line feed.
  Result<void> append(std::string_view line);
  Result<void> sync();

  // Device and inode, to tell whether another path is the same file.
  bool is_same_file(const std::string& path) const;

 private:
  BatchOutput(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  Result<void> read_records();

  std::string path_;
  int fd_;
  bool repaired_ = false;
  int64_t found_count_ = 0;
  std::unordered_set<std::string> answered_;
  std::unordered_map<int64_t, uint64_t> failed_;  // line number -> hash
};

}  // namespace galley::tools
