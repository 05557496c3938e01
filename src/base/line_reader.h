// A file or standard input line by line, in bounded memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace galley {

struct Line {
  std::string_view text;  // without its end (LF or CR LF); valid until the next call
  int64_t number = 0;     // from 1
  int64_t begin = 0;      // byte offset in the file
  bool too_long = false;  // longer than the limit: `text` is its start
  bool ended = true;      // false: the file stops without a line feed
};

class LineReader {
 public:
  // `path` "-" is standard input.
  static Result<LineReader> open(const std::string& path, size_t line_bytes_max);
  // Reads a descriptor that stays the caller's.
  static LineReader of(int fd, std::string name, size_t line_bytes_max);

  LineReader(LineReader&& other) noexcept;
  LineReader& operator=(LineReader&&) = delete;
  LineReader(const LineReader&) = delete;
  ~LineReader();

  // Nothing at the end of the file. kCancelled when a signal interrupts the wait for input.
  Result<std::optional<Line>> next();

 private:
  LineReader(int fd, bool owned, std::string name, size_t line_bytes_max);
  Result<bool> fill();  // false at the end of the file

  int fd_;
  bool owned_;
  std::string name_;
  size_t line_bytes_max_;
  std::string buffer_;
  size_t used_ = 0;     // bytes of buffer_ that were handed out
  int64_t offset_ = 0;  // of buffer_[used_] in the file
  int64_t number_ = 0;
  bool at_end_ = false;
};

// Line feeds in a regular file, plus one if it does not end with one.
Result<int64_t> count_lines(const std::string& path);

}  // namespace galley
