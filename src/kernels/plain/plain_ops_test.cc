// Runs the kernel test body on plain/.
#include "kernels/plain/plain_ops.h"

#include "kernels/ops_test_cases.h"

namespace galley::kernels {

INSTANTIATE_TEST_SUITE_P(Plain, OpsTest,
                         testing::Values(Backend{.name = "plain",
                                                 .make = make_plain_ops,
                                                 .index_score_error = 0x1p-6,
                                                 .attention_error = 0.01}),
                         backend_name);

}  // namespace galley::kernels
