#include "serve/multipart.h"

#include <algorithm>
#include <optional>

namespace galley::serve {
namespace {

constexpr size_t kBoundaryBytesMax = 70;  // RFC 2046
constexpr std::string_view kLineEnd = "\r\n";

Error invalid(std::string message) { return {ErrorCode::kInvalid, std::move(message)}; }

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool starts_with_word(std::string_view text, std::string_view word) {
  return text.size() >= word.size() && std::equal(word.begin(), word.end(), text.begin(),
                                                  [](char a, char b) { return a == lower(b); });
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// The parameter of a header's value: `; key=value` or `; key="value"` with \" and \\ inside.
std::optional<std::string> parameter(std::string_view value, std::string_view key) {
  size_t at = value.find(';');
  while (at != std::string_view::npos) {
    std::string_view rest = trimmed(value.substr(at + 1));
    const bool found =
        starts_with_word(rest, key) && rest.size() > key.size() && rest[key.size()] == '=';
    const size_t equals = rest.find('=');
    if (equals == std::string_view::npos) return std::nullopt;
    rest.remove_prefix(equals + 1);
    std::string text;
    size_t used = 0;
    if (!rest.empty() && rest.front() == '"') {
      for (used = 1; used < rest.size() && rest[used] != '"'; ++used) {
        if (rest[used] == '\\' && used + 1 < rest.size()) ++used;
        text += rest[used];
      }
    } else {
      used = std::min(rest.find(';'), rest.size());
      text = trimmed(rest.substr(0, used));
    }
    if (found) return text;
    value = rest.substr(std::min(used, rest.size()));
    at = value.find(';');
  }
  return std::nullopt;
}

// "Content-Disposition: form-data; name=...; filename=..." among the part's header lines.
Result<FormPart> parse_head(std::string_view head) {
  constexpr std::string_view kDisposition = "content-disposition:";
  while (!head.empty()) {
    const size_t end = std::min(head.find(kLineEnd), head.size());
    const std::string_view line = head.substr(0, end);
    head.remove_prefix(std::min(end + kLineEnd.size(), head.size()));
    if (!starts_with_word(line, kDisposition)) continue;
    FormPart part;
    const std::optional<std::string> name = parameter(line, "name");
    if (!name || name->empty()) break;
    part.name = *name;
    part.filename = parameter(line, "filename").value_or("");
    return part;
  }
  return invalid("a part of the form has no name");
}

}  // namespace

Result<std::string> form_boundary(std::string_view content_type) {
  if (!starts_with_word(content_type, "multipart/form-data")) {
    return invalid("Content-Type must be multipart/form-data");
  }
  const std::optional<std::string> boundary = parameter(content_type, "boundary");
  if (!boundary || boundary->empty() || boundary->size() > kBoundaryBytesMax) {
    return invalid("Content-Type names no boundary of 1 to " + std::to_string(kBoundaryBytesMax) +
                   " bytes");
  }
  return *boundary;
}

Result<std::vector<FormPart>> parse_form(std::string_view body, std::string_view boundary) {
  std::string delimiter = "--";
  delimiter += boundary;
  if (!body.starts_with(delimiter)) return invalid("the form does not begin with its boundary");
  body.remove_prefix(delimiter.size());
  delimiter.insert(0, kLineEnd);
  std::vector<FormPart> parts;
  while (!body.starts_with("--")) {
    if (!body.starts_with(kLineEnd)) return invalid("a boundary of the form is not a whole line");
    if (parts.size() == kPartsMax) {
      return invalid("the form has more than " + std::to_string(kPartsMax) + " parts");
    }
    const size_t head_end = body.substr(0, kPartHeadBytesMax).find("\r\n\r\n");
    if (head_end == std::string_view::npos) {
      return invalid("a part of the form has no end of its headers within " +
                     std::to_string(kPartHeadBytesMax) + " bytes");
    }
    FormPart part = TRY(parse_head(body.substr(0, head_end)));
    body.remove_prefix(head_end + 2 * kLineEnd.size());
    const size_t end = body.find(delimiter);
    if (end == std::string_view::npos) return invalid("the form ends without its last boundary");
    part.content = body.substr(0, end);
    body.remove_prefix(end + delimiter.size());
    parts.push_back(std::move(part));
  }
  return parts;
}

}  // namespace galley::serve
