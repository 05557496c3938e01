// The name that one request has from the client to the log, and the trace that
// it belongs to (W3C Trace Context, level 1). Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <string_view>

namespace galley::server {

constexpr size_t kRequestIdBytesMax = 128;

// A client's own id is kept when it is short and printable, without spaces or quotes.
bool is_request_id(std::string_view text);

// 32 hexadecimal digits.
std::string random_hex(std::mt19937_64& random, int digits = 32);

struct TraceParent {
  std::string trace_id;   // 32 digits
  std::string parent_id;  // 16 digits
  std::string flags;      // 2 digits
};

// "00-TRACE-PARENT-FLAGS"; nothing when it is malformed, which the standard says to ignore.
std::optional<TraceParent> parse_traceparent(std::string_view text);

// The same trace with this server's span as the parent of what follows.
std::string format_traceparent(const TraceParent& trace);

}  // namespace galley::server
