// Error bodies: the two dialects' shapes letter by letter, statuses, and the
// field's path found in a parser's message but not in prose.
#include "serve/api_error.h"

#include <gtest/gtest.h>

namespace galley::serve {
namespace {

TEST(ApiError, OpenAiShape) {
  const ApiError error{ApiFault::kInvalid, "messages[0].role: missing", "messages[0].role"};
  EXPECT_EQ(error_body(error, ApiDialect::kOpenAi, ""),
            R"({"error":{"message":"messages[0].role: missing","type":"invalid_request_error",)"
            R"("param":"messages[0].role","code":"invalid_value"}})");
  EXPECT_EQ(error_body({ApiFault::kOverloaded, "too many", ""}, ApiDialect::kOpenAi, "r1"),
            R"({"error":{"message":"too many","type":"server_error","param":null,)"
            R"("code":"server_overloaded","request_id":"r1"}})");
}

TEST(ApiError, AnthropicShape) {
  EXPECT_EQ(error_body({ApiFault::kOverloaded, "too many", "x"}, ApiDialect::kAnthropic, "r1"),
            R"({"type":"error","error":{"type":"overloaded_error","message":"too many"},)"
            R"("request_id":"r1"})");
}

TEST(ApiError, StatusOfEveryFault) {
  EXPECT_EQ(http_status(ApiFault::kContextLength, ApiDialect::kOpenAi), 400);
  EXPECT_EQ(http_status(ApiFault::kUnauthorised, ApiDialect::kOpenAi), 401);
  EXPECT_EQ(http_status(ApiFault::kModelNotFound, ApiDialect::kAnthropic), 404);
  EXPECT_EQ(http_status(ApiFault::kRateLimited, ApiDialect::kOpenAi), 429);
  EXPECT_EQ(http_status(ApiFault::kDraining, ApiDialect::kOpenAi), 503);
  EXPECT_EQ(http_status(ApiFault::kDraining, ApiDialect::kAnthropic), 529);
  for (int fault = 0; fault <= static_cast<int>(ApiFault::kInternal); ++fault) {
    EXPECT_GE(http_status(static_cast<ApiFault>(fault), ApiDialect::kOpenAi), 400);
    EXPECT_FALSE(fault_code(static_cast<ApiFault>(fault)).empty());
  }
}

TEST(ApiError, ParamIsThePathInFront) {
  EXPECT_EQ(api_error({ErrorCode::kInvalid, "tools[2].function.name: is empty"}).param,
            "tools[2].function.name");
  EXPECT_EQ(api_error({ErrorCode::kInvalid, "top level: must be a JSON object"}).param, "");
  EXPECT_EQ(api_error({ErrorCode::kInvalid, "not valid JSON at byte 7: not UTF-8"}).param, "");
  EXPECT_EQ(api_error({ErrorCode::kUnsupported, "n: is 5"}).fault, ApiFault::kUnsupported);
  EXPECT_EQ(api_error({ErrorCode::kExhausted, "full"}).fault, ApiFault::kOverloaded);
}

TEST(ApiError, PathsSpeakTheirDialect) {
  EXPECT_EQ(dialect_of("/v1/messages"), ApiDialect::kAnthropic);
  EXPECT_EQ(dialect_of("/v1/messages/count_tokens"), ApiDialect::kAnthropic);
  EXPECT_EQ(dialect_of("/anthropic/v1/messages"), ApiDialect::kAnthropic);
  EXPECT_EQ(dialect_of("/v1/messagesx"), ApiDialect::kOpenAi);
  EXPECT_EQ(dialect_of("/v1/chat/completions"), ApiDialect::kOpenAi);
}

}  // namespace
}  // namespace galley::serve
