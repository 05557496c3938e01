// Bodies of /v1/files: what an upload says and what a client is told of a file.
//
// Pure: where the bytes lie is the caller's business.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace galley::serve {

constexpr size_t kFilenameBytesMax = 255;

struct FileRecord {
  std::string id;  // "file-..."
  int64_t bytes = 0;
  int64_t created_at = 0;             // Unix seconds
  std::optional<int64_t> expires_at;  // nothing: stays
  std::string filename;
  std::string purpose;  // "batch" or "batch_output"
};

struct FileUpload {
  std::string filename;      // as the client calls it: to be shown, never to be opened
  std::string_view content;  // a view into the body
};

// POST /v1/files, a form with "purpose" (batch) and "file".
Result<FileUpload> parse_file_upload(std::string_view content_type, std::string_view body);

std::string file_body(const FileRecord& file);
std::string file_deleted_body(std::string_view id);

// The query of a list: ?limit=20&after=ID&order=desc. What is not given has the API's default.
struct ListQuery {
  int32_t limit = 20;      // 1..100
  std::string after = {};  // entries that come after this one
  bool ascending = false;
};
Result<ListQuery> parse_list_query(std::string_view query);

// One page, of files that are in the query's order already.
std::string files_body(std::span<const FileRecord> files, const ListQuery& query);

}  // namespace galley::serve
