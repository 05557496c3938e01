// kernels::Ops with SIMD and threads: AVX-512 with bf16 dot products where the
// machine has them, AVX2 otherwise, chosen at run time.
//
// Within an instruction set a row's bits never depend on the rows beside it or on
// the number of threads (ops.h); between instruction sets they differ.
#pragma once

#include <memory>
#include <string_view>

#include "base/thread_pool.h"
#include "kernels/ops.h"

namespace galley::kernels {

enum class Isa : uint8_t {
  kAvx512Bf16,  // AVX-512 F, BW, DQ, VL, CD, VBMI and BF16 (Zen 4, Sapphire Rapids)
  kAvx2,        // AVX2, FMA, F16C (Haswell, Zen)
};

std::string_view isa_name(Isa isa);
bool machine_has(Isa isa);

// The fastest set this machine has; kAvx2 must be there (`machine_has` tells).
Isa best_isa();

// `pool` outlives the result. CHECKs that the machine has the set.
std::unique_ptr<Ops> make_fast_ops(ThreadPool& pool, Isa isa);

}  // namespace galley::kernels
