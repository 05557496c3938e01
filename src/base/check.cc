#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace galley {

void check_failed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "galley: bug: CHECK(%s) failed at %s:%d\n", condition, file, line);
  std::abort();
}

}  // namespace galley
