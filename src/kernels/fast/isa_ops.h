// What each instruction set's build of fast/ offers to code compiled without it.
#pragma once

#include <cstdint>
#include <memory>

#include "base/thread_pool.h"
#include "kernels/ops.h"

namespace galley::kernels {
namespace avx512bf16 {
std::unique_ptr<Ops> make_ops(ThreadPool& pool);
// Runs `rounds` of independent dots on registers; returns the operations done.
int64_t dot_rounds(int64_t rounds);
}  // namespace avx512bf16
namespace avx2 {
std::unique_ptr<Ops> make_ops(ThreadPool& pool);
int64_t dot_rounds(int64_t rounds);
}  // namespace avx2
}  // namespace galley::kernels
