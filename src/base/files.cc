#include "base/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/file.h"
#include "base/file_descriptor.h"

namespace galley {
namespace {

Error failed(const std::string& path, int code) {
  const bool full = code == ENOSPC || code == EDQUOT || code == EFBIG;
  return {full ? ErrorCode::kExhausted : ErrorCode::kIo, path + ": " + std::strerror(code)};
}

struct HeldLock : Files::Lock {
  explicit HeldLock(int fd) : file(fd) {}
  const FileDescriptor file;
};

class SystemFiles : public Files {
 public:
  Result<void> make_directory(const std::string& path) override {
    if (::mkdir(path.c_str(), 0700) == 0) return sync_folder_of(path);
    if (errno == EEXIST && is_directory(path)) return {};
    return failed(path, errno == EEXIST ? ENOTDIR : errno);
  }

  Result<std::unique_ptr<Lock>> lock(const std::string& path) override {
    auto lock =
        std::make_unique<HeldLock>(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (lock->file.get() < 0) return failed(path, errno);
    if (::flock(lock->file.get(), LOCK_EX | LOCK_NB) != 0) {
      return Error{ErrorCode::kInvalid, path + ": is locked"};
    }
    return std::unique_ptr<Lock>(std::move(lock));
  }

  bool exists(const std::string& path) const override { return galley::exists(path); }

  std::vector<std::string> names(const std::string& folder) const override {
    std::vector<std::string> names;
    std::error_code code;
    for (const auto& entry : std::filesystem::directory_iterator(folder, code)) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  Result<std::string> read(const std::string& path, size_t bytes_max) const override {
    return read_file(path, bytes_max);
  }

  Result<void> replace(const std::string& path, std::string_view content) override {
    return write_file_atomic(path, content);
  }

  Result<void> append(const std::string& path, std::string_view text) override {
    const FileDescriptor file(
        ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    if (file.get() < 0) return failed(path, errno);
    const off_t before = ::lseek(file.get(), 0, SEEK_END);
    int code = 0;
    while (!text.empty() && code == 0) {
      const ssize_t count = ::write(file.get(), text.data(), text.size());
      if (count >= 0) {
        text.remove_prefix(static_cast<size_t>(count));
      } else if (errno != EINTR) {
        code = errno;
      }
    }
    if (code != 0 && ::ftruncate(file.get(), before) != 0) code = errno;
    if (code != 0) return failed(path, code);
    return {};
  }

  Result<void> truncate(const std::string& path, size_t bytes) override {
    if (::truncate(path.c_str(), static_cast<off_t>(bytes)) != 0) return failed(path, errno);
    return {};
  }

  Result<void> sync(const std::string& path) override {
    const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (file.get() < 0 || ::fdatasync(file.get()) != 0) return failed(path, errno);
    return sync_folder_of(path);
  }

  Result<void> remove(const std::string& path) override {
    if (::unlink(path.c_str()) == 0) return sync_folder_of(path);
    if (errno == ENOENT) return {};
    return failed(path, errno);
  }
};

}  // namespace

Files& system_files() {
  static SystemFiles files;  // holds nothing
  return files;
}

}  // namespace galley
