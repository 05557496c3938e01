// The fast backend, in every instruction set this machine has, through the tests of
// every backend (ops_test_cases.h).
#include "kernels/fast/fast_ops.h"

#include "kernels/ops_test_cases.h"

namespace galley::kernels {
namespace {

Backend fast(Isa isa) {
  Backend backend;
  backend.name = "fast_" + std::string(isa_name(isa));
  if (machine_has(isa)) {
    backend.make = [isa](ThreadPool& pool) { return make_fast_ops(pool, isa); };
  }
  backend.attention_error = 0.01;  // probabilities are bf16, as the reference's
  return backend;
}

INSTANTIATE_TEST_SUITE_P(Fast, OpsTest, testing::Values(fast(Isa::kAvx512Bf16), fast(Isa::kAvx2)),
                         backend_name);

}  // namespace
}  // namespace galley::kernels
