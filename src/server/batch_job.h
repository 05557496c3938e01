// One batch on the desk: how far its input was read, its answers, and how much of
// them is kept. Belongs to the desk.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/api_batches.h"
#include "server/batch_desk.h"
#include "server/state_directory.h"

namespace galley::server {

struct BatchDesk::Job {
  Job(std::string whose, serve::BatchRun run_of_it)
      : owner(std::move(whose)), run(std::move(run_of_it)) {}

  // The next line of the input that is not empty; nothing at its end.
  std::optional<std::string_view> next_line() {
    const std::string_view text = *input;
    while (offset < text.size()) {
      const size_t end = std::min(text.find('\n', offset), text.size());
      std::string_view line = text.substr(offset, end - offset);
      offset = end + 1;
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (!line.empty()) return line;
    }
    return std::nullopt;
  }

  // An answer that could not be kept yet.
  struct Unkept {
    StateDirectory::Journal journal;
    std::string line;
  };

  struct Counts {
    int64_t completed = 0;
    int64_t failed = 0;
    int64_t all() const { return completed + failed; }
  };

  std::string owner;
  serve::BatchRun run;
  std::shared_ptr<const std::string> input;
  size_t offset = 0;
  bool at_end = false;
  std::deque<serve::BatchCall> turned_away;  // at most in_flight_max
  std::string output;                        // answers that will be files
  std::string errors;

  // With a state directory. A line's way: unkept, in a journal, on the disk.
  std::deque<Unkept> unkept;  // at most in_flight_max: no line begins while there are any
  Counts journaled;
  Counts on_disk;     // what clients are told
  bool torn = false;  // a sync failed: the journals have to be written again
  // As the state directory has it: the status, and whether files are named.
  std::optional<std::pair<serve::BatchStatus, bool>> kept;

  // The answers as files, while these are being kept.
  std::vector<StoredFile> made;
  bool keeping_files = false;
};

}  // namespace galley::server
