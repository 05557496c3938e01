// The kernels a verb runs on, by name: tools/ alone chooses them.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/thread_pool.h"
#include "kernels/ops.h"

namespace galley::tools {

// Kernels and the threads they run on.
struct Backend {
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<kernels::Ops> ops;
};

// What --help says of the names.
inline constexpr std::string_view kBackendHelp =
    "Kernels: SIMD of this machine, of one instruction set, plain reference loops, or cuda";

// `threads` 0: as many as this process may use. kInvalid for an unknown name, kUnsupported for
// an instruction set that this machine lacks.
Result<Backend> make_backend(const std::string& name, int threads);

}  // namespace galley::tools
