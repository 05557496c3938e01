// Shows that TRY passes errors up and values through, void results included.
#include "base/result.h"

#include <gtest/gtest.h>

#include <memory>

namespace galley {
namespace {

Result<int> half(int value) {
  if (value % 2 != 0) return Error{ErrorCode::kInvalid, "odd"};
  return value / 2;
}

Result<void> require_even(int value) {
  TRY(half(value));
  return {};
}

Result<int> quarter(int value) {
  TRY(require_even(value));
  const int once = TRY(half(value));
  return TRY(half(once));
}

Result<std::unique_ptr<int>> boxed(int value) { return std::make_unique<int>(TRY(half(value))); }

TEST(Result, PassesValuesThrough) { EXPECT_EQ(quarter(8).value(), 2); }

TEST(Result, PassesErrorsUp) {
  const Result<int> result = quarter(6);
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, ErrorCode::kInvalid);
  EXPECT_EQ(result.error().message, "odd");
}

TEST(Result, MovesWhatCannotBeCopied) {
  std::unique_ptr<int> value = *boxed(4);
  EXPECT_EQ(*value, 2);
  EXPECT_FALSE(boxed(3).has_value());
}

TEST(Result, ContextIsPutInFront) {
  const Error error = with_context(half(1).error(), "reading x");
  EXPECT_EQ(error.message, "reading x: odd");
}

TEST(ResultDeathTest, TakingTheWrongSideIsABug) { EXPECT_DEATH(half(1).value(), "CHECK"); }

}  // namespace
}  // namespace galley
