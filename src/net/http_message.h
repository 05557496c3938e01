// HTTP requests and responses as plain values, and how a response is written.
//
// Knows nothing of sockets. Names of fields are kept as they came and compared
// without regard to case.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace galley::net {

struct HttpField {
  std::string name;
  std::string value;
};

struct HttpRequest {
  std::string method;
  std::string path;   // of the target, before "?"
  std::string query;  // after "?"
  std::vector<HttpField> fields;
  std::string body;
  std::string peer;  // address of the client, as text
  bool keep_alive = true;
  bool can_stream = true;  // HTTP/1.1: takes a chunked answer

  // The first field of that name, or nothing.
  std::optional<std::string_view> field(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::vector<HttpField> fields = {};
  std::string body = {};
};

// "%41" as "A"; what is no such escape stays as it is.
std::string percent_decode(std::string_view text);

bool equal_ignoring_case(std::string_view a, std::string_view b);
std::string_view status_text(int status);

enum class BodyFraming : uint8_t {
  kLength,      // Content-Length
  kChunked,     // a stream to an HTTP/1.1 client
  kUntilClose,  // a stream to an older client
};

struct HeadOptions {
  BodyFraming framing = BodyFraming::kLength;
  bool keep_alive = true;
  int64_t now_s = 0;  // of the Date field, seconds since 1970
};

// Status line and fields, with the empty line. Control characters in values become spaces, so
// that nothing from outside can end a field.
std::string response_head(const HttpResponse& response, const HeadOptions& options);

// One chunk of a chunked body, not empty; the last one is "0\r\n\r\n".
void append_chunk(std::string_view bytes, std::string& out);
constexpr std::string_view kLastChunk = "0\r\n\r\n";

}  // namespace galley::net
