#include "tools/batch_output.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/line_reader.h"
#include "serve/batch_line.h"

namespace galley::tools {
namespace {

Error output_error(const char* action, const std::string& path) {
  ErrorCode code = ErrorCode::kIo;
  if (errno == ENOENT || errno == ENOTDIR) code = ErrorCode::kNotFound;
  if (errno == EACCES || errno == EPERM || errno == EROFS) code = ErrorCode::kPermission;
  return {code, std::string("cannot ") + action + " " + path + ": " + std::strerror(errno)};
}

}  // namespace

BatchOutput::BatchOutput(BatchOutput&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      repaired_(other.repaired_),
      found_count_(other.found_count_),
      answered_(std::move(other.answered_)),
      failed_(std::move(other.failed_)) {}

BatchOutput::~BatchOutput() {
  if (fd_ >= 0) ::close(fd_);  // and with it goes the lock
}

Result<BatchOutput> BatchOutput::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return output_error("open", path);
  BatchOutput output(path, fd);
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return output_error("inspect", path);
  if (!S_ISREG(info.st_mode)) {
    return Error{ErrorCode::kInvalid,
                 path + " is not a regular file; a batch needs one to go on from"};
  }
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    return Error{ErrorCode::kInvalid, "another galley batch is writing to " + path};
  }
  TRY(output.read_records());
  return output;
}

Result<void> BatchOutput::read_records() {
  if (::lseek(fd_, 0, SEEK_SET) != 0) return output_error("read", path_);
  LineReader reader = LineReader::of(fd_, path_, serve::kBatchRecordBytesMax);
  while (const std::optional<Line> line = TRY(reader.next())) {
    if (!line->ended) {  // torn by a kill: its request is still to be answered
      if (::ftruncate(fd_, line->begin) != 0) return output_error("repair", path_);
      repaired_ = true;
      break;
    }
    const Result<serve::BatchRecord> record = serve::parse_batch_record(line->text);
    if (line->too_long || !record) {
      return Error{ErrorCode::kCorrupt,
                   path_ + " line " + std::to_string(line->number) +
                       " is no record of galley batch; name another file with --out"};
    }
    ++found_count_;
    if (record->failed) {
      failed_[record->line_number] = record->line_hash;
    } else {
      answered_.insert(record->custom_id);
    }
  }
  return {};
}

bool BatchOutput::holds_failure(int64_t line_number, uint64_t line_hash) const {
  const auto found = failed_.find(line_number);
  return found != failed_.end() && found->second == line_hash;
}

Result<void> BatchOutput::append(std::string_view line) {
  while (!line.empty()) {  // one write, unless the disk is full or a signal cuts it
    const ssize_t written = ::write(fd_, line.data(), line.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return output_error("write", path_);
    line.remove_prefix(static_cast<size_t>(written));
  }
  return {};
}

Result<void> BatchOutput::sync() {
  if (::fdatasync(fd_) != 0 && errno != EINVAL) return output_error("write", path_);
  return {};
}

bool BatchOutput::is_same_file(const std::string& path) const {
  struct stat mine = {};
  struct stat other = {};
  return ::fstat(fd_, &mine) == 0 && ::stat(path.c_str(), &other) == 0 &&
         mine.st_dev == other.st_dev && mine.st_ino == other.st_ino;
}

}  // namespace galley::tools
