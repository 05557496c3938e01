#include "serve/api_files.h"

#include <charconv>

#include "serve/api_pages.h"
#include "serve/multipart.h"

namespace galley::serve {
namespace {

Json file_json(const FileRecord& file) {
  Json json;
  json["id"] = file.id;
  json["object"] = "file";
  json["bytes"] = file.bytes;
  json["created_at"] = file.created_at;
  if (file.expires_at) json["expires_at"] = *file.expires_at;
  json["filename"] = file.filename;
  json["purpose"] = file.purpose;
  json["status"] = "processed";
  return json;
}

Error invalid(std::string message) { return {ErrorCode::kInvalid, std::move(message)}; }

Result<void> take_parameter(std::string_view key, std::string_view value, ListQuery& query) {
  constexpr int32_t kLimitMax = 100;
  if (key == "limit") {
    const auto [end, code] =
        std::from_chars(value.data(), value.data() + value.size(), query.limit);
    const bool whole = code == std::errc() && end == value.data() + value.size();
    if (!whole || query.limit < 1 || query.limit > kLimitMax) {
      return invalid("limit: must be an integer in 1.." + std::to_string(kLimitMax));
    }
  } else if (key == "after") {
    query.after = value.substr(0, kFilenameBytesMax);
  } else if (key == "order") {
    if (value != "asc" && value != "desc") return invalid("order: must be asc or desc");
    query.ascending = value == "asc";
  }
  return {};
}

}  // namespace

Result<FileUpload> parse_file_upload(std::string_view content_type, std::string_view body) {
  const std::string boundary = TRY(form_boundary(content_type));
  std::optional<FileUpload> upload;
  std::string purpose;
  for (const FormPart& part : TRY(parse_form(body, boundary))) {
    if (part.name == "purpose") purpose = part.content.substr(0, kFilenameBytesMax);
    if (part.name != "file") continue;
    if (upload) return invalid("file: is there twice");
    upload = FileUpload{part.filename.substr(0, kFilenameBytesMax), part.content};
  }
  if (!upload) return invalid("file: missing");
  if (purpose.empty()) return invalid("purpose: missing; \"batch\" is the one that is taken");
  if (purpose != "batch") {
    return Error{ErrorCode::kUnsupported, "purpose: only \"batch\" is supported"};
  }
  return *upload;
}

std::string file_body(const FileRecord& file) { return json_text(file_json(file)); }

std::string file_deleted_body(std::string_view id) {
  return json_text(Json{{"id", id}, {"object", "file"}, {"deleted", true}});
}

Result<ListQuery> parse_list_query(std::string_view query) {
  ListQuery parsed;
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(pair.size() + 1, query.size()));
    const size_t equals = std::min(pair.find('='), pair.size());
    TRY(take_parameter(pair.substr(0, equals), pair.substr(std::min(equals + 1, pair.size())),
                       parsed));
  }
  return parsed;
}

std::string files_body(std::span<const FileRecord> files, const ListQuery& query) {
  return page_body(files, query, file_json);
}

}  // namespace galley::serve
