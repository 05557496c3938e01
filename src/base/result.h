// A value or an Error, for everything that can go wrong in operation.
//
// Bad input, I/O, exhausted resources and vanished peers are values of this
// type; bugs are CHECK (base/check.h). The member names are those of
// std::expected, which neither clang 14 nor nvcc offers in C++20.
#pragma once

#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "base/check.h"

namespace galley {

// One table maps these to exit codes (tools/exit_code.h) and, later, to HTTP.
enum class ErrorCode {
  kInvalid,      // the caller's input is wrong
  kNotFound,     // a named file, tensor or key does not exist
  kPermission,   // the system refused access
  kCorrupt,      // stored data contradicts itself
  kUnsupported,  // understood, but this build or machine cannot do it
  kExhausted,    // no pages, slots or memory left
  kIo,           // the system failed to read or write
  kCancelled,    // stopped on request
};

// `message` is one line: what, where, why and, where known, what to do next.
struct Error {
  ErrorCode code;
  std::string message;
};

template <class T>
class [[nodiscard]] Result {
 public:
  using value_type = T;

  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT: implicit
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT: implicit

  bool has_value() const { return state_.index() == 0; }
  explicit operator bool() const { return has_value(); }

  T& value() & {
    CHECK(has_value());
    return *std::get_if<0>(&state_);
  }
  const T& value() const& {
    CHECK(has_value());
    return *std::get_if<0>(&state_);
  }
  T&& value() && {
    CHECK(has_value());
    return std::move(*std::get_if<0>(&state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  Error& error() & {
    CHECK(!has_value());
    return *std::get_if<1>(&state_);
  }
  const Error& error() const& {
    CHECK(!has_value());
    return *std::get_if<1>(&state_);
  }
  Error&& error() && {
    CHECK(!has_value());
    return std::move(*std::get_if<1>(&state_));
  }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  using value_type = void;

  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT: implicit

  bool has_value() const { return !error_.has_value(); }
  explicit operator bool() const { return has_value(); }
  void value() const { CHECK(has_value()); }

  Error& error() & {
    CHECK(!has_value());
    return *error_;
  }
  const Error& error() const& {
    CHECK(!has_value());
    return *error_;
  }
  Error&& error() && {
    CHECK(!has_value());
    return std::move(*error_);
  }

 private:
  std::optional<Error> error_;
};

// The same error with what was being done put in front.
inline Error with_context(Error error, const std::string& context) {
  error.message = context + ": " + error.message;
  return error;
}

namespace result_internal {
// Lets TRY yield nothing for Result<void>, where value() returns void.
template <class R>
decltype(auto) take(R&& result) {
  if constexpr (!std::is_void_v<typename std::remove_reference_t<R>::value_type>) {
    return std::forward<R>(result).value();
  }
}
}  // namespace result_internal

}  // namespace galley

// The value of a Result, or return its error from the enclosing function.
// A GNU statement expression: g++, clang and nvcc all take it.
#define TRY(...)                                                                     \
  __extension__({                                                                    \
    auto galley_try_result = (__VA_ARGS__);                                          \
    if (!galley_try_result.has_value()) return std::move(galley_try_result).error(); \
    ::galley::result_internal::take(std::move(galley_try_result));                   \
  })
