#include "tools/backend.h"

#include "kernels/cuda/cuda_ops.h"
#include "kernels/fast/fast_ops.h"
#include "kernels/plain/plain_ops.h"

namespace galley::tools {

Result<Backend> make_backend(const std::string& name, int threads) {
  Backend backend;
  backend.pool = std::make_unique<ThreadPool>(threads > 0 ? threads : usable_cpu_count());
  if (name == "cuda") {
    backend.ops = TRY(kernels::cuda::make_cuda_ops(0));
    return backend;
  }
  const bool any_fast =
      kernels::machine_has(kernels::Isa::kAvx512Bf16) || kernels::machine_has(kernels::Isa::kAvx2);
  if (name == "plain" || (name == "auto" && !any_fast)) {
    backend.ops = kernels::make_plain_ops(*backend.pool);
    return backend;
  }
  for (const kernels::Isa isa : {kernels::Isa::kAvx512Bf16, kernels::Isa::kAvx2}) {
    const bool best = (name == "fast" || name == "auto") && isa == kernels::best_isa();
    if (!best && name != "fast-" + std::string(kernels::isa_name(isa))) continue;
    if (!kernels::machine_has(isa)) {
      return Error{ErrorCode::kUnsupported, "--backend " + name + ": this machine lacks " +
                                                std::string(kernels::isa_name(isa)) +
                                                "; use --backend plain"};
    }
    backend.ops = kernels::make_fast_ops(*backend.pool, isa);
    return backend;
  }
  return Error{
      ErrorCode::kInvalid,
      "--backend " + name + ": not one of auto, fast, fast-avx512bf16, fast-avx2, plain, cuda"};
}

}  // namespace galley::tools
