#include "tools/backend.h"

#include "kernels/plain/plain_ops.h"

namespace galley::tools {

Result<Backend> make_backend(const std::string& name, int threads) {
  Backend backend;
  backend.pool = std::make_unique<ThreadPool>(threads > 0 ? threads : usable_cpu_count());
  if (name == "plain") {
    backend.ops = kernels::make_plain_ops(*backend.pool);
    return backend;
  }
  return Error{ErrorCode::kInvalid, "--backend " + name + ": not one of plain"};
}

}  // namespace galley::tools
