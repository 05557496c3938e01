// kernels::Ops as loops that read like spec/model.md, rounding where the
// reference rounds: bf16 index scores and attention probabilities included.
//
// Written to be read and to be right; rows run in parallel, nothing else is
// fast. What fast/ and cuda/ are tested against.
#pragma once

#include <memory>

#include "base/thread_pool.h"
#include "kernels/ops.h"

namespace galley::kernels {

// `pool` outlives the result.
std::unique_ptr<Ops> make_plain_ops(ThreadPool& pool);

}  // namespace galley::kernels
