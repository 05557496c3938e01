// What a client is told when something is wrong, in the shape of its own API.
//
// A fault is one of a fixed list; the tables here alone know its HTTP status
// and its names in the OpenAI and the Anthropic dialect. Knows no sockets.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace galley::serve {

enum class ApiDialect : uint8_t { kOpenAi, kAnthropic };

enum class ApiFault : uint8_t {
  kInvalid,        // the request is wrong
  kUnsupported,    // understood, but not offered here
  kContextLength,  // prompt and answer do not fit the model
  kUnauthorised,   // no key, or an unknown one
  kForbidden,      // the key lacks the scope
  kNotFound,       // no such path, file or batch
  kModelNotFound,
  kMethod,       // the path exists, the method does not
  kTooLarge,     // body or headers over their limit
  kRateLimited,  // this key's limit; comes with Retry-After
  kOverloaded,   // everybody's limit; comes with Retry-After
  kDraining,     // the server is going down
  kTimedOut,
  kInternal,
};

struct ApiError {
  ApiFault fault = ApiFault::kInternal;
  std::string message;  // one sentence, for people
  std::string param;    // the field it is about, as a path; empty: none
};

// An operating error as a client's. The field's path that parsers put in front of the reason
// ("messages[0].role: missing") becomes `param` and stays in the message.
ApiError api_error(const Error& error);

int32_t http_status(ApiFault fault, ApiDialect dialect);

// Whole bodies, without a line feed. `request_id` may be empty.
std::string error_body(const ApiError& error, ApiDialect dialect, std::string_view request_id);

// The stable name of a fault, for code fields, logs and metrics: "rate_limit_exceeded".
std::string_view fault_code(ApiFault fault);

// Whose errors a path speaks: /v1/messages and below are Anthropic's, also under /anthropic.
ApiDialect dialect_of(std::string_view path);

}  // namespace galley::serve
