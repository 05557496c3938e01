#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/file_descriptor.h"
#include "base/mapping_fault.h"

namespace galley {
namespace {

Error system_error(const char* action, const std::string& path, int number) {
  ErrorCode code = ErrorCode::kIo;
  if (number == ENOENT || number == ENOTDIR) code = ErrorCode::kNotFound;
  if (number == EACCES || number == EPERM) code = ErrorCode::kPermission;
  return {code, std::string("cannot ") + action + " " + path + ": " + std::strerror(number)};
}

Result<size_t> regular_size(int fd, const std::string& path) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return system_error("inspect", path, errno);
  if (!S_ISREG(info.st_mode)) {
    return Error{ErrorCode::kInvalid, "cannot read " + path + ": not a regular file"};
  }
  return static_cast<size_t>(info.st_size);
}

Result<void> write_all(int fd, std::string_view content, const std::string& path) {
  while (!content.empty()) {
    const ssize_t written = ::write(fd, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return system_error("write", path, errno);
    content.remove_prefix(static_cast<size_t>(written));
  }
  return {};
}

}  // namespace

MappedFile::MappedFile(std::string path, const std::byte* data, size_t size)
    : path_(std::move(path)), data_(data), size_(size) {
  if (data_ != nullptr) watch_mapping(data_, size_, path_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  forget_mapping(data_);
  ::munmap(const_cast<std::byte*>(data_), size_);
}

Result<MappedFile> MappedFile::open(const std::string& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return system_error("open", path, errno);
  const size_t size = TRY(regular_size(file.get(), path));
  if (size == 0) return MappedFile(path, nullptr, 0);  // mmap refuses empty files
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
  if (data == MAP_FAILED) return system_error("map", path, errno);
  return MappedFile(path, static_cast<const std::byte*>(data), size);
}

Result<std::string> read_file(const std::string& path, size_t bytes_max) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return system_error("open", path, errno);
  const size_t size = TRY(regular_size(file.get(), path));
  if (size > bytes_max) {
    return Error{ErrorCode::kInvalid, "cannot read " + path + ": " + std::to_string(size) +
                                          " bytes, at most " + std::to_string(bytes_max) +
                                          " are accepted"};
  }
  std::string content(size, '\0');
  size_t filled = 0;
  while (filled < size) {
    const ssize_t count = ::read(file.get(), content.data() + filled, size - filled);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_error("read", path, errno);
    if (count == 0) break;  // the file shrank: what is there is all there is
    filled += static_cast<size_t>(count);
  }
  content.resize(filled);
  return content;
}

Result<void> write_file_atomic(const std::string& path, std::string_view content) {
  const std::string temporary = path + ".part";
  {
    const FileDescriptor file(
        ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (file.get() < 0) return system_error("create", temporary, errno);
    TRY(write_all(file.get(), content, temporary));
    if (::fsync(file.get()) != 0) return system_error("write", temporary, errno);
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) return system_error("rename", path, errno);
  return sync_folder_of(path);
}

Result<void> sync_folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const FileDescriptor directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() < 0) return system_error("open", folder, errno);
  // Some file systems have nothing to sync there, and say so.
  if (::fsync(directory.get()) != 0 && errno != EINVAL && errno != EROFS) {
    return system_error("write", folder, errno);
  }
  return {};
}

bool is_directory(const std::string& path) {
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

bool exists(const std::string& path) {
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0;
}

}  // namespace galley
