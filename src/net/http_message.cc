#include "net/http_message.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <ctime>
#include <utility>

namespace galley::net {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

void append_field(std::string_view name, std::string_view value, std::string& out) {
  out += name;
  out += ": ";
  for (const char c : value) {
    out += static_cast<unsigned char>(c) < 0x20 || c == 0x7F ? ' ' : c;
  }
  out += "\r\n";
}

// RFC 9110 5.6.7; strftime would follow the locale.
std::string http_date(int64_t now_s) {
  constexpr std::array<const char*, 7> kDays = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr std::array<const char*, 12> kMonths = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                   "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::time_t time = now_s;
  std::tm parts = {};
  ::gmtime_r(&time, &parts);
  char text[64];
  const int size = std::snprintf(text, sizeof text, "%s, %02d %s %04d %02d:%02d:%02d GMT",
                                 kDays[static_cast<size_t>(parts.tm_wday)], parts.tm_mday,
                                 kMonths[static_cast<size_t>(parts.tm_mon)], parts.tm_year + 1900,
                                 parts.tm_hour, parts.tm_min, parts.tm_sec);
  return std::string(text, static_cast<size_t>(size));
}

}  // namespace

std::string percent_decode(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    if (text[i] == '%' && i + 2 < text.size()) {
      const char* begin = text.data() + i + 1;
      const auto [end, code] = std::from_chars(begin, begin + 2, value, 16);
      if (code == std::errc() && end == begin + 2) {
        out += static_cast<char>(value);
        i += 2;
        continue;
      }
    }
    out += text[i];
  }
  return out;
}

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

std::optional<std::string_view> HttpRequest::field(std::string_view name) const {
  for (const HttpField& one : fields) {
    if (equal_ignoring_case(one.name, name)) return one.value;
  }
  return std::nullopt;
}

std::string_view status_text(int status) {
  constexpr std::array<std::pair<int, std::string_view>, 24> kTexts = {{
      {100, "Continue"},
      {200, "OK"},
      {202, "Accepted"},
      {204, "No Content"},
      {304, "Not Modified"},
      {400, "Bad Request"},
      {401, "Unauthorized"},
      {403, "Forbidden"},
      {404, "Not Found"},
      {405, "Method Not Allowed"},
      {408, "Request Timeout"},
      {409, "Conflict"},
      {411, "Length Required"},
      {413, "Content Too Large"},
      {415, "Unsupported Media Type"},
      {422, "Unprocessable Content"},
      {429, "Too Many Requests"},
      {431, "Request Header Fields Too Large"},
      {500, "Internal Server Error"},
      {501, "Not Implemented"},
      {503, "Service Unavailable"},
      {504, "Gateway Timeout"},
      {505, "HTTP Version Not Supported"},
      {529, "Overloaded"},
  }};
  for (const auto& [code, text] : kTexts) {
    if (code == status) return text;
  }
  return "Unknown";
}

std::string response_head(const HttpResponse& response, const HeadOptions& options) {
  std::string out = "HTTP/1.1 " + std::to_string(response.status) + " ";
  out += status_text(response.status);
  out += "\r\n";
  append_field("Date", http_date(options.now_s), out);
  for (const HttpField& field : response.fields) append_field(field.name, field.value, out);
  switch (options.framing) {
    case BodyFraming::kLength:
      append_field("Content-Length", std::to_string(response.body.size()), out);
      break;
    case BodyFraming::kChunked:
      append_field("Transfer-Encoding", "chunked", out);
      break;
    case BodyFraming::kUntilClose:
      break;
  }
  append_field("Connection", options.keep_alive ? "keep-alive" : "close", out);
  out += "\r\n";
  return out;
}

void append_chunk(std::string_view bytes, std::string& out) {
  char size[16];
  const auto end = std::to_chars(size, size + sizeof size, bytes.size(), 16).ptr;
  out.append(size, end);
  out += "\r\n";
  out += bytes;
  out += "\r\n";
}

}  // namespace galley::net
