// What a program keeps on a disk, behind an interface, so that a test can cut the
// power of one (server/power_cut_files.h).
//
// Two promises are told apart: what survives the end of the process, and what
// survives the end of the machine. Knows no formats. Every error names the path.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace galley {

class Files {
 public:
  // Held while it exists.
  class Lock {
   public:
    virtual ~Lock() = default;
  };

  virtual ~Files() = default;

  // The folder, only for this user; no error when it is there.
  virtual Result<void> make_directory(const std::string& path) = 0;
  // kInvalid when somebody else has it.
  virtual Result<std::unique_ptr<Lock>> lock(const std::string& path) = 0;

  virtual bool exists(const std::string& path) const = 0;
  // Names in a folder, sorted; none when there is no such folder.
  virtual std::vector<std::string> names(const std::string& folder) const = 0;
  virtual Result<std::string> read(const std::string& path, size_t bytes_max) const = 0;

  // The old content or the new one, whatever ends when; the new one survives the machine when this
  // returns.
  virtual Result<void> replace(const std::string& path, std::string_view content) = 0;
  // All of the text or nothing of it; survives the process when this returns, the machine after
  // sync(). kExhausted: no room.
  virtual Result<void> append(const std::string& path, std::string_view text) = 0;
  virtual Result<void> truncate(const std::string& path, size_t bytes) = 0;
  // Content and name survive the machine. Any thread. After an error nobody knows what of the
  // content does: it has to be replaced.
  virtual Result<void> sync(const std::string& path) = 0;
  // Survives the machine when this returns; no error when it is not there.
  virtual Result<void> remove(const std::string& path) = 0;
};

// The system's.
Files& system_files();

}  // namespace galley
