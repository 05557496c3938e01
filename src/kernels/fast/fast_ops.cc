#include "kernels/fast/fast_ops.h"

#include "base/check.h"
#include "kernels/fast/isa_ops.h"

namespace galley::kernels {

std::string_view isa_name(Isa isa) { return isa == Isa::kAvx512Bf16 ? "avx512bf16" : "avx2"; }

bool machine_has(Isa isa) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
                    __builtin_cpu_supports("bmi2") != 0;
  if (isa == Isa::kAvx2) return avx2;
  return avx2 && __builtin_cpu_supports("avx512f") != 0 &&
         __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512cd") != 0 &&
         __builtin_cpu_supports("avx512vbmi") != 0 && __builtin_cpu_supports("avx512bf16") != 0;
#else
  (void)isa;
  return false;
#endif
}

Isa best_isa() { return machine_has(Isa::kAvx512Bf16) ? Isa::kAvx512Bf16 : Isa::kAvx2; }

std::unique_ptr<Ops> make_fast_ops(ThreadPool& pool, Isa isa) {
  CHECK(machine_has(isa));
#if defined(__x86_64__)
  if (isa == Isa::kAvx512Bf16) return avx512bf16::make_ops(pool);
  return avx2::make_ops(pool);
#else
  (void)pool;
  return nullptr;
#endif
}

}  // namespace galley::kernels
