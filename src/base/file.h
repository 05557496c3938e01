// Files as the loader needs them: read-only mappings and whole small files.
//
// Every error names the path and the system's reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"

namespace galley {

// A read-only mapping of a whole file, unmapped on destruction. Pages are read
// on first touch; a file that shrinks while mapped ends the process (mapping_fault.h).
class MappedFile {
 public:
  static Result<MappedFile> open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

 private:
  MappedFile(std::string path, const std::byte* data, size_t size);

  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// The whole file; kInvalid when it is longer than `bytes_max`.
Result<std::string> read_file(const std::string& path, size_t bytes_max);

// Writes `path` through a temporary file in the same folder, so that a reader
// sees the old content or the new one, never a part; the new one is on the disk when this returns.
Result<void> write_file_atomic(const std::string& path, std::string_view content);

// The names in the folder of `path` are on the disk.
Result<void> sync_folder_of(const std::string& path);

bool is_directory(const std::string& path);
bool exists(const std::string& path);

}  // namespace galley
