#include "base/line_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace galley {
namespace {

constexpr size_t kReadBytes = size_t{1} << 18;

Error read_error(const char* action, const std::string& name) {
  ErrorCode code = ErrorCode::kIo;
  if (errno == ENOENT || errno == ENOTDIR) code = ErrorCode::kNotFound;
  if (errno == EACCES || errno == EPERM) code = ErrorCode::kPermission;
  if (errno == EINTR) code = ErrorCode::kCancelled;
  return {code, std::string("cannot ") + action + " " + name + ": " + std::strerror(errno)};
}

}  // namespace

LineReader::LineReader(int fd, bool owned, std::string name, size_t line_bytes_max)
    : fd_(fd), owned_(owned), name_(std::move(name)), line_bytes_max_(line_bytes_max) {}

LineReader::LineReader(LineReader&& other) noexcept
    : fd_(other.fd_),
      owned_(std::exchange(other.owned_, false)),
      name_(std::move(other.name_)),
      line_bytes_max_(other.line_bytes_max_),
      buffer_(std::move(other.buffer_)),
      used_(other.used_),
      offset_(other.offset_),
      number_(other.number_),
      at_end_(other.at_end_) {}

LineReader::~LineReader() {
  if (owned_) ::close(fd_);
}

LineReader LineReader::of(int fd, std::string name, size_t line_bytes_max) {
  return LineReader(fd, false, std::move(name), line_bytes_max);
}

Result<LineReader> LineReader::open(const std::string& path, size_t line_bytes_max) {
  if (path == "-") return LineReader(STDIN_FILENO, false, "standard input", line_bytes_max);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return read_error("open", path);
  return LineReader(fd, true, path, line_bytes_max);
}

Result<bool> LineReader::fill() {
  buffer_.erase(0, used_);
  used_ = 0;
  const size_t before = buffer_.size();
  buffer_.resize(before + kReadBytes);
  const ssize_t count = ::read(fd_, buffer_.data() + before, kReadBytes);
  buffer_.resize(before + static_cast<size_t>(std::max<ssize_t>(count, 0)));
  if (count < 0) return read_error("read", name_);
  return count > 0;
}

Result<std::optional<Line>> LineReader::next() {
  Line line;
  line.number = number_ + 1;
  line.begin = offset_;
  size_t searched = 0;
  size_t skipped = 0;  // bytes of a line that is too long, no longer kept
  while (true) {
    const size_t end = buffer_.find('\n', used_ + searched);
    if (end != std::string::npos) {
      line.text = std::string_view(buffer_).substr(used_, end - used_);
      offset_ += static_cast<int64_t>(skipped + line.text.size() + 1);
      used_ = end + 1;
      break;
    }
    if (at_end_) {
      line.text = std::string_view(buffer_).substr(used_);
      offset_ += static_cast<int64_t>(skipped + line.text.size());
      used_ = buffer_.size();
      line.ended = false;
      if (line.text.empty() && skipped == 0) return std::optional<Line>();
      break;
    }
    searched = buffer_.size() - used_;
    if (searched > line_bytes_max_) {  // keep its start, forget the rest as it comes
      line.too_long = true;
      const size_t excess = searched - line_bytes_max_;
      buffer_.erase(used_ + line_bytes_max_, excess);
      skipped += excess;
      searched = line_bytes_max_;
    }
    at_end_ = !TRY(fill());
  }
  line.too_long = line.too_long || line.text.size() > line_bytes_max_;
  if (!line.text.empty() && line.text.back() == '\r') line.text.remove_suffix(1);
  ++number_;
  return std::optional<Line>(line);
}

Result<int64_t> count_lines(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return read_error("open", path);
  std::string buffer(kReadBytes, '\0');
  int64_t lines = 0;
  char last = '\n';
  ssize_t count = 0;
  while ((count = ::read(fd, buffer.data(), buffer.size())) > 0) {
    lines += std::count(buffer.begin(), buffer.begin() + count, '\n');
    last = buffer[static_cast<size_t>(count) - 1];
  }
  const int reason = errno;
  ::close(fd);
  errno = reason;
  if (count < 0) return read_error("read", path);
  return lines + (last == '\n' ? 0 : 1);
}

}  // namespace galley
