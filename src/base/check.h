// Assertions for bugs, on in release builds. Input from outside never reaches
// one: that is what base/result.h is for.
#pragma once

namespace galley {

[[noreturn]] void check_failed(const char* condition, const char* file, int line);

}  // namespace galley

#define CHECK(condition)                               \
  (static_cast<bool>(condition) ? static_cast<void>(0) \
                                : ::galley::check_failed(#condition, __FILE__, __LINE__))

// Only in hot loops: gone in release builds.
#ifdef NDEBUG
#define DCHECK(condition) static_cast<void>(0)
#else
#define DCHECK(condition) CHECK(condition)
#endif
