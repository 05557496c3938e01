// Who wants to know how far the loading of a model is.
#pragma once

#include <cstdint>

namespace galley::tools {

class LoadWatch {
 public:
  virtual ~LoadWatch() = default;

  // A phase begins, and the one before is over: "tokenizer", "checkpoint", "weights", "engine",
  // "self_test". `bytes` are those it will read, 0 where nobody counts them.
  virtual void enter(const char* phase, int64_t bytes) = 0;
  // So many of the phase's bytes are there.
  virtual void advance(int64_t bytes) = 0;
};

}  // namespace galley::tools
