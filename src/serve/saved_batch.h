// Files and batches as the state directory keeps them: JSON texts of what no
// client needs to say twice.
//
// Pure: where the texts lie, and when they are written, is the caller's business.
// A text of another version is refused, not guessed at.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "serve/api_batches.h"
#include "serve/api_files.h"

namespace galley::serve {

struct SavedFile {
  std::string owner;  // the name of the key that it came with; empty without keys
  FileRecord record;
};

struct SavedBatch {
  std::string owner;
  ApiBatch batch;
};

std::string saved_file_text(const SavedFile& file);
Result<SavedFile> parse_saved_file(std::string_view text);
std::string saved_batch_text(const SavedBatch& batch);
Result<SavedBatch> parse_saved_batch(std::string_view text);

// Whose answer a line of an output or error file is; nothing when it is no such line.
std::optional<std::string> answered_custom_id(std::string_view line);

}  // namespace galley::serve
