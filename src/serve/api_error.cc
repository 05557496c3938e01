#include "serve/api_error.h"

#include <algorithm>
#include <array>

#include "base/utf8.h"
#include "serve/api_json.h"

namespace galley::serve {
namespace {

struct FaultRow {
  ApiFault fault;
  int32_t status;
  std::string_view code;
  std::string_view openai_type;
  std::string_view anthropic_type;
  int32_t anthropic_status;
};

constexpr std::array<FaultRow, 14> kFaults = {{
    {ApiFault::kInvalid, 400, "invalid_value", "invalid_request_error", "invalid_request_error",
     400},
    {ApiFault::kUnsupported, 400, "unsupported_feature", "invalid_request_error",
     "invalid_request_error", 400},
    {ApiFault::kContextLength, 400, "context_length_exceeded", "invalid_request_error",
     "invalid_request_error", 400},
    {ApiFault::kUnauthorised, 401, "invalid_api_key", "authentication_error",
     "authentication_error", 401},
    {ApiFault::kForbidden, 403, "insufficient_scope", "permission_error", "permission_error", 403},
    {ApiFault::kNotFound, 404, "not_found", "invalid_request_error", "not_found_error", 404},
    {ApiFault::kModelNotFound, 404, "model_not_found", "invalid_request_error", "not_found_error",
     404},
    {ApiFault::kMethod, 405, "method_not_allowed", "invalid_request_error", "invalid_request_error",
     405},
    {ApiFault::kTooLarge, 413, "request_too_large", "invalid_request_error", "request_too_large",
     413},
    {ApiFault::kRateLimited, 429, "rate_limit_exceeded", "rate_limit_error", "rate_limit_error",
     429},
    {ApiFault::kOverloaded, 503, "server_overloaded", "server_error", "overloaded_error", 529},
    {ApiFault::kDraining, 503, "server_shutting_down", "server_error", "overloaded_error", 529},
    {ApiFault::kTimedOut, 504, "timeout", "server_error", "timeout_error", 504},
    {ApiFault::kInternal, 500, "internal_error", "server_error", "api_error", 500},
}};

const FaultRow& row_of(ApiFault fault) {
  const auto* const row = std::find_if(kFaults.begin(), kFaults.end(),
                                       [&](const FaultRow& each) { return each.fault == fault; });
  CHECK(row != kFaults.end());
  return *row;
}

// "messages[3].content" and the like; the root calls itself "top level".
bool is_field_path(std::string_view text) {
  return !text.empty() && text.find_first_not_of(
                              "abcdefghijklmnopqrstuvwxyz"
                              "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                              "0123456789_.-[]") == std::string_view::npos;
}

ApiFault fault_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalid:
      return ApiFault::kInvalid;
    case ErrorCode::kNotFound:
      return ApiFault::kNotFound;
    case ErrorCode::kPermission:
      return ApiFault::kForbidden;
    case ErrorCode::kUnsupported:
      return ApiFault::kUnsupported;
    case ErrorCode::kExhausted:
      return ApiFault::kOverloaded;
    case ErrorCode::kCancelled:
      return ApiFault::kDraining;
    case ErrorCode::kCorrupt:
    case ErrorCode::kIo:
      return ApiFault::kInternal;
  }
  return ApiFault::kInternal;
}

}  // namespace

ApiError api_error(const Error& error) {
  ApiError told{fault_of(error.code), to_utf8(error.message), ""};
  // Messages may quote what the client sent; they stay one line, in logs too.
  for (char& c : told.message) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  const size_t colon = error.message.find(": ");
  if (colon != std::string::npos && is_field_path(std::string_view(error.message).substr(0, colon)))
    told.param = error.message.substr(0, colon);
  return told;
}

int32_t http_status(ApiFault fault, ApiDialect dialect) {
  const FaultRow& row = row_of(fault);
  return dialect == ApiDialect::kAnthropic ? row.anthropic_status : row.status;
}

std::string_view fault_code(ApiFault fault) { return row_of(fault).code; }

ApiDialect dialect_of(std::string_view path) {
  constexpr std::string_view kMessages = "/v1/messages";
  constexpr std::string_view kAnthropic = "/anthropic/";
  const bool messages = path.starts_with(kMessages) &&
                        (path.size() == kMessages.size() || path[kMessages.size()] == '/' ||
                         path[kMessages.size()] == '?');
  return messages || path.starts_with(kAnthropic) ? ApiDialect::kAnthropic : ApiDialect::kOpenAi;
}

std::string error_body(const ApiError& error, ApiDialect dialect, std::string_view request_id) {
  const FaultRow& row = row_of(error.fault);
  Json body;
  if (dialect == ApiDialect::kAnthropic) {
    body["type"] = "error";
    body["error"] = {{"type", row.anthropic_type}, {"message", error.message}};
    if (!request_id.empty()) body["request_id"] = request_id;
    return json_text(body);
  }
  Json& inner = body["error"];
  inner["message"] = error.message;
  inner["type"] = row.openai_type;
  inner["param"] = nullptr;
  if (!error.param.empty()) inner["param"] = error.param;
  inner["code"] = row.code;
  if (!request_id.empty()) inner["request_id"] = request_id;
  return json_text(body);
}

}  // namespace galley::serve
