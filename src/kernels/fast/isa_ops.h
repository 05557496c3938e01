// The factories that each instruction set's build of fast/ defines.
#pragma once

#include <memory>

#include "base/thread_pool.h"
#include "kernels/ops.h"

namespace galley::kernels {
namespace avx512bf16 {
std::unique_ptr<Ops> make_ops(ThreadPool& pool);
}
namespace avx2 {
std::unique_ptr<Ops> make_ops(ThreadPool& pool);
}
}  // namespace galley::kernels
